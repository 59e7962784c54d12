"""Scores other than accuracy, from counts of answers alone; all in per cent, with intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from protofed.core.answer_counts import SURE_BINS, SURE_UNIT, AnswerCounts

MetricName = Literal[
    "accuracy", "balanced_accuracy", "macro_f1", "kappa", "auroc", "calibration_error"
]
METRICS: tuple[MetricName, ...] = get_args(MetricName)
METRIC_LABELS: dict[MetricName, str] = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "macro_f1": "macro F1",
    "kappa": "Cohen's kappa",
    "auroc": "AUROC",
    "calibration_error": "calibration error",
}
METRIC_HEADS: dict[MetricName, str] = {  # of narrow columns
    **METRIC_LABELS,
    "balanced_accuracy": "balanced",
    "kappa": "kappa",
    "calibration_error": "cal. error",
}
LOWER_IS_BETTER: tuple[MetricName, ...] = ("calibration_error",)
NORMAL = 1.959963984540054  # of the normal distribution, for intervals of 95 %
DRAWS = 1000  # of the bootstrap
Numbers = NDArray[np.float64]


class Estimate(NamedTuple):
    """A score in per cent with its 95 % interval, and the number of test images behind it.

    `value` is None where it is not defined, as the precision of a class that was never answered;
    the interval is None where the counts that it needs were not kept.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    n: int = 0


class ClassScores(NamedTuple):
    """One class against all others: of its images, of other images, of answers for and against."""

    sensitivity: Estimate  # of the images of the class, how many were found
    specificity: Estimate  # of all other images, how many were not taken for it
    ppv: Estimate  # positive predictive value: of the answers for the class, how many were right
    npv: Estimate  # negative predictive value: of all other answers, how many were right
    auroc: Estimate


def wilson_interval(hits: float, total: float) -> Estimate:
    """A proportion in per cent with Wilson's interval, which holds for few images and near 0 %."""
    if not total:
        return Estimate(None)
    share, square = hits / total, NORMAL**2 / total
    middle = (share + square / 2) / (1 + square)
    reach = math.sqrt(square * (share * (1 - share) + square / 4)) / (1 + square)
    low, high = max(0.0, middle - reach), min(1.0, middle + reach)
    # at 0 and at 1 rounding must not leave the value outside
    return Estimate(
        100 * share, 100 * min(low, share), 100 * max(high, share), math.ceil(total - 1e-9)
    )


def largest_share(counts: AnswerCounts) -> float | None:
    """The share of test images of the largest class, in per cent: what a constant answer scores."""
    return 100 * max(counts.images) / counts.total if counts.total else None


def metric_value(name: MetricName, counts: AnswerCounts) -> float | None:
    """One metric of the answers on a test set, in per cent; None if it is not defined for them."""
    if not counts.total:
        return None
    if name == "auroc":
        return _mean_auroc(counts)
    if name == "calibration_error":
        return float(_calibration_error(_sure(counts))) if counts.sure else None
    tables = (np.array(part, float) for part in (counts.images, counts.hits, counts.answers))
    value = float(MARGINAL[name](*tables))
    return None if math.isnan(value) else value


def _accuracy(images: Numbers, hits: Numbers, answers: Numbers) -> Numbers:
    return _percent(hits.sum(-1), images.sum(-1))


def _balanced_accuracy(images: Numbers, hits: Numbers, answers: Numbers) -> Numbers:
    """The mean sensitivity of the classes that have test images."""
    return _mean_where(_percent(hits, images), images > 0)


def _macro_f1(images: Numbers, hits: Numbers, answers: Numbers) -> Numbers:
    """The mean F1 of the classes that have test images or were answered."""
    return _mean_where(_percent(2 * hits, images + answers), images + answers > 0)


def _kappa(images: Numbers, hits: Numbers, answers: Numbers) -> Numbers:
    """Cohen's: how far agreement goes beyond what the same answers at random would have."""
    total = images.sum(-1)
    chance = (images * answers).sum(-1) / np.maximum(total, 1) ** 2
    agreed = hits.sum(-1) / np.maximum(total, 1)
    return _percent(agreed - chance, 1 - chance)


Marginal = Callable[[Numbers, Numbers, Numbers], Numbers]  # of [..., C] images, hits, answers
MARGINAL: dict[str, Marginal] = {
    "accuracy": _accuracy,
    "balanced_accuracy": _balanced_accuracy,
    "macro_f1": _macro_f1,
    "kappa": _kappa,
}


def _percent(part: Numbers, whole: Numbers) -> Numbers:
    """100 part / whole; NaN where the whole is nothing."""
    safe = np.where(np.abs(whole) > 1e-12, whole, 1.0)
    found: Numbers = np.where(np.abs(whole) > 1e-12, 100 * part / safe, np.nan)
    return found


def _mean_where(values: Numbers, counted: NDArray[np.bool_]) -> Numbers:
    """The mean over classes of those values that count."""
    sums: Numbers = np.where(counted, values, 0.0).sum(-1)
    return np.asarray(sums / np.maximum(counted.sum(-1), 1))


def class_auroc(counts: AnswerCounts) -> list[Estimate]:
    """For each class, how often one of its images has a higher score for it than another image.

    Intervals are those of Hanley and McNeil (1982), which need no histogram. A class without
    images, or without others, has no value.
    """
    if not counts.wins:
        return [Estimate(None) for _ in counts.images]
    return [
        _auroc(wins / (2 * counts.models), images / counts.models, counts.total / counts.models)
        for wins, images in zip(counts.wins, counts.images, strict=True)
    ]


def _auroc(pairs: float, images: float, total: float) -> Estimate:
    others = total - images
    if not images or not others:
        return Estimate(None)
    area = min(1.0, pairs / (images * others))
    above, below = area / (2 - area), 2 * area**2 / (1 + area)
    spread = (
        area * (1 - area)
        + (images - 1) * max(0.0, above - area**2)
        + (others - 1) * max(0.0, below - area**2)
    )
    reach = NORMAL * math.sqrt(spread / (images * others))
    if not reach:  # few images without a mistake do not prove that there is none
        reach = 1 - (wilson_interval(few := min(images, others), few).low or 0.0) / 100
    low, high = max(0.0, area - reach), min(1.0, area + reach)
    return Estimate(100 * area, 100 * low, 100 * high, round(total))


def _mean_auroc(counts: AnswerCounts) -> float | None:
    known = [one.value for one in class_auroc(counts) if one.value is not None]
    return sum(known) / len(known) if known else None


def _sure(counts: AnswerCounts) -> Numbers:
    """Images, right answers and sum of confidences by bin, [10, 3]."""
    table = np.array(counts.sure, float).reshape(SURE_BINS, 3)
    table[:, 2] /= SURE_UNIT
    return table


def _calibration_error(table: Numbers) -> Numbers:
    """Expected calibration error: |accuracy - confidence| of [..., bins, 3], weighted by images."""
    gaps = np.abs(table[..., 1] - table[..., 2]).sum(-1)
    return _percent(gaps, table[..., 0].sum(-1))


def estimate_metric(name: MetricName, counts: AnswerCounts) -> Estimate:
    """A metric with its 95 % interval.

    Wilson's for accuracy, Hanley and McNeil's for AUROC (for the mean of classes, as wide as if
    their errors were the same), else the bootstrap with 1000 draws of as many test images.
    """
    value = metric_value(name, counts)
    images = counts.total // max(counts.models, 1)
    if value is None:
        return Estimate(None, n=images)
    if name == "accuracy":
        return wilson_interval(sum(counts.hits) / counts.models, images)
    if name == "auroc":
        known = [one for one in class_auroc(counts) if one.value is not None]
        reaches = [
            ((one.value or 0) - (one.low or 0), (one.high or 0) - (one.value or 0)) for one in known
        ]
        down, up = (sum(part) / len(known) for part in zip(*reaches, strict=True))
        return Estimate(value, max(0.0, value - down), min(100.0, value + up), images)
    drawn = _drawn_sure(counts) if name == "calibration_error" else _drawn_answers(name, counts)
    if drawn is None:
        return Estimate(value, n=images)
    low, high = np.nanpercentile(drawn, [2.5, 97.5]).tolist()
    if sum(counts.hits) == counts.total and name != "calibration_error":  # as right in every draw
        low = wilson_interval(images, images).low or 0.0
    return Estimate(value, min(low, value), max(min(high, 100.0), value), images)


def _draws(counts: Sequence[float] | Numbers, images: int) -> Numbers:
    """The bootstrap: how many of as many test images fall into each cell, in each draw."""
    shares = np.array(counts, float)
    chance = np.random.default_rng(0)  # equal counts have equal intervals
    return chance.multinomial(images, shares / shares.sum(), DRAWS).astype(float)


def _drawn_answers(name: MetricName, counts: AnswerCounts) -> Numbers | None:
    """The metric in each draw from the confusion matrix."""
    return MARGINAL[name](*_drawn_marginals(counts)) if counts.cells else None


@lru_cache(maxsize=4)  # several metrics of one domain follow each other
def _drawn_marginals(counts: AnswerCounts) -> tuple[Numbers, Numbers, Numbers]:
    """Images, hits and answers by class in each draw from the confusion matrix, [draws, C]."""
    size, places = len(counts.images), np.array(counts.cells[::2])
    drawn = _draws(counts.cells[1::2], counts.total // counts.models)  # [draws, cells]
    true, said = places // size, places % size
    right = true == said
    return (
        _sums_by(true, drawn, size),
        _sums_by(true[right], drawn[:, right], size),
        _sums_by(said, drawn, size),
    )


def _sums_by(labels: NDArray[np.int64], drawn: Numbers, size: int) -> Numbers:
    """The columns of drawn [draws, cells] added up by their labels, [draws, size]."""
    order = np.argsort(labels, kind="stable")
    known, firsts = np.unique(labels[order], return_index=True)
    sums: Numbers = np.zeros((len(drawn), size))
    if len(known):
        sums[:, known] = np.add.reduceat(drawn[:, order], firsts, axis=1)
    return sums


def _drawn_sure(counts: AnswerCounts) -> Numbers:
    """The calibration error in each draw of right and wrong answers from the bins."""
    images, right, sums = _sure(counts).T
    cells = np.concatenate([right, images - right])
    drawn = _draws(cells, counts.total // counts.models)
    hits, misses = drawn[:, :SURE_BINS], drawn[:, SURE_BINS:]
    mean = sums / np.maximum(images, 1)
    table = np.stack([hits + misses, hits, (hits + misses) * mean], axis=-1)
    return _calibration_error(table)


def class_scores(counts: AnswerCounts) -> list[ClassScores]:
    """Sensitivity, specificity, predictive values and AUROC of each class, against all others."""
    models = counts.models
    total = counts.total / models
    found = []
    rows = zip(counts.images, counts.hits, counts.answers, class_auroc(counts), strict=True)
    for images, hits, answers, area in rows:
        n, right, said = images / models, hits / models, answers / models
        spared = total - n - (said - right)  # other images that were not taken for the class
        found.append(
            ClassScores(
                sensitivity=wilson_interval(right, n),
                specificity=wilson_interval(spared, total - n),
                ppv=wilson_interval(right, said),
                npv=wilson_interval(spared, total - said),
                auroc=area,
            )
        )
    return found


def format_estimate(found: Estimate) -> str:
    """A score with its interval as text: ``81.25 [75.01, 86.30]``; ``-`` if it is not defined."""
    if found.value is None:
        return "-"
    if found.low is None or found.high is None:
        return f"{found.value:.2f}"
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"
