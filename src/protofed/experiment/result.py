"""What a finished run says, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protofed.experiment.evaluate import RULES, Evaluation, Scores, last_five
from protofed.experiment.rundir import RunDir, read_json


@dataclass(frozen=True)
class Result:
    """A finished run: where it lies, its scores by two stated rules, and what to know of them."""

    folder: Path
    digest: str
    last: Scores  # after the last round
    last_five: Scores  # mean of the last five evaluations
    own: Scores | None  # personal methods: each client on its own domain, last round
    clients: Mapping[str, Mapping[str, float | None]] | None  # personal: client by domain
    notices: tuple[str, ...]
    seconds: float

    def plain(self) -> dict[str, Any]:
        """As plain data, ready for JSON; the scores with the rule by which they were taken."""
        scores = {"last": self.last, "last_five": self.last_five}
        return {
            "folder": str(self.folder),
            "digest": self.digest,
            "seconds": self.seconds,
            **{name: {"rule": RULES[name], **s.plain()} for name, s in scores.items()},
            **({"own": self.own.plain(), "clients": self.clients} if self.own else {}),
            "notices": list(self.notices),
        }


def read_result(folder: RunDir) -> Result:
    """The result of a finished run, from its files alone."""
    done = read_json(folder.done)
    evaluations = [Evaluation.from_plain(line) for line in folder.lines(folder.scores)]
    newest = evaluations[-1]
    return Result(
        folder=folder.path,
        digest=done["digest"],
        last=newest.scores,
        last_five=last_five([evaluation.scores for evaluation in evaluations]),
        own=newest.own,
        clients=newest.clients,
        notices=tuple(done["notices"]),
        seconds=done["seconds"],
    )
