"""Notices of a collapsed model, from its scores and counts of answers.

A mean accuracy can look fair while the model answers one class for nearly everything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from protofed.core.answer_counts import AnswerCounts, Ints
from protofed.federation.evaluation import LAST, Evaluation
from protofed.federation.notices import Notice
from protofed.federation.score_metrics import largest_share

ONE_ANSWER = 95.0  # per cent of the images that get one answer
DEAD = 0.9  # of the features are the same for all images
SAME = 0.5  # of the images, and fewer, have features of their own
ENOUGH = 8  # images whose features are compared
MEAN_FALL, DOMAIN_FALL = 10.0, 20.0  # points between two evaluations
CHANCE = 150.0  # points: a fall on n images must exceed CHANCE / sqrt(n), two or three errors


def collapse_notices(history: Sequence[Evaluation]) -> list[Notice]:
    """What is wrong with the model behind the newest of some evaluations, oldest first.

    It answers one class for nearly everything, is no better than the constant answer, has features
    that are dead or the same for many images, or its scores jump from round to round. One notice
    each, with the domains. Nothing is said of what the counts do not tell.
    """
    if not history:
        return []
    last = history[-1]
    found = {
        "answers one class for nearly everything": _one_answer(last),
        "no better than always answering the largest class": _constant(last),
        "features are dead": _dead(last.counts),
        "features are the same for many images": _same(last.counts),
        "scores jump from round to round": dict(_falls(history[-LAST:])),
    }
    return [
        Notice("collapse", f"{what}: {'; '.join(f'{name} {how}' for name, how in told.items())}")
        for what, told in found.items()
        if told
    ]


def _one_answer(last: Evaluation) -> dict[str, str]:
    """The domains in which nearly all answers are one class, and most others are missed."""
    told = {}
    for name, counts in last.counts.items():
        most = max(counts.answers, default=0)
        place = counts.answers.index(most) if most else 0
        others = counts.total - counts.images[place]
        missed = others - (sum(counts.hits) - counts.hits[place])
        share = 100 * most / max(counts.total, 1)
        if share >= ONE_ANSWER and missed > others / 2:
            told[name] = f"{share:.0f} % {_class_name(last, place)}"
    return told


def _class_name(last: Evaluation, place: int) -> str:
    return last.classes[place] if last.classes else f"class {place}"


def _constant(last: Evaluation) -> dict[str, str]:
    """The domains of several classes whose accuracy a constant answer would have had, too."""
    told = {}
    for name, counts in last.counts.items():
        share, score = largest_share(counts), last.scores.domains.get(name)
        several = sum(map(bool, counts.images)) > 1
        if several and share is not None and score is not None and score <= share + 1e-9:
            told[name] = f"{score:.2f} %, the largest class has {share:.2f} %"
    return told


def _looked_at(counts: Mapping[str, AnswerCounts]) -> Iterator[tuple[str, Ints]]:
    """The domains in which the features of enough images were compared, with their counts."""
    for name, one in counts.items():
        if one.features and one.features[2] >= ENOUGH:
            yield name, one.features


def _dead(counts: Mapping[str, AnswerCounts]) -> dict[str, str]:
    return {
        name: f"{constant} of {width} never vary"
        for name, (width, constant, _, _) in _looked_at(counts)
        if constant >= DEAD * width
    }


def _same(counts: Mapping[str, AnswerCounts]) -> dict[str, str]:
    return {
        name: f"{looked} images have {different} different ones"
        for name, (_, _, looked, different) in _looked_at(counts)
        if different <= SAME * looked
    }


class _Line(NamedTuple):
    """A score over evaluations, with the number of test images behind it."""

    name: str
    rounds: list[tuple[int, float]]
    fall: float
    images: float


def _falls(recent: Sequence[Evaluation]) -> Iterator[tuple[str, str]]:
    """The scores that fell by much from one of the evaluations to the next: the largest fall."""
    for line in _lines(recent):
        steps = [(a - b, a, b, after) for (_, a), (after, b) in pairwise(line.rounds)]
        fall, before, now, number = max(steps, default=(0.0, 0.0, 0.0, 0))
        if fall >= max(line.fall, CHANCE / math.sqrt(line.images)):
            yield line.name, f"fell from {before:.2f} to {now:.2f} % in round {number}"


def _lines(recent: Sequence[Evaluation]) -> Iterator[_Line]:
    """The mean, of evaluations to which all sites have answered, and each domain."""
    last = recent[-1]
    images = {name: counts.total for name, counts in last.counts.items()}
    means = [(e.round, e.scores.mean) for e in recent if e.missing == last.missing]
    known = [(number, score) for number, score in means if score is not None]
    yield _Line("the mean", known, MEAN_FALL, sum(images.values()) or math.inf)
    for name in last.scores.domains:
        own = [(e.round, e.scores.domains.get(name)) for e in recent]
        told = [(number, score) for number, score in own if score is not None]
        yield _Line(name, told, DOMAIN_FALL, images.get(name) or math.inf)
