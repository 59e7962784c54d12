"""The numbers of a round under the names that every tracker logs them by."""

from __future__ import annotations

from collections.abc import Mapping

from protofed.experiment.round_report import RoundReport
from protofed.federation.evaluation import DomainScores, Evaluation


def round_scalars(report: RoundReport) -> dict[str, float]:
    """All numbers of a round by name: accuracy, loss, bytes, seconds, and each client's metrics.

    A score that does not exist, or a metric that is not finite, has no entry.
    """
    costs = {
        "bytes_up": report.bytes_up,
        "bytes_down": report.bytes_down,
        "seconds": report.seconds,
        **{f"bytes_up/{part}": count for part, count in report.parts_up.items()},
        **{f"bytes_down/{part}": count for part, count in report.parts_down.items()},
    }
    found: dict[str, float | None] = {
        **(_scores(report.evaluation) if report.evaluation else {}),
        "loss/mean": report.loss,
        **_named("cost", costs),
    }
    for number, clients in enumerate(report.metrics, start=1):
        # Not by how many there are: a round that fails may have fewer than the others.
        exchange = "" if number == 1 else f"exchange_{number}/"
        for client, metrics in clients.items():
            found |= _named(f"{exchange}client_{client}", metrics)
    return {name: value for name, value in found.items() if value is not None}


def _scores(evaluation: Evaluation) -> dict[str, float | None]:
    """Accuracy by domain with its summaries; of auxiliary predictors and clients, too."""
    found = _table("accuracy", evaluation.scores)
    for name, scores in evaluation.auxiliary.items():
        found |= _table(f"accuracy_{name.replace(' ', '_')}", scores)
    if evaluation.own is not None:
        found |= _table("accuracy_own_domain", evaluation.own)
    for client, row in (evaluation.clients or {}).items():
        found |= _named(f"client_{client}/accuracy", row)
    return found


def _table(group: str, scores: DomainScores) -> dict[str, float | None]:
    summary = {"mean": scores.mean, "worst": scores.worst, "spread": scores.spread}
    return _named(group, {**scores.domains, **summary})


def _named(group: str, values: Mapping[str, float | None]) -> dict[str, float | None]:
    return {f"{group}/{name}": value for name, value in values.items()}
