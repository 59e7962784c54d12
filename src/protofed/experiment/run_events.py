"""What goes wrong in a run: put on record, told to who watches, and borne only for so long."""

from __future__ import annotations

from typing import Any

from protofed.engines.engine import RoundEvent
from protofed.errors import ProtofedError, count_noun
from protofed.experiment.checkpoint import ResumePoint
from protofed.experiment.remote_experiment import is_remote
from protofed.experiment.run_folder import RunDir
from protofed.spec.experiment_spec import Experiment

PATIENCE = 3  # failed rounds in a row after which a run stops
SHOWN = 3  # refused replies of a round that are reported one by one
DIVERGED = (
    "lower <training.lr> or the method's weights, which makes another experiment in another folder;"
    '\nor set on_nonfinite = "skip", which leaves such a client out of the round'
)
FAILED = "fix the cause and rerun the same command to resume from the last checkpoint"
REMOTE_FAILED = (
    "fix the cause (if replies came late, raise <deadline>) and rerun the same command with "
    "<resume> to resume from the last checkpoint"
)


class RunEvents:
    """Records what goes wrong in a run as lines of ``events.jsonl``, and decides when to stop.

    It counts refused replies, failed rounds and damaged checkpoints. A run stops after three
    consecutive failed rounds, or when a client diverges and the spec says so.
    """

    def __init__(self, experiment: Experiment, folder: RunDir):
        self.experiment, self.folder = experiment, folder
        self.now: list[RoundEvent] = []  # of the round that is being played
        self.failed = 0  # rounds in a row

    def note(self, event: RoundEvent) -> None:
        """Put an event on record; stop where the spec says so."""
        if event.diverged and self.experiment.on_nonfinite == "stop":
            raise ProtofedError(event.describe, hint=DIVERGED)
        self.folder.append(self.folder.events, event.to_dict())
        self.now.append(event)

    def passed_over(self, found: ResumePoint, damaged: int = 0) -> list[str]:
        """Put damaged checkpoints on record, where the run really goes on; a line for each.

        So are `damaged` lines of the record itself, which are gone.
        """
        where = f"resuming after round {found.round}" if found.round else "starting over"
        lines: list[dict[str, Any]] = []
        for finished, why in found.faults.items():
            reason = f"the checkpoint of round {finished} cannot be used: {why}; {where}"
            lines.append({"round": found.round, "checkpoint": finished, "reason": reason})
        if damaged:
            reason = f"events.jsonl had {count_noun(damaged, 'damaged line')}, now gone"
            lines.append({"round": found.round, "reason": reason})
        known = self.folder.lines(self.folder.events)  # of a start that was killed, too
        for line in lines:
            if line not in known:
                self.folder.append(self.folder.events, line)
        return [str(line["reason"]) for line in lines]

    def words(self) -> tuple[str, ...]:
        """What went wrong in the round that is being played: of many refused replies, some."""
        refused = [event.describe for event in self.now if event.client is not None]
        lost = [event.describe for event in self.now if event.client is None]
        rest = len(refused) - SHOWN
        more = [f"and {rest} more in this round, see events.jsonl"] if rest > 0 else []
        return (*refused[:SHOWN], *more, *lost)

    def end_round(self) -> None:
        """Count the round; stop after too many failed ones in a row, whose state has been kept."""
        lost = [event for event in self.now if event.client is None]
        self.failed, self.now = self.failed + 1 if lost else 0, []
        if self.failed >= PATIENCE:
            raise ProtofedError(
                f"stopped after {self.failed} consecutive failed rounds; all reasons are in "
                f"{self.folder.events}; last failure:\n{lost[-1].describe}",
                hint=REMOTE_FAILED if is_remote(self.experiment) else FAILED,
            )

    def check_any(self) -> None:
        """Refuse to call a run finished in which no round has succeeded."""
        lines = self.folder.lines(self.folder.events)
        lost = {line["round"] for line in lines if line.get("client", 0) is None}
        if len(lost) >= self.experiment.rounds:
            raise ProtofedError(
                f"{self.folder.path}: every round failed, so nothing was trained; the reasons are "
                f"in {self.folder.events}",
                hint="fix the cause and run the experiment into another folder with <out>",
            )

    def summary(self) -> list[str]:
        """Notices for who reads the scores, if there is anything to know."""
        lines, gaps = self.folder.lines(self.folder.events), self._gaps()
        if not lines:
            return gaps
        bad = sum("checkpoint" in line for line in lines)
        whose = [line["client"] for line in lines if "client" in line]
        lost = whose.count(None)
        replies = _were(len(whose) - lost, "reply was", "replies were")
        told = f"{replies} refused and {count_noun(lost, 'round')} failed"
        if bad:
            told = f"{_were(bad, 'checkpoint was', 'checkpoints were')} damaged, {told}"
        if len(whose) + bad < len(lines):
            told += ", as far as events.jsonl was not damaged"
        return [f"{told}: see events.jsonl", *gaps]

    def _gaps(self) -> list[str]:
        """Which rounds some sites have not scored, so that their mean is of the others."""
        found: dict[tuple[str, ...], list[int]] = {}
        for line in self.folder.lines(self.folder.scores):
            if "missing" in line:
                found.setdefault(tuple(line["missing"]), []).append(line["round"])
        every = len(self.experiment.data.domains)
        return [
            f"{_when(rounds)}: not scored by {', '.join(sites)}; the mean is of "
            f"{every - len(sites)} of {every} sites"
            for sites, rounds in found.items()
        ]


def _were(count: int, one: str, more: str) -> str:
    return f"{count} {one if count == 1 else more}"


def _when(rounds: list[int]) -> str:
    if len(rounds) == 1:
        return f"round {rounds[0]}"
    return f"{len(rounds)} rounds between {rounds[0]} and {rounds[-1]}"


def check_min_clients(experiment: Experiment, asked: int) -> None:
    """Refuse a run whose rounds could never have enough replies.

    `asked` clients take part in a round; ``min_clients`` replies are needed.
    """
    if experiment.min_clients > asked:
        raise ProtofedError(
            f"min_clients: {experiment.min_clients} replies are needed, but a round asks {asked} "
            f"clients\nlower min_clients, or raise participation or the number of clients "
            f"(partition.clients; across machines, the sites that take part)"
        )
