"""Whether a paper's differences to its baseline hold in our runs, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from protofed.analysis.statistics import (
    PairedDifference,
    holm_correction,
    sign_confidence,
    t_test_p,
)
from protofed.paper_tables.paper_comparison import ComparedRow

SURE = 0.95
Verdict = Literal["holds", "same sign", "other sign", "does not hold", "one seed"]


class Claim(NamedTuple):
    """One row's difference to the baseline, in the paper and in our paired seeds.

    `confidence` is how sure our runs are of the paper's sign (one-sided t-test over the seeds), `p`
    the two-sided p-value that there is no difference at all, corrected by Holm's method for all
    rows of the table. Both are None with a single seed.
    """

    label: str
    paper: float
    ours: PairedDifference
    confidence: float | None
    p: float | None

    @property
    def verdict(self) -> Verdict:
        """In words: the sign is the paper's or not, and whether that is sure at 95 %."""
        if self.confidence is None:
            return "one seed"
        if self.confidence >= SURE:
            return "holds"
        if self.confidence <= 1 - SURE:
            return "does not hold"
        return "same sign" if self.confidence > 0.5 else "other sign"

    def __str__(self) -> str:
        """The verdict with its confidence: ``holds (97 %)``."""
        if self.confidence is None:
            return self.verdict
        return f"{self.verdict} ({100 * self.confidence:.0f} %)"


def judge_claims(lines: Sequence[ComparedRow]) -> dict[str, Claim]:
    """The claims of a table by row; rows without a difference in the paper or in ours have none."""
    found = [(row.label, row.paper_delta, row.our_delta) for row in lines if row.known]
    pairs = [(label, paper, ours) for label, paper, ours in found if ours is not None]
    ps = holm_correction([t_test_p(ours) for _, _, ours in pairs])
    return {
        label: Claim(label, paper, ours, sign_confidence(ours, paper), p)
        for (label, paper, ours), p in zip(pairs, ps, strict=True)
        if paper is not None
    }
