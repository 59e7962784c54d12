"""What is known after a round: scores, losses, traffic and time, live or from a run folder."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from protofed.errors import ProtofedError
from protofed.experiment.result import read_evaluations
from protofed.experiment.run_folder import RunDir
from protofed.federation.evaluation import Evaluation
from protofed.runtime.atomic_io import format_bytes
from protofed.runtime.console import format_clock, format_percent

NOTHING: Mapping[str, int] = MappingProxyType({})
ClientMetrics = Mapping[str, Mapping[str, float | None]]  # by client and name; None is not finite


class RoundReport(NamedTuple):
    """What is known after a round, for whoever watches a run.

    It is also sent once before the first round, with `seconds_left` NaN and everything from
    `evaluation` on empty. ``str(report)`` is a line for people, so ``watch=print`` works.
    """

    round: int  # finished rounds
    rounds: int
    mean: float | None  # the newest mean accuracy, perhaps of an earlier round
    seconds_left: float
    notices: tuple[str, ...] = ()  # each is told once, most of them before the first round
    missing: tuple[str, ...] = ()  # the domains that the mean does not count
    evaluation: Evaluation | None = None  # None for a round that was not scored
    seconds: float = 0.0  # that the round took, without scoring
    parts_up: Mapping[str, int] = NOTHING  # bytes from the clients, by part of the message
    parts_down: Mapping[str, int] = NOTHING
    metrics: Sequence[ClientMetrics] = ()  # what clients reported, one table per exchange

    @property
    def bytes_up(self) -> int:
        """All bytes that the clients sent."""
        return sum(self.parts_up.values())

    @property
    def bytes_down(self) -> int:
        """All bytes that the clients were sent."""
        return sum(self.parts_down.values())

    @property
    def loss(self) -> float | None:
        """The mean training loss over the round's replies, each client counting the same."""
        losses = [row.get("loss") for table in self.metrics for row in table.values()]
        known = [loss for loss in losses if loss is not None]
        return statistics.fmean(known) if known else None

    def __str__(self) -> str:
        notes = [f"note: {notice}" for notice in self.notices]
        if math.isnan(self.seconds_left):
            return "\n".join([*notes, f"round {self.round}/{self.rounds}"])
        loss = "" if self.loss is None else f"  loss {self.loss:.4g}"
        line = (
            f"round {self.round}/{self.rounds}  {self.accuracy}{loss}  "
            f"{format_bytes(self.bytes_up)} up, {format_bytes(self.bytes_down)} down  "
            f"{self.seconds:.1f} s, {format_clock(self.seconds_left)} left"
        )
        return "\n".join([*notes, line])

    @property
    def accuracy(self) -> str:
        """The mean accuracy in words, with the domains that it lacks."""
        lacks = f" without {', '.join(self.missing)}" if self.missing else ""
        return f"mean accuracy {format_percent(self.mean)} %{lacks}"


def make_report(
    line: Mapping[str, Any],
    rounds: int,
    newest: Evaluation | None,
    seconds_left: float = math.nan,
    notices: tuple[str, ...] = (),
) -> RoundReport:
    """The report of a round from its line of ``rounds.jsonl``.

    `newest` is the newest evaluation so far; it is the round's own if it has the same number.
    """
    return RoundReport(
        line["round"],
        rounds,
        newest.scores.mean if newest else None,
        seconds_left,
        notices,
        newest.missing if newest else (),
        newest if newest and newest.round == line["round"] else None,
        line["seconds"],
        line["parts"]["up"],
        line["parts"]["down"],
        line["legs"],
    )


def read_reports(folder: Path) -> list[RoundReport]:
    """The reports of all rounds that a run folder has on record, oldest first.

    For a tracker that continues a log, or writes one of a finished run. `rounds` is how many there
    are so far, and there are no notices.
    """
    place = RunDir(folder)
    if not place.rounds.exists():
        raise ProtofedError(f"{folder} is not a run folder: it has no rounds.jsonl")
    scored = {evaluation.round: evaluation for evaluation in read_evaluations(place)}
    lines = place.lines(place.rounds)
    newest: Evaluation | None = None
    found = []
    for line in lines:
        newest = scored.get(line["round"], newest)
        found.append(make_report(line, len(lines), newest))
    return found
