"""What a finished run says, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from protofed.errors import ProtofedError
from protofed.experiment import run_records
from protofed.experiment.run_folder import RunDir
from protofed.experiment.run_records import DoneRecord, notice_record
from protofed.federation.evaluation import DomainScores, Evaluation, last_5_mean, score_rules
from protofed.federation.notices import Notice
from protofed.runtime.atomic_io import file_sha256

ScoreRule = Literal["last_five", "last"]  # mean of the last five evaluations, or the last one


def mark_unseen(domain: str, unseen: str | None) -> str:
    """A domain's name for a table, ``NAME (unseen)`` if no client trained on it."""
    return f"{domain} (unseen)" if domain == unseen else domain


@dataclass(frozen=True)
class RunResult:
    """A finished run: its scores by two stated rules, and what to know about them.

    `run` returns it, `read_result` reads it back. `result.scores("last")` is the accuracy by domain
    after the last round. Personal methods also have `own` (each client on its own domain) and
    `clients` (each client's model on every domain).
    """

    folder: Path
    digest: str
    rules: Mapping[str, str]  # in words, how `last` and `last_five` were taken
    last: DomainScores  # after the last round
    last_five: DomainScores  # mean of the last five evaluations
    opinions: Mapping[str, DomainScores]  # the method's other predictors, last round
    own: DomainScores | None  # personal methods: each client on its own domain, last round
    clients: Mapping[str, Mapping[str, float | None]] | None  # personal: client by domain
    notices: tuple[Notice, ...]
    seconds: float
    unseen: str | None = None  # the domain that was left out of training

    def scores(self, rule: ScoreRule) -> DomainScores:
        """The accuracy by domain under one of the two rules; ``result.scores("last").mean``."""
        return self.last_five if rule == "last_five" else self.last

    def named(self, domain: str) -> str:
        """A domain's name for a table: the unseen one is marked."""
        return mark_unseen(domain, self.unseen)

    def to_dict(self) -> dict[str, Any]:
        """As plain data, ready for JSON; the scores with the rule by which they were taken."""
        scores = {"last": self.last, "last_five": self.last_five}
        return {
            "folder": str(self.folder),
            "digest": self.digest,
            "seconds": self.seconds,
            **({"unseen": self.unseen} if self.unseen else {}),
            **{name: {"rule": self.rules[name], **s.to_dict()} for name, s in scores.items()},
            "opinions": {name: scores.to_dict() for name, scores in self.opinions.items()},
            **({"own": self.own.to_dict(), "clients": self.clients} if self.own else {}),
            "notices": [notice_record(notice) for notice in self.notices],
        }


def read_result(folder: RunDir) -> RunResult:
    """Read the result of a finished run from its folder.

    Damaged files, and scores or a spec that the run did not write, are refused.
    """
    return make_result(folder, check_finished(folder))


def check_finished(folder: RunDir) -> DoneRecord:
    """Return the content of ``done`` if spec and scores are those that the run wrote.

    Files that were edited or swapped are an error that says what to do.
    """
    done = run_records.read_record_file(run_records.DONE, folder.done)
    if done["digest"] != folder.digest():
        raise ProtofedError(
            f"{folder.path}: spec.json is not the spec that this run was made with",
            hint="restore the file, or repeat the run with <again>",
        )
    if not folder.scores.exists():
        raise _without_scores(folder)
    if file_sha256(folder.scores) != done["scores"]:
        raise ProtofedError(
            f"{folder.path}: scores.jsonl is not what this run wrote (swapped or edited?)",
            hint="repeat the run with <again>",
        )
    return done


def read_evaluations(folder: RunDir) -> list[Evaluation]:
    """All evaluations of a run so far, oldest first.

    Every command that shows scores reads them here.

    The scores of a finished run must be those that it wrote. Rounds out of order, or scores on
    different domains, are reported as damage.
    """
    if folder.done.exists():
        check_finished(folder)
    found = [Evaluation.from_dict(line) for line in folder.lines(folder.scores)]
    for before, now in pairwise(found):
        if now.round <= before.round:
            raise _damaged(folder.scores, f"round {now.round} comes after round {before.round}")
    for one in found:
        if any(table != found[0].scores.domains.keys() for table in one.tables()):
            raise _damaged(folder.scores, f"round {one.round} is scored on other domains")
    return found


def _damaged(file: Path, why: str) -> ProtofedError:
    return ProtofedError(f"{file} is damaged: {why}", hint=run_records.ADVICE)


def _without_scores(folder: RunDir) -> ProtofedError:
    return ProtofedError(
        f"{folder.path} is marked done but has no scores", hint="repeat the run with <again>"
    )


def make_result(folder: RunDir, done: DoneRecord) -> RunResult:
    """Make the result of a run that is finished, or is about to be marked as finished.

    `done` is the content of the file of that name. Missing rounds are reported as damage.
    """
    evaluations = read_evaluations(folder)
    if not evaluations:
        raise _without_scores(folder)
    newest, rounds = evaluations[-1], folder.lines(folder.rounds)
    if [line["round"] for line in rounds] != [*range(1, newest.round + 1)]:
        raise _damaged(folder.rounds, f"it does not have each of {newest.round} rounds once")
    return RunResult(
        folder=folder.path,
        digest=done["digest"],
        rules=score_rules(len(evaluations), [evaluation.missing for evaluation in evaluations]),
        last=newest.scores,
        last_five=last_5_mean([evaluation.scores for evaluation in evaluations]),
        opinions=newest.auxiliary,
        own=newest.own,
        clients=newest.clients,
        notices=tuple(Notice(**notice) for notice in done["notices"]),
        unseen=run_records.read_record_file(run_records.SPEC, folder.path / "spec.json").get(
            "leave_out"
        ),
        seconds=round(sum(line["seconds"] for line in rounds), 1),
    )
