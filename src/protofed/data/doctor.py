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
from protofed.data.catalog import benchmark_info, source_label
from protofed.data.decode import perceptual_hash
from protofed.data.duplicates import HashedImage, exact_duplicates, near_duplicates
from protofed.data.entry import BenchmarkInfo
from protofed.data.findings import (
    Counts,
    Finding,
    count_classes,
    count_findings,
    duplicate_findings,
    file_findings,
    shift_findings,
    sort_findings,
)
from protofed.data.folder import FolderInfo
from protofed.data.packing import PackedFolder
from protofed.data.shift import DomainShift, gray_thumbnails, measure_domain_shift

LARGE = 96  # pixels: from this median side on, 64 pixels keep what 32 lose


class Diagnosis(NamedTuple):
    """What the doctor found."""

    name: str
    counts: Counts
    findings: list[Finding]
    shift: DomainShift | None
    spec: str  # TOML that `protofed run --spec` takes

    def to_dict(self) -> dict[str, Any]:
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
        findings = [finding.to_dict() for finding in self.findings]
        told = {"name": self.name, "counts": counts, "findings": findings}
        return {**told, "shift": shift, "spec": self.spec}


def diagnose_benchmark(name: str) -> Diagnosis:
    """Look at a benchmark or a folder; only what is not there at all is an error."""
    try:
        entry = benchmark_info(name)
        benchmark = entry.load()
    except ProtofedError as fault:
        if not Path(name).expanduser().is_dir():
            raise
        first, *rest = str(fault).splitlines()
        advice = rest.pop() if rest else "see docs/own-images.md"
        return Diagnosis(name, {}, [Finding("stop", first, rest, advice)], None, "")
    pictures, skipped = _pictures(entry, benchmark)
    thumbnails = np.concatenate(
        [gray_thumbnails(p) for d in benchmark.domains for p in (d.train, d.test)]
    )
    counts, shift = count_classes(benchmark), measure_domain_shift(benchmark)
    findings = [
        *file_findings(skipped),
        *duplicate_findings(pictures, exact_duplicates(pictures), "the same"),
        *duplicate_findings(pictures, near_duplicates(pictures, thumbnails), "nearly the same"),
        *count_findings(counts),
        *shift_findings(shift, len(counts)),
    ]
    spec = suggest_command(entry, counts, pictures, shift)
    return Diagnosis(entry.name, counts, sort_findings(findings), shift, spec)


def _pictures(
    entry: BenchmarkInfo, benchmark: Benchmark
) -> tuple[list[HashedImage], dict[str, str]]:
    """All images in the order of domains, parts and rows, and the files that cannot be used."""
    if not isinstance(entry, FolderInfo):
        return _of_arrays(benchmark), {}
    pack = entry.pack(entry.side)
    try:
        return _of_pack(pack, benchmark), pack.skipped
    except (OSError, ValueError, KeyError, TypeError):  # damaged: made again
        pack = entry.pack(entry.side, fresh=True)
        return _of_pack(pack, benchmark), pack.skipped


def _of_pack(pack: PackedFolder, benchmark: Benchmark) -> list[HashedImage]:
    """A folder's images, with their files."""
    index = json.loads((pack.place / "index.json").read_bytes())
    pictures = []
    for domain in benchmark.domains:
        for part, data in (("train", domain.train), ("test", domain.test)):
            rows = zip(index[domain.name][part], data.labels.tolist(), strict=True)
            for (name, digest, look, width, height), label in rows:
                words = (name, domain.name, part, benchmark.classes[label], digest)
                pictures.append(HashedImage(*words, bytes.fromhex(look), width, height))
    return pictures


def _of_arrays(benchmark: Benchmark) -> list[HashedImage]:
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
                pictures.append(HashedImage(*words, digest, look, *pixels.shape[1::-1]))
    return pictures


def suggest_command(
    entry: BenchmarkInfo, counts: Counts, pictures: Sequence[HashedImage], shift: DomainShift | None
) -> str:
    """A spec to begin with, and why it says what it says."""
    median = int(np.median([min(picture.width, picture.height) for picture in pictures]))
    folder = isinstance(entry, FolderInfo)
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
