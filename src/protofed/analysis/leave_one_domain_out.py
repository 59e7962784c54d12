"""Leave-one-domain-out: for each domain a federation that trains without it and is tested on it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

from protofed.analysis.comparison_table import format_spread, spread_numbers
from protofed.analysis.finished_runs import RunRecord
from protofed.analysis.statistics import SeedSpread
from protofed.analysis.sweep import GridVariant
from protofed.errors import ProtofedError
from protofed.experiment.result import RunResult, ScoreRule
from protofed.runtime.text_tables import TableDocument, TextTable
from protofed.spec.spec_parser import parse_experiment

EACH = "each"  # the word for every domain in turn


class UnseenScores(NamedTuple):
    """The leave-one-domain-out scores of one method, in per cent over seeds.

    `rows` maps each left-out domain to the scores on all test domains. `mean` is the mean over the
    left-out domains, each scored by the run that did not train on it.
    """

    label: str
    rows: dict[str, dict[str, SeedSpread | None]]
    mean: SeedSpread | None  # over the left-out domains, each on the run that did not see it
    digests: dict[str, list[str]]

    @property
    def domains(self) -> list[str]:
        """The test domains, in the order of the spec."""
        return list(dict.fromkeys(name for row in self.rows.values() for name in row))

    def to_dict(self) -> dict[str, Any]:
        """As plain data, ready for JSON."""
        rows = {
            left: {name: value and value._asdict() for name, value in row.items()}
            for left, row in self.rows.items()
        }
        mean = self.mean and self.mean._asdict()
        return {"method": self.label, "left_out": rows, "unseen_mean": mean, "runs": self.digests}


def leave_each_out(variants: Sequence[GridVariant]) -> list[GridVariant]:
    """One variant per variant and domain, which trains without that domain.

    `leave_out_label` turns their labels back into those of the variants.
    """
    return [
        GridVariant(f"{label} without {domain}", {**raw, "leave_out": domain})
        for label, raw in variants
        for domain in parse_experiment(raw).data.domains
    ]


def leave_out_label(label: str, left_out: str | None) -> str:
    """The label of the variant that a run of `leave_each_out` came from."""
    return label.removesuffix(f" without {left_out}")


def unseen_scores(records: Sequence[RunRecord], rule: ScoreRule) -> list[UnseenScores]:
    """Group the finished runs of a leave-one-domain-out study by label, and average over seeds.

    Runs may have been tested on different domains; a cell without any score is None.
    """
    found = []
    for label in dict.fromkeys(record.label for record in records):
        mine = [record for record in records if record.label == label]
        order = mine[0].experiment.data.domains
        runs = {d: {r.seed: r.result for r in mine if r.result.unseen == d} for d in order}
        runs = {domain: of for domain, of in runs.items() if of}
        on = {left: [run.scores(rule).domains for run in of.values()] for left, of in runs.items()}
        tested = {name for seeds in on.values() for scores in seeds for name in scores}
        names = [domain for domain in order if domain in tested]
        rows = {left: _row(seeds, names) for left, seeds in on.items()}
        digests = {left: [run.digest[:12] for run in of.values()] for left, of in runs.items()}
        found.append(UnseenScores(label, rows, _mean(runs, rule), digests))
    if not found:
        raise ProtofedError("no run was finished")
    return found


def _row(
    seeds: Sequence[dict[str, float | None]], names: Sequence[str]
) -> dict[str, SeedSpread | None]:
    """Each test domain's score over seeds; none if no run was tested on it."""
    columns = {name: [scores.get(name) for scores in seeds] for name in names}
    known = {name: [v for v in values if v is not None] for name, values in columns.items()}
    return {name: SeedSpread.of(values) if values else None for name, values in known.items()}


def _mean(runs: dict[str, dict[int, RunResult]], rule: ScoreRule) -> SeedSpread | None:
    """The mean over left-out domains by seed, then over the seeds that have all of them."""
    seeds = set.intersection(*(set(of) for of in runs.values()))
    means = []
    for seed in sorted(seeds):
        values = [of[seed].scores(rule).domains.get(left) for left, of in runs.items()]
        known = [value for value in values if value is not None]
        means += [statistics.fmean(known)] if known else []
    return SeedSpread.of(means) if means else None


def unseen_table(unseen: UnseenScores) -> TextTable:
    """One row per left-out domain: the scores on every domain, and on the unseen one at the end.

    The score on the unseen domain is in brackets. The last row is the mean over the unseen domains.
    """
    head = [f"{unseen.label}, trained without", *unseen.domains, "on the unseen"]
    rows = []
    for left, row in unseen.rows.items():
        cells = [
            f"[{format_spread(row[d])}]" if d == left else format_spread(row[d])
            for d in unseen.domains
        ]
        rows.append([left, *cells, format_spread(row.get(left))])
    mean = ["mean of the unseen", *[""] * len(unseen.domains), format_spread(unseen.mean)]
    return TextTable(head, [*rows, mean], line_before=len(rows))


def unseen_summary(found: Sequence[UnseenScores]) -> TextTable:
    """Methods x left-out domains: each score on the domain that was left out, and the mean.

    Domains without a finished run of a method show ``-``.
    """
    domains = list(dict.fromkeys(left for one in found for left in one.rows))
    head = ["on the unseen domain", *domains, "mean"]
    rows = []
    for one in found:
        own = [one.rows.get(left, {}).get(left) for left in domains]
        rows.append([one.label, *map(format_spread, own), format_spread(one.mean)])
    return TextTable(head, rows)


def unseen_footnotes(found: Sequence[UnseenScores], rule: str, notes: Sequence[str]) -> list[str]:
    """The lines under the tables: the rule in words, the notes, and the digests of all runs."""
    told = [f"accuracy in %, {rule}; [in brackets]: on the domain that was left out"]
    told += [f"note: {note}" for note in notes]
    for one in found:
        runs = "; ".join(f"without {left} {' '.join(of)}" for left, of in one.digests.items())
        told.append(f"runs: {one.label} {runs}")
    return told


def unseen_document(
    found: Sequence[UnseenScores], rule: str, notes: Sequence[str]
) -> TableDocument:
    """One table per method and, if there are several methods, one that compares them.

    `rule` says in words how the scores were taken. CSV has one line per method, left-out domain
    and test domain, without the notes.
    """
    tables = [unseen_table(one) for one in found]
    if len(found) > 1:
        tables.append(unseen_summary(found))
    return TableDocument(
        tables=tables,
        content=[{**one.to_dict(), "rule": rule, "notes": list(notes)} for one in found],
        notes=unseen_footnotes(found, rule, notes),
        records=_records(found, rule),
    )


def _records(found: Sequence[UnseenScores], rule: str) -> TextTable:
    rows = [
        [one.label, left, name, *spread_numbers(value), rule]
        for one in found
        for left, row in one.rows.items()
        for name, value in row.items()
    ]
    return TextTable(["method", "left_out", "tested_on", "mean", "std", "rule"], rows)
