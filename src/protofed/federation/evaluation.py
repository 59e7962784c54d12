"""From correct predictions to scores: accuracy per test domain, its mean, worst and spread."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import KeysView, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from protofed.core.answer_counts import AnswerCounts, add_counts
from protofed.core.method import C, Method, S
from protofed.core.metrics import MAIN, CorrectCounts
from protofed.core.site import SERVER
from protofed.engines.engine import Engine
from protofed.federation.build import Federation
from protofed.federation.score_metrics import (
    LOWER_IS_BETTER,
    MetricName,
    largest_share,
    metric_value,
)

LAST = 5  # evaluations in the second reported score
ENOUGH_FOR_MEAN = 10  # evaluations of a run from which on that score is the default


@dataclass(frozen=True)
class DomainScores:
    """Accuracy in per cent by test domain; None for a domain without test images.

    `mean`, `worst` and `spread` are taken over the domains with a score. Of another metric, `lower`
    says that low values are good.
    """

    domains: dict[str, float | None]
    lower: bool = False  # is better

    @property
    def _known(self) -> list[float]:
        return [score for score in self.domains.values() if score is not None]

    @property
    def mean(self) -> float | None:
        """The unweighted mean over domains: AVG in the papers' tables."""
        return statistics.fmean(self._known) if self._known else None

    @property
    def worst(self) -> float | None:
        """The lowest accuracy of any domain; the highest, where lower is better."""
        return (max if self.lower else min)(self._known, default=None)

    @property
    def spread(self) -> float | None:
        """The population standard deviation between domains."""
        return statistics.pstdev(self._known) if self._known else None

    def without(self, domain: str | None) -> DomainScores:
        """The scores on all other domains."""
        left = {name: score for name, score in self.domains.items() if name != domain}
        return replace(self, domains=left)

    def to_dict(self) -> dict[str, Any]:
        """As plain data, ready for JSON."""
        summaries = {"mean": self.mean, "worst": self.worst, "spread": self.spread}
        return {"domains": dict(self.domains), **summaries}


@dataclass(frozen=True)
class Evaluation:
    """The scores of the whole federation after `round` finished rounds.

    `scores` averages over clients if the method is personal; then `own` scores each client on its
    own domain only, and `clients` holds every client's score on every domain. `counts` are those
    behind all other metrics, for domains whose sites told them, see `metric`.
    """

    round: int
    scores: DomainScores
    auxiliary: dict[str, DomainScores] = field(default_factory=dict)  # auxiliary predictions
    own: DomainScores | None = None  # personal methods: each client on its own domain only
    clients: dict[str, dict[str, float | None]] | None = None  # by client and domain
    missing: tuple[str, ...] = ()  # domains whose sites have not answered; in no mean
    counts: dict[str, AnswerCounts] = field(default_factory=dict)  # by domain
    classes: tuple[str, ...] = ()  # their names, beside the matrices

    def metric(self, name: MetricName) -> DomainScores:
        """Another score by domain, in per cent; None where its counts are not known."""
        if name == "accuracy":
            return self.scores
        values = {
            domain: metric_value(name, self.counts[domain]) if domain in self.counts else None
            for domain in self.scores.domains
        }
        return DomainScores(values, lower=name in LOWER_IS_BETTER)

    def largest_shares(self) -> DomainScores | None:
        """What a constant answer would score, by domain; None if no site told its counts."""
        shares = {d: largest_share(self.counts[d]) for d in self.counts}
        every = {domain: shares.get(domain) for domain in self.scores.domains}
        return DomainScores(every) if shares else None

    def trimmed(self, later: int) -> Evaluation:
        """What of it is kept on disk if `later` evaluations of the run follow.

        The last one keeps everything, the last five what all metrics need, earlier ones what those
        need that come from hits alone.
        """
        if not later:
            return self
        kept = {n: one._replace(cells=(), features=()) for n, one in self.counts.items()}
        if later >= LAST:
            kept = {name: one._replace(wins=(), sure=()) for name, one in kept.items()}
        return replace(self, counts=kept, classes=())

    def tables(self) -> list[KeysView[str]]:
        """The domain names of each of its tables; they are the same in all."""
        of_scores = [self.scores, *self.auxiliary.values(), *([self.own] if self.own else [])]
        of_clients = (self.clients or {}).values()
        return [
            *(scores.domains.keys() for scores in of_scores),
            *(row.keys() for row in of_clients),
        ]

    def counts_fault(self) -> str:
        """Why the counts cannot be of this evaluation, in words; "" if they can."""
        for name, counts in self.counts.items():
            if name not in self.scores.domains:
                return f"counts of {name}, which is no domain"
            if fault := counts.fault():
                return f"counts of {name}: {fault}"
            if self.classes and len(self.classes) != len(counts.images):
                return f"counts of {name} are of other classes"
        return ""

    def to_dict(self) -> dict[str, Any]:
        """As plain data: one line of scores.jsonl."""
        line = {"round": self.round, **self.scores.to_dict()}
        if self.auxiliary:
            line["opinions"] = {name: scores.to_dict() for name, scores in self.auxiliary.items()}
        if self.own is not None:
            line |= {"own": self.own.to_dict(), "clients": self.clients}
        if self.counts:
            line["counts"] = {name: counts.to_dict() for name, counts in self.counts.items()}
        if self.classes:
            line["classes"] = list(self.classes)
        return {**line, "missing": list(self.missing)} if self.missing else line

    @classmethod
    def from_dict(cls, line: Mapping[str, Any]) -> Evaluation:
        """The evaluation that a line of scores.jsonl records."""
        own = line.get("own")
        return cls(
            line["round"],
            DomainScores(line["domains"]),
            {name: DomainScores(o["domains"]) for name, o in line.get("opinions", {}).items()},
            DomainScores(own["domains"]) if own else None,
            line.get("clients"),
            tuple(line.get("missing", ())),
            {name: AnswerCounts.from_dict(one) for name, one in line.get("counts", {}).items()},
            tuple(line.get("classes", ())),
        )


def evaluate_round(
    finished: int, method: Method[S, C], server: S, federation: Federation, engine: Engine
) -> Evaluation:
    """Score what the method publishes; for a personal method, every client's own model.

    Domains that no site scored (a site was offline, or must not see the images) are listed in
    `missing` and have no score.
    """
    product, tests = method.publish(server), federation.tests
    classes = federation.benchmark.classes
    if not method.personal:
        counts = engine.score(product, [SERVER])[SERVER]
        columns = {name: [counts[name]] if name in counts else [] for name in tests}
        away = tuple(name for name in tests if name not in counts)
        scores, auxiliary, sums = _mean_of(columns), _auxiliary_scores(columns), _counts(columns)
        return Evaluation(finished, scores, auxiliary, missing=away, counts=sums, classes=classes)
    counts_of = engine.score(product, list(federation.sites))
    homes = {client: site.domain for client, site in federation.sites.items()}
    everywhere = {name: [row[name] for row in counts_of.values() if name in row] for name in tests}
    at_home = {
        name: [row[name] for c, row in counts_of.items() if homes[c] == name and name in row]
        for name in tests
    }
    table = {
        str(c): {n: row[n][MAIN].accuracy if n in row else None for n in tests}
        for c, row in counts_of.items()
    }
    away = tuple(name for name in tests if name in homes.values() and not everywhere[name])
    auxiliary = _auxiliary_scores(everywhere)
    sums, scores, own = _counts(everywhere), _mean_of(everywhere), _mean_of(at_home)
    return Evaluation(finished, scores, auxiliary, own, table, away, sums, classes)


def _counts(columns: Mapping[str, Sequence[CorrectCounts]]) -> dict[str, AnswerCounts]:
    """Each domain's counts of answers, added over the models; only where all of them told some."""
    found = {}
    for name, column in columns.items():
        told = [counts[MAIN].answers for counts in column]
        known = [one for one in told if one is not None]
        if known and len(known) == len(told):
            found[name] = add_counts(known)
    return found


def _mean_of(columns: Mapping[str, Sequence[CorrectCounts]], predictor: str = MAIN) -> DomainScores:
    """Each domain's unweighted mean over the models that were scored on it."""
    return DomainScores(
        {
            name: _mean([counts[predictor].accuracy for counts in column])
            for name, column in columns.items()
        }
    )


def _auxiliary_scores(columns: Mapping[str, Sequence[CorrectCounts]]) -> dict[str, DomainScores]:
    """The scores of every predictor but the main one."""
    found = [set(counts) for column in columns.values() for counts in column]
    shared = set.intersection(*found) if found else set[str]()
    return {name: _mean_of(columns, name) for name in sorted(shared - {MAIN})}


def score_rules(evaluations: int, missing: Sequence[Sequence[str]] = ()) -> dict[str, str]:
    """How the two reported scores were computed, in words, after so many evaluations.

    `missing` names, for each evaluation, the domains whose sites had not answered.
    """
    last = dict.fromkeys(name for names in missing[-1:] for name in names)
    counted = min(LAST, evaluations)
    times = Counter(name for names in missing[-LAST:] for name in names)
    never = [name for name, count in times.items() if count == counted]
    partly = [name for name, count in times.items() if count < counted]
    five = f"mean of the last {'evaluation' if counted == 1 else f'{counted} evaluations'}"
    return {
        "last": "last round" + (f", without {', '.join(last)}" if last else ""),
        "last_five": five
        + (f", without {', '.join(never)}" if never else "")
        + (f", not all with {', '.join(partly)}" if partly else ""),
    }


def last_5_mean(evaluations: Sequence[DomainScores]) -> DomainScores:
    """Each domain's mean over the last five evaluations, or over all if there are fewer.

    Evaluations in which a domain has no score are left out of its mean.
    """
    recent = evaluations[-LAST:]
    means = {name: _mean([s.domains[name] for s in recent]) for name in recent[-1].domains}
    return replace(recent[-1], domains=means)


def scores_by_round(
    history: Sequence[Evaluation], domain: str | None = None
) -> dict[int, float | None]:
    """A score over rounds, for a curve: of one domain, or the mean over domains.

    None where the domain was not scored. So is the mean where a site was away that has answered in
    another round: without it, it would be the mean of other domains.
    """
    never = set.intersection(*({*one.missing} for one in history)) if history else set[str]()
    return {
        one.round: one.scores.domains.get(domain)
        if domain is not None
        else (None if {*one.missing} - never else one.scores.mean)
        for one in history
    }


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
