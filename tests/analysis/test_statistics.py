from __future__ import annotations

import importlib
import math
import statistics

import numpy as np
import pytest
from scipy import stats

from protofed.analysis.statistics import (
    FEWEST_BLOCKS,
    SeedSpread,
    fewest_pairs,
    holm_correction,
    mean_ranks,
    paired_difference,
)

scikit_posthocs = importlib.import_module("scikit_posthocs")  # it has no types
DRAW = np.random.default_rng(0)


def test_one_value_has_no_deviation() -> None:
    assert SeedSpread.of([3.0]) == SeedSpread(3.0, None)
    assert SeedSpread.of([1.0, 3.0]) == SeedSpread(2.0, math.sqrt(2))


@pytest.mark.parametrize("pairs", [2, 3, 5, 6, 12])
def test_the_interval_is_students_of_the_differences(pairs: int) -> None:
    ours, theirs = DRAW.normal(60, 2, pairs).tolist(), DRAW.normal(58, 2, pairs).tolist()
    found = paired_difference(ours, theirs)
    test = stats.ttest_rel(ours, theirs)
    low, high = test.confidence_interval(0.95)
    assert found.low == pytest.approx(low)
    assert found.high == pytest.approx(high)
    assert found.mean == pytest.approx(statistics.fmean(ours) - statistics.fmean(theirs))


def test_one_pair_has_a_difference_and_nothing_else() -> None:
    assert paired_difference([61.0], [60.0]) == (1.0, None, None, None, 1)


def test_too_few_pairs_get_no_p_value_because_it_could_not_be_small() -> None:
    for pairs in range(2, fewest_pairs(1)):
        clear = [float(n) for n in range(1, pairs + 1)]  # all on one side: the smallest p there is
        assert stats.wilcoxon(clear).pvalue > 0.05
        assert paired_difference(clear, [0.0] * pairs).p is None
    clear = [float(n) for n in range(1, 7)]
    assert paired_difference(clear, [0.0] * 6).p == stats.wilcoxon(clear).pvalue < 0.05


@pytest.mark.parametrize(("tests", "pairs"), [(1, 6), (2, 7), (7, 9), (21, 10)])
def test_several_tests_need_more_pairs_for_a_p_value_that_can_be_small(
    tests: int, pairs: int
) -> None:
    assert fewest_pairs(tests) == pairs
    for number, small in ((pairs, True), (pairs - 1, False)):
        clear = [float(n) for n in range(1, number + 1)]
        least = holm_correction([float(stats.wilcoxon(clear).pvalue)] * tests)[0]
        assert least is not None
        assert (least <= 0.05) == small
        assert (paired_difference(clear, [0.0] * number, tests).p is not None) == small


def test_equal_runs_do_not_differ() -> None:
    found = paired_difference([50.0] * 8, [50.0] * 8)
    assert (found.mean, found.low, found.high, found.p) == (0.0, 0.0, 0.0, 1.0)


def test_holm_is_that_of_statsmodels_and_keeps_the_gaps() -> None:
    multipletests = importlib.import_module("statsmodels.stats.multitest").multipletests
    for size in (1, 2, 5, 9):
        ps = DRAW.uniform(0, 0.2, size).tolist()
        assert holm_correction(ps) == pytest.approx(multipletests(ps, method="holm")[1].tolist())
    assert holm_correction([0.01, None, 0.02]) == [pytest.approx(0.02), None, pytest.approx(0.02)]


@pytest.mark.parametrize("blocks", [4, FEWEST_BLOCKS, 15])
def test_ranks_and_friedman_are_those_of_scipy(blocks: int) -> None:
    scores = {n: DRAW.normal(60 + place, 3, blocks).tolist() for place, n in enumerate("abcd")}
    found = mean_ranks(scores)
    ranks: dict[str, list[int]] = {name: [] for name in scores}
    for block in range(blocks):
        order = sorted(scores, key=lambda name: -scores[name][block])
        for name in scores:
            ranks[name].append(order.index(name) + 1)
    for name, line in ranks.items():
        assert found.means[name] == pytest.approx(statistics.fmean(line))
    p = stats.friedmanchisquare(*scores.values()).pvalue
    assert found.blocks == blocks
    assert found.p == (None if blocks < FEWEST_BLOCKS else pytest.approx(p))


def test_nemenyi_draws_the_line_where_scikit_posthocs_does() -> None:
    """Mean ranks at the critical difference have p = 0.05 there."""
    table = DRAW.normal([60, 61, 64, 68], 3, (12, 4))  # blocks x methods
    found = mean_ranks({str(n): table[:, n].tolist() for n in range(4)})
    assert found.critical is not None
    theirs = scikit_posthocs.posthoc_nemenyi_friedman(table).to_numpy()
    told = set()
    for one in range(4):
        for other in range(one):
            apart = abs(found.means[str(one)] - found.means[str(other)])
            assert (apart > found.critical) == (theirs[one, other] < 0.05)
            told.add(apart > found.critical)
    assert told == {True, False}


def test_pairs_are_not_tested_where_friedman_finds_nothing() -> None:
    alike = {name: DRAW.normal(60, 3, 12).tolist() for name in "abc"}
    found = mean_ranks(alike)
    assert found.p is not None
    assert found.p > 0.05
    assert found.critical is None
    assert mean_ranks(dict.fromkeys("abc", [50.0] * 12))[2:] == (1.0, None)


@pytest.mark.parametrize("methods", [3, 5, 9])
def test_equal_methods_are_told_apart_in_one_table_of_twenty(methods: int) -> None:
    """With the fewest blocks that are tested, the approximations of both tests hold."""
    draw, times = np.random.default_rng(methods), 400
    wrong = [0, 0]
    for _ in range(times):
        scores = draw.normal(60, 1, (methods, FEWEST_BLOCKS))
        found = mean_ranks({str(n): row.tolist() for n, row in enumerate(scores)})
        assert found.p is not None
        wrong[0] += found.p < 0.05
        means = found.means.values()
        wrong[1] += found.critical is not None and max(means) - min(means) > found.critical
    for count in wrong:  # a right test errs less often than that in 999 of 1000 such trials
        assert stats.binomtest(count, times, 0.05, alternative="greater").pvalue > 0.001


def test_the_domains_of_one_run_would_tell_equal_methods_apart() -> None:
    """Why seeds are the blocks: what is luck of one training shows in all its domains."""
    draw, times, wrong = np.random.default_rng(0), 200, 0
    for _ in range(times):
        run = draw.normal(0, 1, (5, 1))
        domains = 60 + run + draw.normal(0, 1, (5, 4))  # methods x domains, half of it shared
        wrong += bool(stats.friedmanchisquare(*domains).pvalue < 0.05)
    assert wrong / times > 1 / 3


def test_fewer_than_three_methods_have_ranks_and_no_test() -> None:
    scores = {"a": [1.0, 2.0] * 6, "b": [2.0, 3.0] * 6}
    assert mean_ranks(scores) == ({"a": 2.0, "b": 1.0}, 12, None, None)
