"""A fair tuning of several methods: one search each, with the same budget, on held-out images.

Every method gets the same number of trials, rounds and seeds, for the learning rate and the one or
two weights that it names (`Method.tuned`). No trial sees a test image.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from protofed.analysis.search import (
    SearchPlan,
    SearchTrial,
    best_trial,
    describe_settings,
    format_score,
    plan_search,
    protocol_record,
)
from protofed.errors import ProtofedError, count_noun
from protofed.experiment.result import ScoreRule
from protofed.runtime.text_tables import RankedCell, TableDocument, TextTable
from protofed.spec.spec_parser import Raw, choose_named, format_assignment, parse_experiment

LEARNING_RATES = "log:0.003..0.1"
TRIALS = 9


class TunedMethod(NamedTuple):
    """What became of one method's search: its plan and its trials."""

    plan: SearchPlan
    trials: Sequence[SearchTrial]

    @property
    def best(self) -> SearchTrial | None:
        """The finished trial with the best held-out score."""
        return best_trial(self.trials)

    @property
    def word(self) -> str:
        """The method with its best settings, as `compare` takes it: ``fpl:tau=0.1``.

        Without a finished trial it is the method with its defaults.
        """
        fields = self.best.settings if self.best else {}
        named = [format_assignment(f.removeprefix("method."), v) for f, v in fields.items()]
        return f"{self.plan.method}:{','.join(named)}" if named else self.plan.method

    def to_dict(self, rule: ScoreRule) -> dict[str, Any]:
        """As plain data, ready for JSON."""
        best = self.best
        return {
            "method": self.plan.method,
            "settings": best.settings if best else None,
            "score": best.mean if best else None,
            "protocol": protocol_record(self.plan, self.trials, rule),
            "trials": [trial.to_dict() for trial in self.trials],
        }


def plan_tuning(
    methods: Sequence[str],
    raw: Raw,
    runs: Path = Path("runs"),
    trials: int = TRIALS,
    seeds: int = 1,
    rungs: int = 2,
    eta: int = 3,
    learning_rates: str = LEARNING_RATES,
) -> list[SearchPlan]:
    """Check the searches of all methods before anything runs.

    `learning_rates` is a range or a choice as `parse_axis` reads it, the same for all. ::

        plan_tuning(["fedavg", "fpl"], {"data": "office-caltech", "rounds": 40})
    """
    if len(set(methods)) < len(methods):
        raise ProtofedError("tune: a method is named more than once")
    return [
        plan_search(
            name, tuning_axes(name, raw, learning_rates), raw, runs, trials, seeds, rungs, eta
        )
        for name in methods
    ]


def tuning_axes(method: str, raw: Raw, learning_rates: str = LEARNING_RATES) -> list[str]:
    """What is searched for a method: the learning rate, and the fields that it names as tuned.

    Fields that `raw` sets, as the flag ``--set method.tau=0.1`` does, are not searched.
    """
    chosen = choose_named(raw, "method", method)
    tuned = parse_experiment(chosen).method.tuned
    own = {name: values for name, values in tuned.items() if name not in chosen["method"]}
    return [
        f"training.lr={learning_rates}",
        *(f"method.{name}={values}" for name, values in own.items()),
    ]


def tuning_document(tuned: Sequence[TunedMethod], rule: ScoreRule, command: str) -> TableDocument:
    """The best settings of every method, the budget that all had, and the final test's command."""
    best = {one.plan.method: one.best for one in tuned}
    scores = sorted((t.mean or 0.0 for t in best.values() if t), reverse=True)
    head = ["method", "best settings", "held-out accuracy %", "trials", "rounds", "digest"]
    rows = [_row(one, scores) for one in tuned]
    content = {"methods": [one.to_dict(rule) for one in tuned], "command": command}
    notes = [*_notes(tuned), "the final runs, scored on the test images:", command]
    return TableDocument([TextTable(head, rows)], content, notes=notes)


def _row(one: TunedMethod, scores: Sequence[float]) -> list[str | RankedCell]:
    best = one.best
    played = sum(trial.rounds for trial in one.trials) * one.plan.seeds
    if best is None:
        return [
            one.plan.method,
            "no trial was finished",
            "-",
            str(len(one.trials)),
            str(played),
            "",
        ]
    place = scores.index(best.mean or 0.0)
    score = RankedCell(format_score(best), "best" if place == 0 else "second" if place == 1 else "")
    digests = ", ".join(cell.experiment.digest[:12] for cell in best.cells)
    return [
        one.plan.method,
        describe_settings(best.settings),
        score,
        str(len(one.trials)),
        str(played),
        digests,
    ]


def _notes(tuned: Sequence[TunedMethod]) -> list[str]:
    plan = tuned[0].plan
    budget = f"{count_noun(plan.trials, 'trial')} of up to {plan.experiment.rounds} rounds"
    seeds = count_noun(plan.seeds, "seed")
    return [
        f"every method had the same budget: {budget}, {seeds} each",
        f"scored on {plan.experiment.validation_images}, not on test images",
        "scores of the chosen settings are too high by the choice: compare on the test images",
    ]
