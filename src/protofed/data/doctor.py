"""A look at a data set before anything is trained on it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from protofed.core.errors import ProtofedError
from protofed.data.benchmark import Benchmark
from protofed.data.catalog import entry_of, source_label
from protofed.data.decode import perceptual_hash
from protofed.data.duplicates import Picture, exact, near
from protofed.data.entry import Entry
from protofed.data.findings import (
    Counts,
    Finding,
    count,
    of_copies,
    of_counts,
    of_files,
    of_shift,
    ordered,
)
from protofed.data.folder import FolderEntry
from protofed.data.packing import Pack
from protofed.data.shift import Shift, greys, measure

LARGE = 96  # pixels: from this median side on, 64 pixels keep what 32 lose


class Diagnosis(NamedTuple):
    """What the doctor found."""

    name: str
    counts: Counts
    findings: list[Finding]
    shift: Shift | None
    spec: str  # TOML that `protofed run --spec` takes

    def plain(self) -> dict[str, Any]:
        """As plain data, ready for JSON."""
        counts = {
            domain: {name: {"train": a, "test": b} for name, (a, b) in classes.items()}
            for domain, classes in self.counts.items()
        }
        shift = self.shift and {
            "word": self.shift.word,
            "mean_drop": self.shift.mean_drop,
            "accuracy": self.shift.accuracy,
            "drops": [drop._asdict() for drop in self.shift.drops],
            "images": self.shift.images,
        }
        findings = [finding.plain() for finding in self.findings]
        told = {"name": self.name, "counts": counts, "findings": findings}
        return {**told, "shift": shift, "spec": self.spec}


def examine(name: str) -> Diagnosis:
    """Look at a benchmark or a folder; only what is not there at all is an error."""
    try:
        entry = entry_of(name)
        benchmark = entry.load()
    except ProtofedError as fault:
        if not Path(name).expanduser().is_dir():
            raise
        first, *rest = str(fault).splitlines()
        advice = rest.pop() if rest else "see docs/own-images.md"
        return Diagnosis(name, {}, [Finding("stop", first, rest, advice)], None, "")
    pictures, skipped = _pictures(entry, benchmark)
    thumbnails = np.concatenate([greys(p) for d in benchmark.domains for p in (d.train, d.test)])
    counts, shift = count(benchmark), measure(benchmark)
    findings = [
        *of_files(skipped),
        *of_copies(pictures, exact(pictures), "the same"),
        *of_copies(pictures, near(pictures, thumbnails), "nearly the same"),
        *of_counts(counts),
        *of_shift(shift, len(counts)),
    ]
    spec = suggestion(entry, counts, pictures, shift)
    return Diagnosis(entry.name, counts, ordered(findings), shift, spec)


def _pictures(entry: Entry, benchmark: Benchmark) -> tuple[list[Picture], dict[str, str]]:
    """All images in the order of domains, parts and rows, and the files that cannot be used."""
    if not isinstance(entry, FolderEntry):
        return _of_arrays(benchmark), {}
    pack = entry.pack(entry.side)
    try:
        return _of_pack(pack, benchmark), pack.skipped
    except (OSError, ValueError, KeyError, TypeError):  # damaged: made again
        pack = entry.pack(entry.side, fresh=True)
        return _of_pack(pack, benchmark), pack.skipped


def _of_pack(pack: Pack, benchmark: Benchmark) -> list[Picture]:
    """A folder's images, with their files."""
    index = json.loads((pack.place / "index.json").read_bytes())
    pictures = []
    for domain in benchmark.domains:
        for part, data in (("train", domain.train), ("test", domain.test)):
            rows = zip(index[domain.name][part], data.labels.tolist(), strict=True)
            for (name, digest, look, width, height), label in rows:
                words = (name, domain.name, part, benchmark.classes[label], digest)
                pictures.append(Picture(*words, bytes.fromhex(look), width, height))
    return pictures


def _of_arrays(benchmark: Benchmark) -> list[Picture]:
    """A benchmark's images, which have no files but rows."""
    pictures = []
    for domain in benchmark.domains:
        for part, data in (("train", domain.train), ("test", domain.test)):
            for row, (image, label) in enumerate(
                zip(data.images, data.labels.tolist(), strict=True)
            ):
                pixels = image.expand(-1, -1, 3).contiguous().numpy()
                words = (f"{domain.name} {part} {row}", domain.name, part, benchmark.classes[label])
                digest = hashlib.sha256(pixels.data).hexdigest()
                look = perceptual_hash(Image.fromarray(pixels))
                pictures.append(Picture(*words, digest, look, *pixels.shape[1::-1]))
    return pictures


def suggestion(
    entry: Entry, counts: Counts, pictures: Sequence[Picture], shift: Shift | None
) -> str:
    """A spec to begin with, and why it says what it says."""
    median = int(np.median([min(picture.width, picture.height) for picture in pictures]))
    folder = isinstance(entry, FolderEntry)
    side = (64 if median >= LARGE else 32) if folder else entry.side
    smallest = min(sum(train for train, _ in classes.values()) for classes in counts.values())
    batch = 64 if smallest >= 256 else 16
    clients = ", ".join(f"{_quoted(domain)} = 1" for domain in counts)
    word = shift.word if shift else "not measured"
    lines = [
        f"# {source_label(entry.name)}: {len(pictures)} images, median side {median} pixels,",
        f"# shift between domains: {word}",
        "# next: protofed compare fedavg fedbn fpl --spec, with the name of this file",
        'method = "fedavg"',
        "rounds = 20",
        "",
        "[data]",
        f"name = {_quoted(entry.name)}",
        f"side = {side}",
        "",
        "[partition]  # one client a domain, with all its training images",
        'kind = "equal"',
        f"clients = {{ {clients} }}",
        "",
        "[training]",
        f"batch = {batch}  # the smallest domain has {smallest} training images",
        "",
    ]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    """A TOML string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
