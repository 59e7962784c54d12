"""From right answers to scores: accuracy by test domain, their mean, the worst, the spread."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from protofed.core.method import C, Method, S
from protofed.core.tally import Tally, tally
from protofed.engines.base import Engine
from protofed.experiment.federation import Federation

LAST = 5  # evaluations that the second summary averages
RULES = {
    "last": "last round",
    "last_five": f"mean of the last {LAST} evaluations",
}


@dataclass(frozen=True)
class Scores:
    """Accuracy in per cent by test domain; None where a domain has no test images."""

    domains: dict[str, float | None]

    @property
    def _known(self) -> list[float]:
        return [score for score in self.domains.values() if score is not None]

    @property
    def mean(self) -> float | None:
        """The plain mean over domains, as the papers' AVG."""
        return statistics.fmean(self._known) if self._known else None

    @property
    def worst(self) -> float | None:
        """The accuracy on the domain that is served worst."""
        return min(self._known, default=None)

    @property
    def spread(self) -> float | None:
        """The (population) standard deviation between domains."""
        return statistics.pstdev(self._known) if self._known else None

    def plain(self) -> dict[str, Any]:
        """As plain data, ready for JSON."""
        return {**asdict(self), "mean": self.mean, "worst": self.worst, "spread": self.spread}


@dataclass(frozen=True)
class Evaluation:
    """One scoring of the whole federation after `round` finished rounds."""

    round: int
    scores: Scores
    own: Scores | None = None  # personal methods: each client on its own domain only
    clients: dict[str, dict[str, float | None]] | None = None  # personal: client by domain

    def plain(self) -> dict[str, Any]:
        """As plain data: one line of scores.jsonl."""
        line = {"round": self.round, **self.scores.plain()}
        if self.own is not None:
            line |= {"own": self.own.plain(), "clients": self.clients}
        return line

    @classmethod
    def from_plain(cls, line: Mapping[str, Any]) -> Evaluation:
        """The evaluation that a line of scores.jsonl records."""
        own = line.get("own")
        return cls(
            line["round"],
            Scores(line["domains"]),
            Scores(own["domains"]) if own else None,
            line.get("clients"),
        )


def evaluate(
    finished: int, method: Method[S, C], server: S, federation: Federation, engine: Engine
) -> Evaluation:
    """Score the published product; personal methods, every client's own model everywhere."""
    product, tests, site = method.publish(server), federation.tests, federation.server
    if not method.personal:
        state = method.init_client(site)
        answers = {name: tally(method, site, product, state, test) for name, test in tests.items()}
        return Evaluation(finished, Scores({name: t.accuracy for name, t in answers.items()}))
    answers_of = engine.score(product, tests)
    homes = {client: site.domain for client, site in federation.sites.items()}
    everywhere = {name: [answers_of[c][name] for c in answers_of] for name in tests}
    at_home = {name: [answers_of[c][name] for c in homes if homes[c] == name] for name in tests}
    table = {str(c): {n: t.accuracy for n, t in row.items()} for c, row in answers_of.items()}
    return Evaluation(finished, _mean_of_clients(everywhere), _mean_of_clients(at_home), table)


def _mean_of_clients(answers: Mapping[str, Sequence[Tally]]) -> Scores:
    """Each domain's plain mean over clients."""
    return Scores({name: _mean([t.accuracy for t in column]) for name, column in answers.items()})


def last_five(evaluations: Sequence[Scores]) -> Scores:
    """Each domain's mean over the last five evaluations (fewer if there are fewer)."""
    recent = evaluations[-LAST:]
    return Scores({name: _mean([s.domains[name] for s in recent]) for name in recent[-1].domains})


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
