"""Statistics for a handful of seeds: paired differences, an honest test, ranks over seeds.

`scipy.stats` is imported where it is used: it takes half a second, and a single seed needs none.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

LEVEL = 0.95  # of intervals
FEWEST_BLOCKS = 10  # with which the ranks of methods are tested
FEWEST_RANKED = 3  # methods; two are tested by their paired difference


class SeedSpread(NamedTuple):
    """Mean and sample standard deviation of some values; no deviation for a single value."""

    mean: float
    std: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> SeedSpread:
        """The spread of at least one value."""
        several = len(values) > 1
        return cls(statistics.fmean(values), statistics.stdev(values) if several else None)


class PairedDifference(NamedTuple):
    """The difference of two methods over runs that share their seeds.

    `low` and `high` bound the mean in a 95 % interval (Student's t), None for a single pair. `p` is
    two-sided (Wilcoxon's signed ranks), None if there are too few pairs to reach 5 %.
    """

    mean: float
    low: float | None
    high: float | None
    p: float | None
    pairs: int


def fewest_pairs(tests: int) -> int:
    """The fewest pairs with which Wilcoxon's p can reach 0.05 after Holm's correction.

    `tests` is the number of methods tested. The smallest p of n pairs is 2 / 2^n: 6 pairs for one
    test, 7 for two, 9 for seven.
    """
    return math.ceil(math.log2(2 * tests / (1 - LEVEL)))


def paired_difference(
    ours: Sequence[float], theirs: Sequence[float], tests: int = 1
) -> PairedDifference:
    """Compare two methods run by run; both lists are in the order of the seeds.

    `tests` is the number of such comparisons that are made at once, which decides how many pairs a
    test needs. The p-value is not corrected here: see `holm_correction`.
    """
    gaps = [a - b for a, b in zip(ours, theirs, strict=True)]
    mean, std = SeedSpread.of(gaps)
    if std is None:
        return PairedDifference(mean, None, None, None, 1)
    from scipy import stats

    reach = float(stats.t.ppf((1 + LEVEL) / 2, len(gaps) - 1)) * std / math.sqrt(len(gaps))
    return PairedDifference(mean, mean - reach, mean + reach, _signed_rank(gaps, tests), len(gaps))


def t_statistic(difference: PairedDifference) -> float | None:
    """Student's t of a paired difference, from its interval; None for a single pair.

    Infinite if the difference was the same in all pairs.
    """
    if difference.low is None or difference.high is None:
        return None
    reach = (difference.high - difference.low) / 2
    if not reach:
        return math.copysign(math.inf, difference.mean) if difference.mean else 0.0
    from scipy import stats

    return difference.mean / reach * float(stats.t.ppf((1 + LEVEL) / 2, difference.pairs - 1))


def sign_confidence(difference: PairedDifference, sign: float) -> float | None:
    """How sure it is that the true mean difference has the sign of `sign`, from 0 to 1.

    One minus the one-sided p-value of Student's t-test over the pairs, which takes the differences
    as normal; it works from two pairs on.
    """
    statistic = t_statistic(difference)
    if statistic is None:
        return None
    from scipy import stats

    return float(stats.t.cdf(math.copysign(1.0, sign) * statistic, difference.pairs - 1))


def t_test_p(difference: PairedDifference) -> float | None:
    """The two-sided p-value of Student's paired t-test; None for a single pair."""
    sure = sign_confidence(difference, difference.mean)
    return None if sure is None else 2 * (1 - sure)


def _signed_rank(gaps: Sequence[float], tests: int) -> float | None:
    if len(gaps) < fewest_pairs(tests):
        return None
    if not any(gaps):
        return 1.0
    from scipy import stats

    return float(stats.wilcoxon(gaps).pvalue)


def holm_correction(ps: Sequence[float | None]) -> list[float | None]:
    """Correct p-values of several tests against one baseline (Holm's step-down method).

    Tests that were not made stay None and are not counted.
    """
    made = sorted((p, place) for place, p in enumerate(ps) if p is not None)
    corrected: list[float | None] = [None] * len(ps)
    highest = 0.0
    for rank, (p, place) in enumerate(made):
        highest = max(highest, min(1.0, p * (len(made) - rank)))
        corrected[place] = highest
    return corrected


class MeanRanks(NamedTuple):
    """The mean rank of each method over independent blocks, and whether the ranks differ.

    `p` belongs to Friedman's test that all methods are alike. It is None for fewer than three
    methods, and for fewer blocks than `FEWEST_BLOCKS`, as its distribution holds for many blocks.
    Two methods differ at 5 % if their mean ranks are further apart than `critical` (Nemenyi), which
    is None unless Friedman's test has found a difference.
    """

    means: dict[str, float]  # 1 is best
    blocks: int
    p: float | None
    critical: float | None


def mean_ranks(scores: Mapping[str, Sequence[float]]) -> MeanRanks:
    """Rank the methods within each block and average; rank 1 is the best score.

    `scores` maps each method to its scores [blocks]. Blocks must be independent repeats: the seeds,
    not the domains of one run, which one and the same model was scored on. Ties share the mean of
    their ranks.
    """
    from scipy import stats

    table = np.array(list(scores.values()))  # [methods, blocks]
    means = stats.rankdata(-table, axis=0).mean(1)
    named = dict(zip(scores, means.tolist(), strict=True))
    methods, blocks = table.shape
    if methods < FEWEST_RANKED or blocks < FEWEST_BLOCKS:
        return MeanRanks(named, blocks, None, None)
    if not np.ptp(table, axis=0).any():  # all alike, which scipy cannot divide by
        return MeanRanks(named, blocks, 1.0, None)
    p = float(stats.friedmanchisquare(*table).pvalue)
    q = float(stats.studentized_range.ppf(LEVEL, methods, np.inf)) / math.sqrt(2)
    critical = q * math.sqrt(methods * (methods + 1) / (6 * blocks))
    return MeanRanks(named, blocks, p, critical if p < 1 - LEVEL else None)
