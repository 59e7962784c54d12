"""What a finished run says, as plain data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from protofed.errors import ProtofedError
from protofed.experiment import run_records
from protofed.experiment.run_folder import RunDir
from protofed.experiment.run_records import DoneRecord, notice_record
from protofed.federation.evaluation import (
    ENOUGH_FOR_MEAN,
    DomainScores,
    Evaluation,
    last_5_mean,
    score_rules,
)
from protofed.federation.notices import Notice
from protofed.federation.score_metrics import (
    METRIC_HEADS,
    METRIC_LABELS,
    METRICS,
    MetricName,
    estimate_metric,
)
from protofed.runtime.atomic_io import file_sha256
from protofed.runtime.console import format_clock, format_percent
from protofed.runtime.text_tables import (
    PLAIN_WIDTH,
    TableDocument,
    TextTable,
    data_frame,
    render_document,
)

if TYPE_CHECKING:
    from pandas import DataFrame

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
    metric: MetricName = "accuracy"  # what its scores are
    history: tuple[Evaluation, ...] = ()  # every evaluation with its round, oldest first

    def __repr__(self) -> str:
        return f"RunResult(folder={str(self.folder)!r}, mean={format_percent(self.last.mean)} %)"

    def __str__(self) -> str:
        return render_document(result_document(self), width=PLAIN_WIDTH).rstrip("\n")

    def _repr_html_(self) -> str:
        """The tables, as a notebook shows them."""
        return render_document(result_document(self), "html")

    def to_frame(self) -> DataFrame:
        """The accuracy of every evaluation as a pandas DataFrame: a row per round.

        Columns are the domains, then mean, worst and spread. Needs pandas.
        """
        rows = {
            one.round: {
                **one.scores.domains,
                "mean": one.scores.mean,
                "worst": one.scores.worst,
                "spread": one.scores.spread,
            }
            for one in self.history
        }
        return data_frame(rows, "round")

    def scores(self, rule: ScoreRule) -> DomainScores:
        """The accuracy by domain under one of the two rules; ``result.scores("last").mean``."""
        return self.last_five if rule == "last_five" else self.last

    def by_metric(self, metric: MetricName) -> RunResult:
        """The same run with another score in place of accuracy, everywhere: ``result.last.mean``.

        It comes from the counts of answers. Raises for runs that have none, as those of earlier
        versions or of sites that keep them back. ::

            result.by_metric("balanced_accuracy").last.worst
        """
        if metric == "accuracy":
            return self
        history = tuple(replace(one, scores=one.metric(metric)) for one in self.history)
        scores = [one.scores for one in history]
        known = [one.round for one in history if one.scores.mean is not None]
        if not scores or self.history[-1].round not in known:
            raise ProtofedError(
                f"{self.folder} has no {METRIC_LABELS[metric]}: its answers were not counted",
                hint="runs of an earlier version lack these counts, as do sites that keep them "
                "back; repeat the run with <again>, or show <metric=accuracy>",
            )
        five = last_5_mean(scores)
        return replace(self, metric=metric, last=scores[-1], last_five=five, history=history)

    @property
    def largest_shares(self) -> DomainScores | None:
        """What a constant answer would score: the share of the largest class, by domain.

        None for runs without counts of answers.
        """
        return self.history[-1].largest_shares() if self.history else None

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
            **score_details(self),
            "notices": [notice_record(notice) for notice in self.notices],
        }


def score_details(result: RunResult) -> dict[str, Any]:
    """Every metric of the last round with its interval, by domain, as plain data for JSON.

    With the largest class of each domain; empty for runs without counts of answers.
    """
    shares = result.largest_shares
    if shares is None:
        return {}
    last = result.history[-1]
    metrics = {
        name: {
            **{part: getattr(last.metric(name), part) for part in ("mean", "worst")},
            "domains": {
                domain: estimate_metric(name, counts)._asdict()
                for domain, counts in last.counts.items()
            },
        }
        for name in METRICS
    }
    return {"largest_class": shares.to_dict(), "metrics": metrics}


def metrics_table(result: RunResult) -> TextTable | None:
    """All metrics of the last round by domain, with the number of test images behind them.

    None for runs without counts of answers.
    """
    if result.largest_shares is None:
        return None
    last, names = result.history[-1], [name for name in METRICS if name != "accuracy"]
    columns = [last.metric(name) for name in names]
    rows = [
        [
            result.named(domain),
            *(format_percent(scores.domains[domain]) for scores in columns),
            str(counts.total // counts.models),
        ]
        for domain, counts in last.counts.items()
    ]
    rows += [
        [part, *(format_percent(getattr(scores, part)) for scores in columns), ""]
        for part in ("mean", "worst")
    ]
    head = ["last round, %", *(METRIC_HEADS[name] for name in names), "test images"]
    return TextTable(head, rows, line_before=len(last.counts))


def result_document(result: RunResult) -> TableDocument:
    """A finished run as tables: scores by domain and, for a personal method, by client.

    Beside the accuracy stands what a constant answer would score. The notes are the run's notices,
    then its folder, digest and duration.
    """
    columns = {result.rules["last"]: result.last, result.rules["last_five"]: result.last_five}
    columns |= {f"{name}, last round": scores for name, scores in result.opinions.items()}
    if result.own is not None:
        columns["own domain only, last round"] = result.own
    if result.largest_shares is not None:
        columns["largest class"] = result.largest_shares
    domains = list(result.last.domains)
    rows = [
        [result.named(name), *(format_percent(scores.domains[name]) for scores in columns.values())]
        for name in domains
    ]
    rows += [
        [name, *(format_percent(getattr(scores, name)) for scores in columns.values())]
        for name in ("mean", "worst", "spread")
    ]
    tables = [TextTable(["accuracy %", *columns], rows, line_before=len(domains))]
    tables += [metrics] if (metrics := metrics_table(result)) else []
    if result.clients is not None:
        head = ["client's own model on", *map(result.named, domains)]
        own = [[c, *(format_percent(row[d]) for d in domains)] for c, row in result.clients.items()]
        tables.append(TextTable(head, own))
    took = format_clock(result.seconds)
    where = f"run folder: {result.folder}  digest: {result.digest[:12]}  took: {took}"
    notes = [*(f"note: {notice}" for notice in result.notices), where]
    return TableDocument(tables, result.to_dict(), notes=notes)


def count_evaluations(rounds: int, every: int) -> int:
    """How often a run is scored: after every `every` rounds, and after the last one."""
    return math.ceil(rounds / every)


def choose_rule(results: Iterable[RunResult], asked: ScoreRule | None = None) -> ScoreRule:
    """The rule by which the scores of some runs are taken; the one that was `asked` for is kept.

    Without one it is ``last_five`` if each run has at least `ENOUGH_FOR_MEAN` evaluations, else
    ``last``: in a short run the mean of five would hold models from the start of training.
    """
    if asked is not None:
        return asked
    enough = all(len(result.history) >= ENOUGH_FOR_MEAN for result in results)
    return "last_five" if enough else "last"


def read_result(folder: RunDir) -> RunResult:
    """Read the result of a finished run from its folder.

    Damaged files, and scores or a spec that the run did not write, are refused.
    """
    return make_result(folder, check_finished(folder))


def result_so_far(folder: RunDir) -> RunResult:
    """The result of a run that is paused: its scores up to the newest evaluation.

    Its notices are not known before the run is finished.
    """
    return make_result(folder, {"digest": folder.digest(), "notices": [], "scores": ""})


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
        if fault := one.counts_fault():
            raise _damaged(folder.scores, f"round {one.round}: {fault}")
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
        history=tuple(evaluations),
    )
