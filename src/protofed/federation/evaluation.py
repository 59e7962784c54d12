"""From correct predictions to scores: accuracy per test domain, its mean, worst and spread."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import KeysView, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from protofed.core.method import C, Method, S
from protofed.core.metrics import MAIN, CorrectCounts
from protofed.core.site import SERVER
from protofed.engines.engine import Engine
from protofed.federation.build import Federation

LAST = 5  # evaluations in the second reported score
ENOUGH_FOR_MEAN = 10  # evaluations of a run from which on that score is the default


@dataclass(frozen=True)
class DomainScores:
    """Accuracy in per cent by test domain; None for a domain without test images.

    `mean`, `worst` and `spread` are taken over the domains with a score.
    """

    domains: dict[str, float | None]

    @property
    def _known(self) -> list[float]:
        return [score for score in self.domains.values() if score is not None]

    @property
    def mean(self) -> float | None:
        """The unweighted mean over domains: AVG in the papers' tables."""
        return statistics.fmean(self._known) if self._known else None

    @property
    def worst(self) -> float | None:
        """The lowest accuracy of any domain."""
        return min(self._known, default=None)

    @property
    def spread(self) -> float | None:
        """The population standard deviation between domains."""
        return statistics.pstdev(self._known) if self._known else None

    def without(self, domain: str | None) -> DomainScores:
        """The scores on all other domains."""
        return DomainScores({name: score for name, score in self.domains.items() if name != domain})

    def to_dict(self) -> dict[str, Any]:
        """As plain data, ready for JSON."""
        return {**asdict(self), "mean": self.mean, "worst": self.worst, "spread": self.spread}


@dataclass(frozen=True)
class Evaluation:
    """The scores of the whole federation after `round` finished rounds.

    `scores` averages over clients if the method is personal; then `own` scores each client on its
    own domain only, and `clients` holds every client's score on every domain.
    """

    round: int
    scores: DomainScores
    auxiliary: dict[str, DomainScores] = field(default_factory=dict)  # auxiliary predictions
    own: DomainScores | None = None  # personal methods: each client on its own domain only
    clients: dict[str, dict[str, float | None]] | None = None  # by client and domain
    missing: tuple[str, ...] = ()  # domains whose sites have not answered; in no mean

    def tables(self) -> list[KeysView[str]]:
        """The domain names of each of its tables; they are the same in all."""
        of_scores = [self.scores, *self.auxiliary.values(), *([self.own] if self.own else [])]
        of_clients = (self.clients or {}).values()
        return [
            *(scores.domains.keys() for scores in of_scores),
            *(row.keys() for row in of_clients),
        ]

    def to_dict(self) -> dict[str, Any]:
        """As plain data: one line of scores.jsonl."""
        line = {"round": self.round, **self.scores.to_dict()}
        if self.auxiliary:
            line["opinions"] = {name: scores.to_dict() for name, scores in self.auxiliary.items()}
        if self.own is not None:
            line |= {"own": self.own.to_dict(), "clients": self.clients}
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
        )


def evaluate_round(
    finished: int, method: Method[S, C], server: S, federation: Federation, engine: Engine
) -> Evaluation:
    """Score what the method publishes; for a personal method, every client's own model.

    Domains that no site scored (a site was offline, or must not see the images) are listed in
    `missing` and have no score.
    """
    product, tests = method.publish(server), federation.tests
    if not method.personal:
        counts = engine.score(product, [SERVER])[SERVER]
        columns = {name: [counts[name]] if name in counts else [] for name in tests}
        away = tuple(name for name in tests if name not in counts)
        return Evaluation(finished, _mean_of(columns), _auxiliary_scores(columns), missing=away)
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
    return Evaluation(finished, _mean_of(everywhere), auxiliary, _mean_of(at_home), table, away)


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
    return DomainScores(
        {name: _mean([s.domains[name] for s in recent]) for name in recent[-1].domains}
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
