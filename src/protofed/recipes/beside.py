"""Our scores beside the printed ones: values, differences, and whether their signs agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protofed.recipes.papers import PrintedPart
from protofed.recipes.recipe import Recipe, Values
from protofed.recipes.scale import RunPlan, Scale
from protofed.study.collect import RunRecord, check_comparable
from protofed.study.stats import PairedDifference, SeedSpread
from protofed.study.table import ComparisonTable, compare_records
from protofed.study.table import MethodRow as OurRow

AVG = "AVG"
SEEN = 0.005  # a difference below it is printed as 0.00 and has no sign


@dataclass(frozen=True)
class ComparedRow:
    """A row of both tables, in per cent; None where there is no number."""

    label: str
    ours: dict[str, SeedSpread | None]  # by column
    paper: dict[str, float]
    paper_std: float | None  # of the last column
    our_delta: PairedDifference | None  # to the baseline
    paper_delta: float | None
    known: bool  # whether the paper's numbers are this row's
    digests: tuple[str, ...]

    def difference(self, column: str) -> float | None:
        """Ours minus the paper's."""
        ours = self.ours[column]
        return ours.mean - self.paper[column] if ours and self.known else None

    @property
    def agrees(self) -> bool | None:
        """Whether both put the row on the same side of the baseline; None if that is not told."""
        ours, theirs = self.our_delta, self.paper_delta
        if ours is None or theirs is None or not self.known:
            return None
        if min(abs(ours.mean), abs(theirs)) < SEEN:
            return None
        return (ours.mean > 0) == (theirs > 0)


@dataclass(frozen=True)
class PaperComparison:
    """A part of a table, ours beside the paper's."""

    part: str
    columns: tuple[str, ...]
    lines: tuple[ComparedRow, ...]
    baseline: str
    rule: str
    rounds: int
    seeds: tuple[int, ...]
    scale: Scale
    settings: Values
    fields: dict[str, Values]  # of each row's method
    failed: tuple[str, ...]  # runs that did, each with its fault
    notes: tuple[str, ...]

    @property
    def comparable(self) -> bool:
        """Whether differences to the paper mean anything."""
        return self.scale != "smoke"

    def to_dict(self) -> dict[str, Any]:
        """As plain data, ready for JSON."""
        return {
            "part": self.part,
            "scale": self.scale,
            "comparable": self.comparable,
            "columns": list(self.columns),
            "baseline": self.baseline,
            "rule": self.rule,
            "rounds": self.rounds,
            "seeds": list(self.seeds),
            "rows": [self._plain(line) for line in self.lines],
            "settings": _plain(self.settings),
            "fields": {label: _plain(values) for label, values in self.fields.items()},
            "notes": list(self.notes),
        }

    def _plain(self, line: ComparedRow) -> dict[str, Any]:
        gaps = {c: line.difference(c) if self.comparable else None for c in self.columns}
        return {
            "label": line.label,
            "ours": {c: cell and cell._asdict() for c, cell in line.ours.items()},
            "paper": line.paper,
            "paper_std": line.paper_std,
            "difference": gaps,
            "our_delta": line.our_delta and line.our_delta._asdict(),
            "paper_delta": line.paper_delta,
            "sign_agrees": line.agrees if self.comparable else None,
            "runs": list(line.digests),
        }


def _plain(values: Values) -> dict[str, dict[str, Any]]:
    return {name: value._asdict() for name, value in values.items()}


def compare_with_paper(
    recipe: Recipe,
    plan: RunPlan,
    scale: Scale,
    printed: PrintedPart,
    records: Sequence[RunRecord],
    faults: Mapping[Path, str],
) -> PaperComparison:
    """A part's finished runs beside what the paper prints; rows without a run have no scores."""
    notes = check_comparable(records)
    finished = {record.label for record in records}
    lost = recipe.baseline not in finished
    table = compare_records(records, recipe.baseline, plan.rule, lost=lost)
    lines = tuple(_line(row.label, recipe, plan, printed, table) for row in recipe.rows)
    failed = tuple(
        f"{cell.label}, seed {cell.seed}: failed: {faults[cell.folder]}"
        for cell in plan.cells
        if cell.folder in faults
    )
    return PaperComparison(
        part=plan.part.name,
        columns=tuple(lines[0].paper),
        lines=lines,
        baseline=recipe.baseline,
        rule=table.rule,
        rounds=records[0].experiment.rounds,
        seeds=tuple(sorted({record.seed for record in records})),
        scale=scale,
        settings=recipe.settings(plan.part),
        fields={row.label: recipe.fields(plan.part, row) for row in recipe.rows},
        failed=failed,
        notes=(plan.note, *failed, *notes, *_reasons(recipe, plan, scale, printed, records)),
    )


def _line(
    label: str,
    recipe: Recipe,
    plan: RunPlan,
    printed: PrintedPart,
    table: ComparisonTable,
) -> ComparedRow:
    theirs, first = printed.rows[label], printed.rows[recipe.baseline]
    rows = {row.label: row for row in table.rows}
    mine = rows.get(label)
    paper = dict(zip(printed.columns, theirs.values, strict=True))
    ours = {column: _cell(mine, plan.columns[column]) for column in printed.columns}
    if theirs.avg is not None:
        paper, ours = {**paper, AVG: theirs.avg}, {**ours, AVG: _cell(mine, "mean")}
    return ComparedRow(
        label=label,
        ours=ours,
        paper=paper,
        paper_std=theirs.std,
        our_delta=mine.difference if mine else None,
        paper_delta=None if label == recipe.baseline else round(theirs.level - first.level, 2),
        known=not printed.unknown(label),
        digests=mine.digests if mine else (),
    )


def _cell(row: OurRow | None, column: str) -> SeedSpread | None:
    return row.cells[column] if row else None


def _reasons(
    recipe: Recipe, plan: RunPlan, scale: Scale, printed: PrintedPart, records: Sequence[RunRecord]
) -> list[str]:
    """What is known to make the numbers differ, each thing once."""
    of_runs = [notice for record in records for notice in record.result.notices]
    of_paper = [f"paper: {fault.note}" for fault in printed.faults]
    if scale == "smoke":  # no difference is shown, so none has a reason
        return list(dict.fromkeys([*of_runs, *of_paper]))
    return list(dict.fromkeys([*of_paper, *plan.part.differences, *recipe.differences, *of_runs]))
