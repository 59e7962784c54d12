"""What a federation is measured against: each place alone, and the images of all places pooled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from protofed.analysis.comparison_table import ComparisonTable, MethodRow, compare_records
from protofed.analysis.finished_runs import RunRecord
from protofed.analysis.sweep import GridVariant
from protofed.errors import ProtofedError
from protofed.experiment.result import RunResult, ScoreRule
from protofed.federation.evaluation import last_5_mean
from protofed.methods import METHODS
from protofed.spec.spec_parser import Raw

ALONE, POOLED = "each alone", "all pooled"


def reference_variants(raw: Raw) -> list[GridVariant]:
    """Two more rows for the experiment that all methods of a comparison share.

    Each place alone: every client trains a model of its own, which is scored on its own domain. All
    pooled: plain averaging over one client that holds the images of all.
    """
    shared = {name: value for name, value in raw.items() if name != "method"}
    alone = {**shared, "method": _without_messages()}
    return [GridVariant(ALONE, alone), GridVariant(POOLED, {**shared, "pooled": True})]


def _without_messages() -> str:
    """The name of the method by which nothing travels."""
    for name, method in METHODS.items():
        made = method()
        if made.personal and not made.payload.up and not made.payload.down:
            return name
    raise ProtofedError("there is no method without messages")


def with_references(
    table: ComparisonTable, records: Sequence[RunRecord], rule: ScoreRule | None
) -> ComparisonTable:
    """The table with a row for each reference; `records` are the finished runs of these."""
    if not records:
        return table
    at_home = [
        record._replace(result=scored_at_home(record.result)) if record.label == ALONE else record
        for record in records
    ]
    found = compare_records(at_home, rule=rule)
    rows = tuple(replace(row, difference=None) for row in found.rows)
    return replace(table, references=rows, notes=(*table.notes, *_who_gains(table, rows)))


def scored_at_home(result: RunResult) -> RunResult:
    """The result of a personal method with each client's score on its own domain alone."""
    own = [one.own for one in result.history]
    known = [scores for scores in own if scores is not None]
    if len(known) < len(own) or not own:
        raise ProtofedError(f"{result.folder} has no scores of clients on their own domains")
    history = tuple(replace(e, scores=s) for e, s in zip(result.history, known, strict=True))
    return replace(result, history=history, last=known[-1], last_five=last_5_mean(known))


def _who_gains(table: ComparisonTable, references: Sequence[MethodRow]) -> list[str]:
    """For each method, what every place gains by joining, beside training alone."""
    alone = next((row for row in references if row.label == ALONE), None)
    if alone is None:
        return []
    told = []
    for row in table.rows:
        gains = {
            name: ours.mean - theirs.mean
            for name in table.domains
            if (ours := row.cells[name]) and (theirs := alone.cells[name])
        }
        if gains:
            words = ", ".join(f"{name} {gain:+.2f}" for name, gain in gains.items())
            losing = sum(gain < 0 for gain in gains.values())
            verdict = f"{losing} of {len(gains)} places lose" if losing else "no place loses"
            told.append(f"{row.label} against {ALONE}: {words}; {verdict}")
    return told
