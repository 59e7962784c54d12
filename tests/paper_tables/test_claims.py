"""Whether a claim holds: Student's paired t-test, with scipy's as the oracle."""

from __future__ import annotations

import math
import random

import pytest
from scipy import stats

from protofed.analysis.statistics import (
    PairedDifference,
    SeedSpread,
    holm_correction,
    paired_difference,
    sign_confidence,
    t_test_p,
)
from protofed.paper_tables.claims import judge_claims
from protofed.paper_tables.paper_comparison import ComparedRow


def row(
    label: str, gaps: list[float] | None, paper: float | None, known: bool = True
) -> ComparedRow:
    delta = None if gaps is None else paired_difference(gaps, [0.0] * len(gaps))
    ours: dict[str, SeedSpread | None] = {"A": SeedSpread(50.0, 1.0)}
    return ComparedRow(label, ours, {"A": 50.0}, None, delta, paper, known, ("abc",))


@pytest.mark.parametrize("seed", range(50))
def test_confidence_and_p_are_those_of_a_paired_t_test(seed: int) -> None:
    dice = random.Random(seed)
    pairs = dice.randint(2, 12)
    ours = [dice.gauss(1, 2) for _ in range(pairs)]
    theirs = [dice.gauss(0, 2) for _ in range(pairs)]
    difference = paired_difference(ours, theirs)
    two = stats.ttest_rel(ours, theirs)
    assert t_test_p(difference) == pytest.approx(two.pvalue)
    more = stats.ttest_rel(ours, theirs, alternative="greater").pvalue
    assert sign_confidence(difference, 1.0) == pytest.approx(1 - more)
    assert sign_confidence(difference, -1.0) == pytest.approx(more)


def test_equal_differences_are_certain_and_none_is_undecided() -> None:
    assert sign_confidence(PairedDifference(2.0, 2.0, 2.0, None, 3), 1) == 1.0
    assert sign_confidence(PairedDifference(2.0, 2.0, 2.0, None, 3), -1) == 0.0
    assert sign_confidence(PairedDifference(0.0, 0.0, 0.0, None, 3), 1) == 0.5
    assert sign_confidence(PairedDifference(2.0, None, None, None, 1), 1) is None
    assert t_test_p(PairedDifference(2.0, None, None, None, 1)) is None


def test_claims_have_a_verdict_and_p_values_corrected_for_all_rows() -> None:
    rows = [
        row("base", None, None),
        row("sure", [2.0, 2.2, 1.9], 3.0),
        row("weak", [2.0, -1.5, 1.0], 3.0),
        row("against", [2.0, 2.1, 1.9], -1.0),
        row("maybe not", [2.0, -1.5, 1.0], -1.0),
        row("ours alone", [1.0, 2.0, 1.2], None),
        row("misprinted", [1.0, 2.0, 1.2], 2.0, known=False),
        row("one", [1.0], 2.0),
    ]
    claims = judge_claims(rows)
    assert {label: claim.verdict for label, claim in claims.items()} == {
        "sure": "holds",
        "weak": "same sign",
        "against": "does not hold",
        "maybe not": "other sign",
        "one": "one seed",
    }
    assert str(claims["sure"]).startswith("holds (")
    assert str(claims["one"]) == "one seed"
    known = [r for r in rows if r.our_delta is not None and r.known]
    ps = holm_correction([t_test_p(r.our_delta) for r in known if r.our_delta])
    for r, p in zip(known, ps, strict=True):
        if r.label in claims:
            assert claims[r.label].p == p
    assert math.isclose(
        claims["sure"].confidence or 0, 1 - stats.ttest_1samp([2.0, 2.2, 1.9], 0).pvalue / 2
    )
