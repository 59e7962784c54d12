"""What is wrong with a data set, each with what to do, the worst first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from protofed.core.errors import count_noun
from protofed.data.benchmark import Benchmark
from protofed.data.duplicates import HashedImage
from protofed.data.shift import DomainShift

Grade = Literal["stop", "bad", "look", "note"]
GRADES: tuple[Grade, ...] = ("stop", "bad", "look", "note")  # from the worst on
TINY = 10  # training images of a class in a domain
SMALL_TEST = 100  # test images of a domain: one of them is a point
UNEVEN = 5.0  # times that a domain's largest class is as large as its smallest
LOPSIDED = 10.0  # times that the largest domain is as large as the smallest

BY_COUNTS: tuple[tuple[Grade, str, str], ...] = (
    ("look", "classes that a domain lacks", "add images, or expect its client to forget them"),
    (
        "look",
        f"classes with fewer than {TINY} images to train, or none to test",
        "add images, or drop the class",
    ),
    (
        "note",
        f"domains whose largest class has {UNEVEN:g} times the smallest or more",
        "accuracy favours large classes: look at the confusion matrices of the report",
    ),
    (
        "note",
        f"domains of which the largest has {LOPSIDED:g} times the smallest or more",
        "clients weigh by size: compare with partition.kind = shares and equal samples",
    ),
    (
        "note",
        f"domains with fewer than {SMALL_TEST} test images",
        "small differences are noise there: use several seeds",
    ),
)


class Finding(NamedTuple):
    """One thing to know."""

    grade: Grade
    title: str
    details: list[str]
    advice: str

    def to_dict(self) -> dict[str, Any]:
        """As plain data, ready for JSON."""
        return self._asdict()


Counts = dict[str, dict[str, tuple[int, int]]]  # by domain and class: images to train and to test


def count_classes(benchmark: Benchmark) -> Counts:
    """How many images each class has in each domain."""
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
    """Files that cannot be used; all are named."""
    if not skipped:
        return []
    details = [f"{name}: {why}" for name, why in skipped.items()]
    advice = "save them again, or delete them; until then they are skipped"
    return [Finding("bad", f"{count_noun(len(skipped), 'file')} cannot be used", details, advice)]


def duplicate_findings(
    pictures: Sequence[HashedImage], groups: Sequence[Sequence[int]], kind: str
) -> list[Finding]:
    """Groups of the same image: by what they do to the scores."""
    sorts: dict[str, list[str]] = {}
    for group in groups:
        mine = [pictures[row] for row in group]
        sorts.setdefault(_sort(mine), []).append(" = ".join(picture.name for picture in mine))
    graded: dict[str, tuple[Grade, str]] = {
        "under different classes": ("bad", "decide which class is right, delete the others"),
        "in training and in test": ("bad", "delete one side: such a test asks what was learnt"),
        "in several domains": ("look", "keep each image in one domain, or they are less apart"),
        "within one part": ("note", "delete all but one, unless they are meant to weigh more"),
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
    """Missing and tiny classes, uneven classes and domains, small tests."""
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
    """What the probes say, in a sentence."""
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
        "none beyond noise": "the domains look alike to a simple probe: FedAvg may be all you need",
        "weak": "compare FedAvg with one method for domain shift before you choose",
    }.get(shift.word, "compare FedAvg with methods for domain shift: fedbn, fpl, fedlsa")
    title = f"shift between domains: {shift.word}, {shift.mean_drop:.1f} points lost on average"
    return [Finding("note", title, details, advice)]


def sort_findings(findings: Sequence[Finding]) -> list[Finding]:
    """The worst first; of one grade, in the order they were found."""
    return sorted(findings, key=lambda finding: GRADES.index(finding.grade))
