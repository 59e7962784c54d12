"""Counts of a model's answers: all that scores are computed from, and all that a site sends.

Answers of parts of a test set are tallied (`AnswerTally`), added, and reduced to whole numbers
(`AnswerCounts`). Neither holds an image, a feature or the score of a single image.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = tuple[int, ...]
ODDS_BINS = 1 << 16  # of the scores behind AUROC
FINEST = 0.1  # log odds below which these bins have equal widths; above, equal ratios
REACH = 14.0  # asinh(odds / FINEST) at the outer edges: log odds of about 60,000
SURE_BINS = 10  # of equal width, behind the calibration error
SURE_UNIT = 1000  # confidences are added up as whole thousandths
LOOKED = 64  # images per batch, evenly spaced, whose features are compared
DECIMALS = 6  # of features that count as different, relative to the largest


class AnswerCounts(NamedTuple):
    """What a model answered on a test set of C classes, as whole numbers.

    If several models were scored on one test set (a personal method), `models` says how many, and
    all other numbers are sums over them. Fields that were not kept are empty::

        counts.images[c]   # test images of class c
        counts.answers[c]  # images for which the answer was c
        counts.hits[c]     # images of class c for which it was c
    """

    images: Ints  # [C]
    hits: Ints  # [C]
    answers: Ints  # [C]
    models: int = 1
    wins: Ints = ()  # [C] twice the pairs (image of c, other image) in the right order by score
    sure: Ints = ()  # [10 x 3] by confidence: images, right answers, sum of confidences in 1/1000
    cells: Ints = ()  # the matrix: true class * C + answer, and how many images, in turn
    features: Ints = ()  # how many: features, constant features, images looked at, different ones

    @property
    def total(self) -> int:
        """How many answers there were."""
        return sum(self.images)

    def to_dict(self) -> dict[str, int | Ints]:
        """As plain data: what was not kept is left out, and so is the number of models if it is 1.

        For files and messages, whose readers use `from_dict` and then `fault`.
        """
        kept: dict[str, int | Ints] = {name: part for name, part in self._asdict().items() if part}
        if self.models == 1:
            del kept["models"]
        return {"images": self.images, "hits": self.hits, "answers": self.answers, **kept}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> AnswerCounts:
        """The counts that `to_dict` wrote."""
        parts = {name: tuple(part) for name, part in plain.items() if name != "models"}
        return cls(**parts, models=int(plain.get("models", 1)))

    def fault(self) -> str:
        """Why these cannot be counts of one test set, in words; "" if they can.

        For counts from a file or from a site; their types must be right already.
        """
        size, total = len(self.images), self.total
        if not len(self.hits) == len(self.answers) == size:
            return "images, hits and answers are not of the same classes"
        rows = zip(self.images, self.hits, self.answers, strict=True)
        if any(hits > min(images, answers) for images, hits, answers in rows):
            return "a class has more hits than images or answers"
        if sum(self.answers) != total:
            return "there are not as many answers as images"
        return self._fault_of_wins() or self._fault_of_sure() or self._fault_of_cells()

    def _fault_of_wins(self) -> str:
        most = [2 * images * (self.total - images) for images in self.images]
        if self.wins and (len(self.wins) != len(most) or any(map(int.__gt__, self.wins, most))):
            return "wins counts more pairs than there are"
        looked = self.features
        if looked and (len(looked) != 4 or looked[1] > looked[0] or looked[3] > looked[2]):
            return "features counts more than there are"
        return ""

    def _fault_of_sure(self) -> str:
        rows = [self.sure[first : first + 3] for first in range(0, len(self.sure), 3)]
        if not rows:
            return ""
        if len(self.sure) != 3 * SURE_BINS or any(
            right > images or sums > SURE_UNIT * images for images, right, sums in rows
        ):
            return "sure counts more than there is"
        if [sum(row[n] for row in rows) for n in (0, 1)] != [self.total, sum(self.hits)]:
            return "sure does not count each answer once"
        return ""

    def _fault_of_cells(self) -> str:
        if not self.cells:
            return ""
        size, places = len(self.images), self.cells[::2]
        rising = all(a < b for a, b in pairwise(places))
        if len(self.cells) % 2 or not rising or places[-1] >= size**2:
            return "cells is no matrix"
        sums = [0] * size, [0] * size, [0] * size
        for place, count in zip(places, self.cells[1::2], strict=True):
            true, said = divmod(place, size)
            sums[0][true] += count
            sums[1][said] += count
            sums[2][true] += count * (true == said)
        whole = [*map(tuple, sums)] == [self.images, self.answers, self.hits]
        return "" if whole else "cells does not add up to images, answers and hits"

    def matrix(self) -> list[list[int]]:
        """The confusion matrix: ``matrix[true][answer]`` images; zeros if it was not kept."""
        size = len(self.images)
        flat = [0] * size**2
        for place, count in zip(self.cells[::2], self.cells[1::2], strict=True):
            flat[place] = count
        return [flat[first : first + size] for first in range(0, size**2, size)]


@dataclass(frozen=True, eq=False)
class AnswerTally:
    """The answers on a part of a test set, ready to be added to those on other parts."""

    classes: int
    truth: NDArray[np.int64]  # [N]
    answer: NDArray[np.int64]  # [N]
    odds: NDArray[np.uint16]  # [N, C] the bin of each score
    sure: NDArray[np.int64]  # [bins, 3], as in AnswerCounts
    features: NDArray[np.float32]  # [at most LOOKED, D] of some images


def empty_tally(classes: int) -> AnswerTally:
    """The tally of no image."""
    nothing = np.zeros(0, np.int64)
    odds = np.zeros((0, classes), np.uint16)
    sure = np.zeros((SURE_BINS, 3), np.int64)
    return AnswerTally(classes, nothing, nothing, odds, sure, np.zeros((0, 0), np.float32))


def tally_answers(scores: Tensor, y: Tensor, features: Tensor | None = None) -> AnswerTally:
    """Tally a batch from its class scores [B, C], classes [B] and, if known, features [B, D]."""
    classes = scores.shape[1]
    scores, y = scores.detach().cpu(), y.cpu()
    answer = scores.argmax(1)
    seen = torch.zeros(0, 0) if features is None else features[:: -(-len(features) // LOOKED)]
    return AnswerTally(
        classes,
        y.numpy().astype(np.int64),
        answer.numpy(),
        _odds_bins(scores),
        _sure_histogram(scores, answer == y),
        seen.detach().cpu().float().numpy(),
    )


def log_odds(scores: Tensor) -> Tensor:
    """How likely each class is against all others together, [B, C] float64; 0 if all are equal.

    log p - log(1 - p) + log(C - 1) with p the softmax of the scores: it orders images as p does,
    also where p would be rounded to 0 or 1.
    """
    exact = scores.double()
    log_p = exact.log_softmax(1)
    odds = log_p - torch.log(-torch.expm1(log_p))
    best = exact.argmax(1, keepdim=True)  # 1 - p of the likeliest class, from the other classes
    others = exact.scatter(1, best, -torch.inf).logsumexp(1, keepdim=True)
    odds = odds.scatter(1, best, exact.gather(1, best) - others)
    return odds + math.log(max(scores.shape[1] - 1, 1))


def _odds_bins(scores: Tensor) -> NDArray[np.uint16]:
    """The bin of each image's score for each class, in rising order."""
    odds = log_odds(scores).nan_to_num(0.0)
    places = torch.asinh(odds / FINEST).clamp(-REACH, REACH) * (ODDS_BINS / 2 / REACH)
    bins = (places + ODDS_BINS / 2).long().clamp(max=ODDS_BINS - 1)
    return bins.numpy().astype(np.uint16)


def _sure_histogram(scores: Tensor, right: Tensor) -> NDArray[np.int64]:
    """Images, right answers and the sum of confidences, by the confidence of the answer."""
    sure = scores.double().softmax(1).amax(1).nan_to_num(0.0)
    bins = (sure * SURE_BINS).long().clamp(0, SURE_BINS - 1)
    parts = torch.stack([torch.ones_like(bins), right.long(), (sure * SURE_UNIT).round().long()], 1)
    table = torch.zeros(SURE_BINS, 3, dtype=torch.long).index_add_(0, bins, parts)
    found: NDArray[np.int64] = table.numpy()
    return found


def add_tallies(parts: Sequence[AnswerTally]) -> AnswerTally:
    """The tally of a whole test set from those of its parts."""
    seen = [part.features for part in parts if len(part.features)]
    return AnswerTally(
        parts[0].classes,
        np.concatenate([part.truth for part in parts]),
        np.concatenate([part.answer for part in parts]),
        np.concatenate([part.odds for part in parts]),
        np.sum([part.sure for part in parts], axis=0),
        np.concatenate(seen) if seen else parts[0].features,
    )


def reduce_tally(tally: AnswerTally) -> AnswerCounts:
    """The whole numbers that are kept of a tally: no row of them is about a single image."""
    size, right = tally.classes, tally.answer == tally.truth
    places, counts = np.unique(tally.truth * size + tally.answer, return_counts=True)
    images, hits, answers = (
        np.bincount(labels, minlength=size)
        for labels in (tally.truth, tally.truth[right], tally.answer)
    )
    return AnswerCounts(
        images=_ints(images),
        hits=_ints(hits),
        answers=_ints(answers),
        wins=_ordered_pairs(tally),
        sure=_ints(tally.sure.flatten()),
        cells=_ints(np.stack([places, counts], 1).flatten()),
        features=_different_features(tally.features),
    )


def _ordered_pairs(tally: AnswerTally) -> Ints:
    """By class, twice the pairs in which its image has the higher score; equal bins count one."""
    found = []
    for place in range(tally.classes):
        own, bins = tally.truth == place, tally.odds[:, place]
        others = np.sort(bins[~own])
        below, up_to = (np.searchsorted(others, bins[own], side) for side in ("left", "right"))
        found.append(int(below.sum() + up_to.sum()))
    return tuple(found)


def _different_features(rows: NDArray[np.float32]) -> Ints:
    """How many features there are, how many never vary, and how many images differ in them."""
    if not rows.size:
        return ()
    known = np.nan_to_num(rows).clip(-1e30, 1e30)
    known = np.round(known / (np.abs(known).max() or 1.0), DECIMALS)  # rounding noise is no signal
    constant = int((known.max(0) == known.min(0)).sum())
    different = len({row.tobytes() for row in known + 0.0})  # plus nothing: -0 is 0
    return (known.shape[1], constant, len(known), different)


def add_counts(models: Sequence[AnswerCounts]) -> AnswerCounts:
    """The counts of several models on one test set, added up."""
    if len(models) == 1:
        return models[0]
    cells: dict[int, int] = {}
    for one in models:
        for place, count in zip(one.cells[::2], one.cells[1::2], strict=True):
            cells[place] = cells.get(place, 0) + count
    return AnswerCounts(
        images=_sums([one.images for one in models]),
        hits=_sums([one.hits for one in models]),
        answers=_sums([one.answers for one in models]),
        models=sum(one.models for one in models),
        wins=_sums([one.wins for one in models]),
        sure=_sums([one.sure for one in models]),
        cells=tuple(number for cell in sorted(cells.items()) for number in cell),
        features=_sums([one.features for one in models]),
    )


def _sums(rows: Sequence[Ints]) -> Ints:
    """Sums by place; nothing if one of the rows was not kept."""
    return tuple(map(sum, zip(*rows, strict=True))) if all(rows) else ()


def _ints(numbers: NDArray[np.int64]) -> Ints:
    return tuple(numbers.tolist())
