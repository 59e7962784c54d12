from __future__ import annotations

import importlib
import math
import statistics

import numpy as np
import pytest
from scipy import stats

from protofed.analysis.statistics import (
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


def test_ranks_and_friedman_are_those_of_scipy() -> None:
    scores = {name: DRAW.normal(60 + place, 3, 4).tolist() for place, name in enumerate("abcd")}
    found = mean_ranks(scores)
    for block in range(4):
        order = sorted(scores, key=lambda name: -scores[name][block])
        for name in scores:
            scores[name].append(float(order.index(name) + 1))  # the rank, after the four scores
    for name, line in scores.items():
        assert found.means[name] == pytest.approx(statistics.fmean(line[4:]))
    p = stats.friedmanchisquare(*(line[:4] for line in scores.values())).pvalue
    assert found.p == pytest.approx(p)


def test_nemenyi_draws_the_line_where_scikit_posthocs_does() -> None:
    """Mean ranks at the critical difference have p = 0.05 there."""
    table = DRAW.normal(60, 3, (7, 4))  # blocks x methods
    found = mean_ranks({str(n): table[:, n].tolist() for n in range(4)})
    assert found.critical is not None
    theirs = scikit_posthocs.posthoc_nemenyi_friedman(table).to_numpy()
    for one in range(4):
        for other in range(one):
            apart = abs(found.means[str(one)] - found.means[str(other)])
            assert (apart > found.critical) == (theirs[one, other] < 0.05)


def test_fewer_than_three_methods_have_ranks_and_no_test() -> None:
    assert mean_ranks({"a": [1.0, 2.0], "b": [2.0, 3.0]}) == ({"a": 2.0, "b": 1.0}, None, None)
