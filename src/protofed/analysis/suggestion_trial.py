"""Try a suggested spec for a minute beside plain averaging, on images held out from both."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

from protofed.experiment.runner import run
from protofed.federation.evaluation import DomainScores
from protofed.runtime.text_tables import TextTable
from protofed.spec.spec_parser import Raw, parse_experiment

HELD_OUT = 0.2  # of each client's training examples
BEYOND_NOISE = 2.0  # standard errors
ENOUGH_ROUNDS = 5  # before which a net has hardly learnt: nothing is refuted by then


class SuggestionTrial(NamedTuple):
    """What a short trial said: both scores after the same rounds, on the same held-out examples."""

    rounds: int
    examples: dict[str, int]  # held out, by domain
    plain: DomainScores
    suggested: DomainScores

    @property
    def difference(self) -> float:
        """How much better the suggestion is, in points of the mean over domains."""
        return (self.suggested.mean or 0.0) - (self.plain.mean or 0.0)

    @property
    def error(self) -> float:
        """The standard error of the difference, as if the two had answered independently.

        They answer the same examples, so the true one is smaller; what another seed would change is
        not in it.
        """
        variances = [
            share * (100 - share) / self.examples[name]
            for scores in (self.plain, self.suggested)
            for name, share in scores.domains.items()
            if share is not None
        ]
        return math.sqrt(sum(variances)) / max(len(self.examples), 1)

    @property
    def verdict(self) -> str:
        """In words: better, worse, no difference beyond noise, or that it is too early to tell."""
        if self.rounds < ENOUGH_ROUNDS:
            return f"too few rounds to tell, fewer than {ENOUGH_ROUNDS}"
        if abs(self.difference) <= BEYOND_NOISE * self.error:
            return "no difference beyond noise"
        return "the suggestion is better" if self.difference > 0 else "the suggestion is worse"

    @property
    def refuted(self) -> bool:
        """Whether plain averaging did better, beyond noise and after enough rounds."""
        return self.rounds >= ENOUGH_ROUNDS and self.difference < -BEYOND_NOISE * self.error

    def table(self) -> TextTable:
        """Both scores by domain."""
        rows = [
            [name, *(_percent(scores.domains[name]) for scores in (self.plain, self.suggested))]
            for name in self.plain.domains
        ]
        rows += [
            [name, *(_percent(getattr(scores, name)) for scores in (self.plain, self.suggested))]
            for name in ("mean", "worst")
        ]
        return TextTable(
            ["accuracy % on held-out", "plain", "suggested"], rows, line_before=len(rows) - 2
        )

    def summary(self) -> str:
        """One line: the difference, what it means, and on how many examples."""
        count = sum(self.examples.values())
        return (
            f"{self.difference:+.1f} ± {BEYOND_NOISE * self.error:.1f} points after {self.rounds} "
            f"rounds, on {count} training examples that neither saw: {self.verdict}"
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain data, ready for JSON."""
        return {
            "rounds": self.rounds,
            "examples": self.examples,
            "plain": self.plain.to_dict(),
            "suggested": self.suggested.to_dict(),
            "difference": self.difference,
            "error": self.error,
            "verdict": self.verdict,
        }


def try_suggestion(
    suggested: Raw, plain: Raw, folder: Path, seconds: float = 60.0
) -> SuggestionTrial:
    """Train both specs for as many rounds as fit into the time together; at least one round.

    A fifth of each client's training examples is held out and scored; test examples are not used.
    `folder` takes the two run folders.
    """
    experiments = {
        name: parse_experiment({**raw, "validation": HELD_OUT})
        for name, raw in (("plain", plain), ("suggested", suggested))
    }
    first = [run(e, folder / n, stop_after=1, progress=False) for n, e in experiments.items()]
    each = sum(result.seconds for result in first)
    most = experiments["suggested"].rounds
    rounds = max(1, min(most, int(seconds / max(each, 0.1))))
    without, with_all = (
        run(e, folder / n, stop_after=rounds, progress=False) for n, e in experiments.items()
    )
    examples = {name: counts.total for name, counts in without.history[-1].counts.items()}
    return SuggestionTrial(rounds, examples, without.last, with_all.last)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
