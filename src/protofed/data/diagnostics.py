"""Check a data set before training: unusable files, duplicates, class counts, domain shift."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from protofed.core.method import Condition
from protofed.data.array_folder import ArrayInfo
from protofed.data.benchmark_info import Benchmark, BenchmarkInfo, Domain
from protofed.data.benchmarks import benchmark_info, source_label
from protofed.data.domain_shift import DomainShift, gray_thumbnails, measure_domain_shift
from protofed.data.folder_images import FolderInfo, PackedFolder
from protofed.data.image_decoding import perceptual_hash
from protofed.data.image_traits import measure_traits
from protofed.data.spec_suggestion import (
    UNEVEN,
    DataFacts,
    conditions,
    format_suggestion,
    suggested_side,
)
from protofed.errors import ProtofedError, count_noun

NEAR_BITS = 24  # of 256 that may differ between the hashes of two near duplicates
NEAR_CORRELATION = 0.98  # of their grey values, required as well
FLAT = 1.0  # standard deviation of grey values below which an image is blank
BLOCK = 256  # rows compared at a time, to limit memory


class HashedImage(NamedTuple):
    """An image with its hashes, for the search for duplicates.

    `sha256` is of the decoded pixels; `look` is a perceptual hash of 256 bits. `width` and `height`
    are those of the file, before resizing.
    """

    name: str
    domain: str
    part: str  # "train" or "test"
    label: str
    sha256: str
    look: bytes
    width: int
    height: int


def exact_duplicates(pictures: Sequence[HashedImage]) -> list[list[int]]:
    """Groups of images with identical decoded pixels, as lists of indices into `pictures`.

    Only groups of two or more are returned.
    """
    groups: dict[str, list[int]] = {}
    for row, picture in enumerate(pictures):
        groups.setdefault(picture.sha256, []).append(row)
    return [group for group in groups.values() if len(group) > 1]


def near_duplicates(pictures: Sequence[HashedImage], greys: NDArray[np.float32]) -> list[list[int]]:
    """Groups of images that look the same but differ in some pixels, as lists of indices.

    `greys` [N, P] holds the grey thumbnail of each picture. Two images match if few bits of their
    perceptual hashes differ and their grey values correlate; a hash alone would confuse different
    things on the same plain background. Of exact duplicates only the first takes part.
    """
    first = {picture.sha256: row for row, picture in reversed(list(enumerate(pictures)))}
    rows = np.array(sorted(first.values()), dtype=np.int64)  # one of each exact group
    if len(rows) < 2:
        return []
    bits = np.unpackbits(
        np.frombuffer(b"".join(pictures[row].look for row in rows), dtype=np.uint8)
    ).reshape(len(rows), -1)
    group = np.arange(len(rows))  # the first row of those that each is joined to so far
    for one, later in _close(bits.astype(np.float32)):
        new = later[group[later] != group[one]]
        alike = new[_alike(greys, rows[one], rows[new])]
        joined = group[[one, *alike]]
        group[np.isin(group, joined)] = joined.min()
    first_rows, sizes = np.unique(group, return_counts=True)
    return [rows[group == row].tolist() for row in first_rows[sizes > 1]]


def _close(bits: NDArray[np.float32]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Each row with the later ones whose bits [N, 256] differ from its own in few places."""
    signs = 2 * bits - 1
    least = bits.shape[1] - 2 * NEAR_BITS  # the places that agree less those that differ
    for start in range(0, len(bits), BLOCK):
        for row, agreement in enumerate(signs[start : start + BLOCK] @ signs.T, start):
            yield row, row + 1 + np.flatnonzero(agreement[row + 1 :] >= least)


def _alike(
    greys: NDArray[np.float32], one: np.int64, others: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Whether some rows' grey values agree with one's, up to brightness and contrast."""
    same: list[NDArray[np.bool_]] = [np.zeros(0, dtype=bool)]
    for start in range(0, len(others), BLOCK):  # only these are gathered
        a, b = greys[[one]], greys[others[start : start + BLOCK]]
        x, y = (part - part.mean(1, keepdims=True) for part in (a, b))
        flat = (x.std(1) < FLAT) & (y.std(1) < FLAT) & (abs(a.mean(1) - b.mean(1)) < 2 * FLAT)
        size = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
        same.append(flat | ((x * y).sum(1) >= NEAR_CORRELATION * np.maximum(size, 1e-6)))
    return np.concatenate(same)


Grade = Literal["stop", "bad", "look", "note"]
GRADES: tuple[Grade, ...] = ("stop", "bad", "look", "note")  # worst first
TINY = 10  # training images of a class in a domain
SMALL_TEST = 100  # test images of a domain: each is one point of accuracy
LOPSIDED = 10.0  # ratio of the largest to the smallest domain

BY_COUNTS: tuple[tuple[Grade, str, str], ...] = (
    (
        "look",
        "classes that a domain lacks",
        "add images, or expect its client to forget these classes",
    ),
    (
        "look",
        f"classes with fewer than {TINY} images to train, or none to test",
        "add images, or drop the class",
    ),
    (
        "note",
        f"domains whose largest class has {UNEVEN:g} times the smallest or more",
        "accuracy favours large classes: look at the confusion matrices of the report, and use "
        "training.sampling = balanced",
    ),
    (
        "note",
        f"domains of which the largest has {LOPSIDED:g} times the smallest or more",
        "clients are weighted by size: use weights = sqrt or equal",
    ),
    (
        "note",
        f"domains with fewer than {SMALL_TEST} test images",
        "small differences are noise there: use several seeds",
    ),
)


class Finding(NamedTuple):
    """One result of the diagnosis: how serious it is, what was found, and what to do about it.

    `grade` is "stop" (nothing can be trained), "bad" (scores will be wrong), "look" or "note".
    `details` has one line per case.
    """

    grade: Grade
    title: str
    details: list[str]
    advice: str

    def to_dict(self) -> dict[str, Any]:
        """As plain data, ready for JSON."""
        return self._asdict()


Counts = dict[str, dict[str, tuple[int, int]]]  # by domain and class: images to train and to test


def count_classes(benchmark: Benchmark) -> Counts:
    """The number of images to train and to test, by domain and class.

    ``count_classes(b)["photo"]["dog"]`` is ``(120, 30)``; absent classes have ``(0, 0)``.
    """
    size = len(benchmark.classes)
    return {
        domain.name: dict(
            zip(
                benchmark.classes,
                zip(
                    domain.train.labels.bincount(minlength=size).tolist(),
                    domain.test.labels.bincount(minlength=size).tolist(),
                    strict=True,
                ),
                strict=True,
            )
        )
        for domain in benchmark.domains
    }


def file_findings(skipped: dict[str, str]) -> list[Finding]:
    """A finding that lists all unusable files with the reasons; none if there are no such files.

    `skipped` maps file names to reasons.
    """
    if not skipped:
        return []
    details = [f"{name}: {why}" for name, why in skipped.items()]
    advice = "save them again or delete them; until then they are skipped"
    return [Finding("bad", f"{count_noun(len(skipped), 'file')} cannot be used", details, advice)]


def duplicate_findings(
    pictures: Sequence[HashedImage], groups: Sequence[Sequence[int]], kind: str
) -> list[Finding]:
    """Findings about duplicate images, one for each way in which they harm the scores.

    `groups` are lists of indices into `pictures`; `kind` is "the same" or "nearly the same". The
    worst case is the same image under two classes, or in both training and test.
    """
    sorts: dict[str, list[str]] = {}
    for group in groups:
        mine = [pictures[row] for row in group]
        sorts.setdefault(_sort(mine), []).append(" = ".join(picture.name for picture in mine))
    graded: dict[str, tuple[Grade, str]] = {
        "under different classes": ("bad", "decide which class is right, delete the others"),
        "in training and in test": (
            "bad",
            "delete one of the two: the test would ask for memorised images",
        ),
        "in several domains": (
            "look",
            "keep each image in one domain, else the shift is underestimated",
        ),
        "within one part": ("note", "delete all but one, unless you mean to give them more weight"),
    }
    return [
        Finding(
            "look" if grade == "bad" and kind != "the same" else grade,
            f"{count_noun(len(sorts[sort]), 'image')} found more than once ({kind} pixels) {sort}",
            sorts[sort],
            advice,
        )
        for sort, (grade, advice) in graded.items()
        if sort in sorts
    ]


def _sort(group: Sequence[HashedImage]) -> str:
    if len({picture.label for picture in group}) > 1:
        return "under different classes"
    if len({picture.part for picture in group}) > 1:
        return "in training and in test"
    return "in several domains" if len({p.domain for p in group}) > 1 else "within one part"


def count_findings(counts: Counts) -> list[Finding]:
    """Findings about class counts: missing and tiny classes, imbalance, and small test sets."""
    lacks, tiny, uneven, small = [], [], [], []
    for domain, classes in counts.items():
        lacks += [f"{domain}: {name}" for name, of in classes.items() if not sum(of)]
        there = {name: of for name, of in classes.items() if sum(of)}
        tiny += [f"{domain}: {n}, {a} + {b}" for n, (a, b) in there.items() if a < TINY or not b]
        sizes = {name: max(1, train) for name, (train, _) in there.items()}
        most, least = max(sizes, key=sizes.__getitem__), min(sizes, key=sizes.__getitem__)
        if sizes[most] >= UNEVEN * sizes[least]:
            uneven.append(f"{domain}: {most} {sizes[most]}, {least} {sizes[least]}")
        tests = sum(test for _, test in classes.values())
        if tests < SMALL_TEST:
            small.append(f"{domain}: {tests} test images, one is {100 / tests:.1f} points")
    found = (lacks, tiny, uneven, _lopsided(counts), small)
    return [
        Finding(grade, f"{title} ({len(details)})", details, advice)
        for (grade, title, advice), details in zip(BY_COUNTS, found, strict=True)
        if details
    ]


def _lopsided(counts: Counts) -> list[str]:
    totals = {domain: sum(a for a, _ in classes.values()) for domain, classes in counts.items()}
    far = max(totals.values()) >= LOPSIDED * min(totals.values())
    return [f"{domain}: {total}" for domain, total in totals.items()] if far else []


def shift_findings(shift: DomainShift | None, domains: int) -> list[Finding]:
    """The finding that sums up the measured domain shift, with advice on which methods to compare.

    `shift` is None where there were too few images to measure it.
    """
    if domains < 2:
        advice = "compare methods for domain shift on two domains or more"
        return [Finding("look", "there is only one domain", [], advice)]
    if shift is None:
        advice = "add images: each domain needs ten to train, ten to test, and two classes"
        return [Finding("look", "too few images to measure the shift between domains", [], advice)]
    details = [
        f"learnt on {d.trained}, tested on {d.tested}: {d.points:+.1f} points lost, ± {d.error:.1f}"
        for d in shift.drops
        if d.beyond_noise
    ]
    advice = {
        "none beyond noise": "the domains look alike to a probe: averaging may be all you need",
        "weak": "compare plain averaging with one method for domain shift before you choose",
    }.get(shift.word, "compare several methods for domain shift (see `protofed methods`)")
    title = f"shift between domains: {shift.word}, {shift.mean_drop:.1f} points lost on average"
    return [Finding("note", title, details, advice)]


def sort_findings(findings: Sequence[Finding]) -> list[Finding]:
    """The findings from the most serious to the least; equal grades keep their order."""
    return sorted(findings, key=lambda finding: GRADES.index(finding.grade))


class Diagnosis(NamedTuple):
    """The result of `diagnose_benchmark`: counts, findings, domain shift, and a suggested spec.

    `spec` is the text of a TOML file, and `plain_spec` one for plain averaging; both are empty if
    the folder could not be read at all.
    """

    name: str
    counts: Counts
    findings: list[Finding]
    shift: DomainShift | None
    spec: str  # TOML, a spec to start from
    examples: str = "images"  # or "rows": what was counted
    plain_spec: str = ""  # TOML, without what goes beyond plain averaging
    conditions: tuple[Condition, ...] = ()  # for which some methods were made

    def plainer(self) -> Diagnosis:
        """The same with the spec for plain averaging as the suggestion."""
        return self._replace(spec=self.plain_spec)

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
        plain = {"name": self.name, "counts": counts, "findings": findings}
        return {**plain, "shift": shift, "conditions": self.conditions, "spec": self.spec}


def diagnose_benchmark(name: str) -> Diagnosis:
    """Examine a benchmark, or a folder of images or arrays.

    Faults of a folder become findings with grade "stop". Only a name that is neither a benchmark
    nor an existing folder raises an error.
    """
    try:
        entry = benchmark_info(name)
        benchmark = entry.load()
    except ProtofedError as fault:
        if not Path(name).expanduser().is_dir():
            raise
        first, *rest = str(fault).splitlines()
        advice = rest.pop() if rest else "see docs/own-images.md"
        return Diagnosis(name, {}, [Finding("stop", first, rest, advice)], None, "")
    if isinstance(entry, ArrayInfo) and entry.row_shape:
        return _diagnose_rows(entry, benchmark)
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
    facts = gather_facts(entry, benchmark, pictures, shift)
    return _with_suggestion(
        Diagnosis(entry.name, counts, sort_findings(findings), shift, ""), facts
    )


def _with_suggestion(found: Diagnosis, facts: DataFacts) -> Diagnosis:
    spec, plain = format_suggestion(facts), format_suggestion(facts, plain=True)
    return found._replace(spec=spec, plain_spec=plain, conditions=conditions(facts))


NO_PICTURES = Finding(
    "note",
    "look-alikes were not searched for, as these data are no images",
    [],
    "only rows with the same numbers are found",
)


def _diagnose_rows(entry: ArrayInfo, benchmark: Benchmark) -> Diagnosis:
    """What can be said of rows: counts, exact copies, and how far the domains lie apart."""
    rows = _of_arrays(benchmark)
    counts, shift = count_classes(benchmark), measure_domain_shift(benchmark)
    findings = [
        *duplicate_findings(rows, exact_duplicates(rows), "the same"),
        *count_findings(counts),
        *shift_findings(shift, len(counts)),
    ]
    found = sort_findings([*map(_of_rows, findings), NO_PICTURES])
    facts = gather_facts(entry, benchmark, rows, shift)
    return _with_suggestion(Diagnosis(entry.name, counts, found, shift, "", "rows"), facts)


def _of_rows(finding: Finding) -> Finding:
    """A finding in the words for data that are no images."""

    def reword(text: str) -> str:
        return text.replace("image", "row").replace("pixels", "numbers")

    details = [
        line.replace(" test images, one is ", " test rows, one is ") for line in finding.details
    ]
    return Finding(finding.grade, reword(finding.title), details, reword(finding.advice))


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
    """A benchmark's images (or a folder's rows), which have no files but numbers."""
    pictures = []
    for domain in benchmark.domains:
        for part, data in (("train", domain.train), ("test", domain.test)):
            for row, (image, label) in enumerate(
                zip(data.images, data.labels.tolist(), strict=True)
            ):
                words = (f"{domain.name} {part} {row}", domain.name, part, benchmark.classes[label])
                if image.is_floating_point():
                    digest = hashlib.sha256(image.contiguous().numpy().data).hexdigest()
                    pictures.append(HashedImage(*words, digest, b"", 0, 0))
                    continue
                pixels = image.expand(-1, -1, 3).contiguous().numpy()
                digest = hashlib.sha256(pixels.data).hexdigest()
                look = perceptual_hash(Image.fromarray(pixels))
                pictures.append(HashedImage(*words, digest, look, *pixels.shape[1::-1]))
    return pictures


def gather_facts(
    entry: BenchmarkInfo,
    benchmark: Benchmark,
    pictures: Sequence[HashedImage],
    shift: DomainShift | None,
) -> DataFacts:
    """What a suggestion is made from: counts, sizes, and what the images are like."""
    counts, label = count_classes(benchmark), source_label(entry.name)
    if isinstance(entry, ArrayInfo) and entry.row_shape:
        about = f"{label}: {len(pictures)} rows of shape {list(entry.row_shape)}"
        return DataFacts(entry.name, about, counts, shift)
    median = int(np.median([min(picture.width, picture.height) for picture in pictures]))
    about = f"{label}: {len(pictures)} images, median side {median} pixels"
    traits = measure_traits(benchmark)
    if isinstance(entry, FolderInfo):
        side = suggested_side(median)
        return DataFacts(entry.name, about, counts, shift, side, median, traits)
    return DataFacts(entry.name, about, counts, shift, entry.side, traits=traits)


GAP = 4  # white pixels between images
SCALE = 2  # enlargement, as the images are small


def contact_sheet(benchmark: Benchmark, path: Path) -> None:
    """Write a PNG that shows one training image per domain (rows) and class (columns).

    A class without images in a domain leaves a white cell. Data that are no images are refused.
    """
    if benchmark.domains[0].train.images.is_floating_point():
        raise ProtofedError("there is no picture of these data, as they are no images")
    rows = [_row(domain, len(benchmark.classes)) for domain in benchmark.domains]
    sheet = torch.cat(rows)  # [domains * cell, classes * cell, 3]
    picture = Image.fromarray(sheet.numpy())
    size = (picture.width * SCALE, picture.height * SCALE)
    try:
        picture.resize(size, Image.Resampling.NEAREST).save(path, format="PNG")
    except OSError as fault:
        raise ProtofedError(f"cannot write {path}: {fault.strerror}") from fault


def _row(domain: Domain, classes: int) -> torch.Tensor:
    """The first training image of each class side by side, white where a class is absent."""
    side = domain.train.images.shape[1]
    row = torch.full((side + GAP, classes * (side + GAP), 3), 255, dtype=torch.uint8)
    for label in range(classes):
        found = (domain.train.labels == label).nonzero()
        if len(found):
            left = label * (side + GAP) + GAP // 2
            row[GAP // 2 : GAP // 2 + side, left : left + side] = domain.train.images[found[0, 0]]
    return row
