"""Methods x domains over seeds, with the difference to a baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from protofed.core.errors import ProtofedError, require_known_name
from protofed.experiment.evaluate import DomainScores
from protofed.experiment.result import RunResult
from protofed.study.collect import RunRecord
from protofed.study.stats import (
    MeanRanks,
    PairedDifference,
    SeedSpread,
    holm_correction,
    mean_ranks,
    paired_difference,
)

Rule = Literal["last_five", "last"]
SUMMARIES = ("mean", "worst", "spread")


@dataclass(frozen=True)
class MethodRow:
    """One method over its seeds, in per cent."""

    label: str
    seeds: tuple[int, ...]
    digests: tuple[str, ...]
    cells: dict[
        str, SeedSpread | None
    ]  # by domain, then mean, worst and spread; none: no test images
    difference: (
        PairedDifference | None
    )  # of the means over domains to the baseline's; none for itself


@dataclass(frozen=True)
class ComparisonTable:
    """A table, the rule by which its scores were taken, and what to know of it."""

    domains: tuple[str, ...]
    rows: tuple[MethodRow, ...]
    baseline: str | None  # none where it has no finished run
    rule: str
    ranks: MeanRanks | None
    notes: tuple[str, ...]
    unseen: str | None = None  # the domain that nobody trained on

    @property
    def columns(self) -> tuple[str, ...]:
        """Domains, then the summaries over them."""
        return (*self.domains, *SUMMARIES)

    def standing(self, column: str, label: str) -> Literal["best", "second", ""]:
        """Whether a row is the best or second best of a column by what is printed; ties are."""
        printed = {r.label: f"{cell.mean:.2f}" for r in self.rows if (cell := r.cells[column])}
        order = sorted(set(printed.values()), key=float, reverse=column != "spread")
        if len(order) < 2 or printed.get(label) not in order[:2]:
            return ""
        return "best" if printed[label] == order[0] else "second"

    def to_dict(self) -> dict[str, Any]:
        """As plain data, ready for JSON."""
        rows = [
            {
                **asdict(row),
                "cells": {n: cell and cell._asdict() for n, cell in row.cells.items()},
                "difference": row.difference and row.difference._asdict(),
            }
            for row in self.rows
        ]
        found = self.ranks and self.ranks._asdict()
        return {**asdict(self), "rows": rows, "ranks": found, "notes": list(self.notes)}


def compare_records(
    records: Sequence[RunRecord],
    baseline: str | None = None,
    rule: Rule = "last_five",
    notes: Sequence[str] = (),
    lost: bool = False,
) -> ComparisonTable:
    """The table of some records; the baseline is the first row if none is named.

    If it is `lost`, as its runs have failed, there are no differences: no other row stands in.
    """
    labels = list(dict.fromkeys(record.label for record in records))
    base = None if lost else require_known_name("baseline", baseline or labels[0], labels)
    of = {label: {r.seed: r.result for r in records if r.label == label} for label in labels}
    if sum(map(len, of.values())) < len(records):
        raise ProtofedError("two runs of one row have the same seed: label them apart")
    rows = [
        _row(label, runs, of[base] if base and label != base else None, rule, len(of) - 1)
        for label, runs in of.items()
    ]
    domains = tuple(records[0].result.last.domains)
    return ComparisonTable(
        domains=domains,
        rows=tuple(_corrected(rows)),
        baseline=base,
        rule=_rule(records, rule),
        ranks=_ranks(rows, domains),
        notes=tuple(notes),
        unseen=records[0].experiment.leave_out,
    )


def _row(
    label: str,
    runs: Mapping[int, RunResult],
    base: Mapping[int, RunResult] | None,
    rule: Rule,
    tests: int,
) -> MethodRow:
    """A row from a method's runs by seed, and from the baseline's if it is another one."""
    scores = {seed: _scores(run, rule) for seed, run in sorted(runs.items())}
    domains = next(iter(scores.values())).domains
    values = {name: [s.domains[name] for s in scores.values()] for name in domains}
    values |= {name: [getattr(s, name) for s in scores.values()] for name in SUMMARIES}
    means = [(s.mean, _mean(base, seed, rule)) for seed, s in scores.items()]
    pairs = [(ours, theirs) for ours, theirs in means if ours is not None and theirs is not None]
    return MethodRow(
        label=label,
        seeds=tuple(scores),
        digests=tuple(runs[seed].digest[:12] for seed in scores),
        cells={name: _spread(column) for name, column in values.items()},
        difference=paired_difference([a for a, _ in pairs], [b for _, b in pairs], tests)
        if pairs
        else None,
    )


def _mean(runs: Mapping[int, RunResult] | None, seed: int, rule: Rule) -> float | None:
    """The mean over domains of the run with a seed, if there is one."""
    return _scores(runs[seed], rule).mean if runs and seed in runs else None


def _rule(records: Sequence[RunRecord], rule: Rule) -> str:
    """The rule in words; rows that took their scores by different ones are refused."""
    found = {record.result.rules[rule]: record.label for record in records}
    if len(found) > 1:
        told = "; ".join(f"{label}: {words}" for words, label in found.items())
        way = "use --score last" if rule == "last_five" else "repeat those that lack a site's score"
        raise ProtofedError(f"scores taken by different rules ({told})\n{way}")
    return next(iter(found))


def _scores(run: RunResult, rule: Rule) -> DomainScores:
    return run.last_five if rule == "last_five" else run.last


def _spread(values: Sequence[float | None]) -> SeedSpread | None:
    known = [value for value in values if value is not None]
    return SeedSpread.of(known) if known else None


def _corrected(rows: Sequence[MethodRow]) -> list[MethodRow]:
    """The rows with p-values that count how many methods were tested against the baseline."""
    ps = holm_correction([row.difference.p if row.difference else None for row in rows])
    return [
        replace(row, difference=row.difference._replace(p=p)) if row.difference else row
        for row, p in zip(rows, ps, strict=True)
    ]


def _ranks(rows: Sequence[MethodRow], domains: Sequence[str]) -> MeanRanks | None:
    """Mean ranks over the domains where every method has a score."""
    common = [name for name in domains if all(row.cells[name] for row in rows)]
    if len(rows) < 2 or not common or len({row.seeds for row in rows}) > 1:
        return None  # with other seeds, another mean
    cells = {row.label: [row.cells[name] for name in common] for row in rows}
    return mean_ranks(
        {label: [cell.mean for cell in line if cell] for label, line in cells.items()}
    )
