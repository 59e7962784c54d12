"""Our scores beside the printed ones, and the list of recipes, as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, get_args

from protofed.analysis.comparison_table import (
    ComparisonTable,
    compare_records,
    format_difference,
    format_spread,
)
from protofed.analysis.comparison_table import MethodRow as OurRow
from protofed.analysis.finished_runs import (
    APART,
    RunRecord,
    check_comparable,
    describe_identical,
)
from protofed.analysis.statistics import PairedDifference, SeedSpread
from protofed.errors import count_noun
from protofed.paper_tables.recipe import (
    SMOKE_RUN,
    SOURCES,
    PrintedPart,
    PrintedTable,
    Recipe,
    RunPlan,
    Scale,
    Values,
    printed_table,
    read_recipe,
    recipe_names,
    rough_estimate,
)
from protofed.runtime.text_tables import TableDocument, TextTable

AVG = "AVG"
SEEN = 0.005  # a difference below it is printed as 0.00 and has no sign


@dataclass(frozen=True)
class ComparedRow:
    """A row of a paper's table beside ours, in per cent; None where there is no number.

    `paper` is empty for a row that the paper's table lacks, and at scale ``smoke``, whose columns
    are those of other images. `known` is False
    if the printed numbers belong to another row (a misprint): then nothing is compared. `our_delta`
    and `paper_delta` are differences of averages to the baseline.
    """

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
        theirs = self.paper.get(column)
        return ours.mean - theirs if ours and theirs is not None and self.known else None

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
    """One part of a paper's table, our scores beside the printed ones, with settings and notes.

    At scale ``smoke`` it is not `comparable`: nothing of the paper is shown.
    """

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
    """Compare the finished runs of a part with the printed numbers.

    Rows without finished runs have no scores; `faults` holds the reasons by run folder. If the
    baseline has none, no row has a difference.
    """
    own = {"training"} if any(plan.part.row_training(row.label) for row in recipe.rows) else set()
    notes = check_comparable(records, {*APART, *own})
    finished = {record.label for record in records}
    lost = recipe.baseline not in finished
    table = compare_records(records, recipe.baseline, plan.rule, lost=lost)
    facts = None if scale == "smoke" else printed
    lines = tuple(_line(row.label, recipe, plan, facts, table) for row in recipe.rows)
    failed = tuple(
        f"{cell.label}, seed {cell.seed}: {faults[cell.folder]}"
        for cell in plan.cells
        if cell.folder in faults
    )
    return PaperComparison(
        part=plan.part.name,
        columns=tuple(lines[0].ours),
        lines=lines,
        baseline=recipe.baseline,
        rule=table.rule,
        rounds=records[0].experiment.rounds,
        seeds=tuple(sorted({record.seed for record in records})),
        scale=scale,
        settings=recipe.settings(plan.part),
        fields={row.label: recipe.fields(plan.part, row) for row in recipe.rows},
        failed=failed,
        notes=(
            *(plan.note, *failed, *notes, *describe_identical(table.identical)),
            *_reasons(recipe, plan, facts, records),
        ),
    )


def _line(
    label: str,
    recipe: Recipe,
    plan: RunPlan,
    printed: PrintedPart | None,
    table: ComparisonTable,
) -> ComparedRow:
    """One row; without the printed part, or as a row that it lacks, it has our scores alone."""
    rows = {row.label: row for row in table.rows}
    mine = rows.get(label)
    ours = {column: _cell(mine, domain) for column, domain in plan.columns.items()}
    row = ComparedRow(
        label=label,
        ours={**ours, AVG: _cell(mine, "mean")} if len(ours) > 1 else ours,
        paper={},
        paper_std=None,
        our_delta=mine.difference if mine else None,
        paper_delta=None,
        known=True,
        digests=mine.digests if mine else (),
    )
    if printed is None or label not in printed.rows:
        return row
    theirs, first = printed.rows[label], printed.rows[recipe.baseline]
    paper = dict(zip(printed.columns, theirs.values, strict=True))
    return replace(
        row,
        paper=paper if theirs.avg is None else {**paper, AVG: theirs.avg},
        paper_std=theirs.std,
        paper_delta=None if label == recipe.baseline else round(theirs.level - first.level, 2),
        known=not printed.unknown(label),
    )


def _cell(row: OurRow | None, column: str) -> SeedSpread | None:
    return row.cells[column] if row else None


def _reasons(
    recipe: Recipe, plan: RunPlan, printed: PrintedPart | None, records: Sequence[RunRecord]
) -> list[str]:
    """What is known to make the numbers differ, each thing once."""
    of_runs = [str(notice) for record in records for notice in record.result.notices]
    if printed is None:  # no difference is shown, so none has a reason
        return list(dict.fromkeys(of_runs))
    of_paper = [f"paper: {fault.note}" for fault in printed.faults]
    added = [row.label for row in recipe.rows if row.label not in printed.rows]
    of_ours = [f"not in the paper's table: {', '.join(added)}"] if added else []
    tuned = [f"tuned by: {plan.part.tuning}"] if plan.part.tuning else []
    known = [*of_paper, *of_ours, *plan.part.differences, *recipe.differences, *tuned]
    return list(dict.fromkeys([*known, *of_runs]))


Cells = list[list[str]]


@dataclass(frozen=True)
class RecipeReport:
    """A paper's table as far as it could be run.

    `parts` are compared, `skipped` could not run (no images), and of `failed` no run finished.
    `faulty` tells whether any run failed.
    """

    name: str
    table: PrintedTable
    parts: tuple[PaperComparison, ...]
    skipped: dict[str, str]  # parts that did not run, and why
    failed: dict[str, str]  # parts of which no run came to its end, and why

    @property
    def title(self) -> str:
        """Whose table it is, and what it shows."""
        return f"{self.table.paper} ({self.table.venue}), {self.table.table}: {self.table.caption}"

    @property
    def faulty(self) -> bool:
        """Whether any run failed."""
        return bool(self.failed) or any(part.failed for part in self.parts)

    @property
    def missing(self) -> list[tuple[str, str]]:
        """The parts without a table, each with what became of it."""
        skipped = [(name, f"skipped: {why}") for name, why in self.skipped.items()]
        return [*skipped, *((name, f"failed: {why}") for name, why in self.failed.items())]

    def to_dict(self) -> dict[str, Any]:
        """As plain data, ready for JSON."""
        return {
            "name": self.name,
            **self.table.model_dump(include={"paper", "venue", "table", "caption"}),
            "parts": [part.to_dict() for part in self.parts],
            "skipped": self.skipped,
            "failed": self.failed,
        }


def part_header(part: PaperComparison) -> list[str]:
    """The column heads of a part.

    Where nothing can be compared with the paper, the heads are of our scores alone.
    """
    if not part.comparable:
        return ["method", *part.columns, f"to {part.baseline}"]
    return ["method", "", *part.columns, f"to {part.baseline}", "same sign"]


def part_rows(part: PaperComparison) -> Cells:
    """The rows of a part as text, as many cells as `part_header` has heads.

    Each method has three rows: ours, the paper's, and the difference. If the scale does not allow
    to compare them, or the paper's table lacks the method, it has ours alone.
    """
    if part.comparable:
        return [row for line in part.lines for row in _three(part, line)]
    return [
        [line.label, *_scores(part, line), format_difference(line.our_delta)] for line in part.lines
    ]


def _scores(part: PaperComparison, line: ComparedRow) -> list[str]:
    return [format_spread(line.ours[column]) for column in part.columns]


def _three(part: PaperComparison, line: ComparedRow) -> Cells:
    mine = [line.label, "ours", *_scores(part, line), format_difference(line.our_delta), ""]
    if not line.paper:  # a row that the paper's table lacks
        return [mine]
    theirs = [f"{line.paper[c]:.2f}" for c in part.columns]
    if line.paper_std is not None:
        theirs[-1] += f" ± {line.paper_std:.2f}"
    gaps = [_signed(line.difference(c), "-") for c in part.columns]
    agrees = {None: "", True: "yes", False: "no"}[line.agrees]
    return [
        mine,
        ["", "paper", *theirs, _signed(line.paper_delta, ""), ""],
        ["", "difference", *gaps, "", agrees],
    ]


def _signed(value: float | None, none: str) -> str:
    return none if value is None else f"{value:+.2f}"


def part_footnotes(part: PaperComparison) -> list[str]:
    """The lines under a part: what ran, the rule, known reasons for differences, and digests.

    The scale comes first, so nobody takes a smoke run for a result.
    """
    seeds = f"{len(part.seeds)} seed{'s' * (len(part.seeds) > 1)}"
    rounds = f"{part.rounds} round{'s' * (part.rounds > 1)}"
    rule = f"ours: accuracy in %, {part.rule} of {rounds}, {seeds}; to {part.baseline}: of averages"
    runs = "; ".join(f"{line.label} {' '.join(line.digests)}" for line in part.lines)
    return [f"scale {part.scale}: {part.notes[0]}", rule, *part.notes[1:], f"runs: {runs}"]


def settings_by_source(values: Values) -> list[str]:
    """One line per source (paper, public code, our choice, tuned) with its values.

    ``recipe, paper: net lsa-cnn, rounds 100``; sources without values have no line.
    """
    lines = []
    for source, name in SOURCES.items():
        mine = [f"{key} {value}" for key, (value, whose) in values.items() if whose == source]
        if mine:
            lines.append(f"recipe, {name}: {', '.join(mine)}")
    return lines


SETTINGS_NOTE = (
    "settings by source; a field of a method that is not named has its default, our choice"
)


def recipe_document(report: RecipeReport) -> TableDocument:
    """The whole report as text: a table per part with its notes and its settings by source.

    Parts that were skipped or failed follow with their reason instead of a table.
    """
    tables = [_part_table(part) for part in report.parts]
    missing = [TextTable((), (), name, why.splitlines()) for name, why in report.missing]
    return TableDocument([*tables, *missing], report.to_dict(), report.title)


def _part_table(part: PaperComparison) -> TextTable:
    fields = {
        f"{label}: {n}": v for label, values in part.fields.items() for n, v in values.items()
    }
    sources = settings_by_source({**part.settings, **fields})
    notes = [*part_footnotes(part), SETTINGS_NOTE, *sources]
    title = part.part if part.comparable else f"{part.part}: run on digits-mini"
    return TextTable(part_header(part), part_rows(part), title, notes)


ALL_SCALES: tuple[Scale, ...] = get_args(Scale)
HEADS = ["name", "paper", "table", "parts", "rows", *ALL_SCALES]


class ListedRecipe(NamedTuple):
    """A recipe as ``protofed reproduce`` lists it, with rough times.

    `seconds` are for one core and count the parts whose number of images is known; `whole` says
    whether these are all parts.
    """

    name: str
    paper: str
    table: str
    parts: tuple[str, ...]
    rows: int
    seconds: dict[Scale, float]  # on one core, of the parts whose images are known
    whole: bool  # whether those are all

    def cells(self) -> list[str]:
        """As a row of a table."""
        star = "" if self.whole else "*"
        times = [format_duration(self.seconds[scale]) + star for scale in ALL_SCALES]
        parts = ", ".join(self.parts)
        return [self.name, self.paper, self.table, parts, str(self.rows), *times]

    def to_dict(self) -> dict[str, Any]:
        """As plain data, ready for JSON."""
        return {**self._asdict(), "parts": list(self.parts)}


def list_recipes() -> list[ListedRecipe]:
    """Every recipe with its parts and rough times, in alphabetical order."""
    return [_list_recipe(read_recipe(name)) for name in recipe_names()]


def recipes_document(recipes: Sequence[ListedRecipe]) -> TableDocument:
    """The list of recipes as a table, with rough times for one core at each scale."""
    note = "times: rough estimates for one core; *: without parts whose images are not there"
    table = TextTable(HEADS, [recipe.cells() for recipe in recipes])
    return TableDocument([table], [recipe.to_dict() for recipe in recipes], notes=[note])


def _list_recipe(recipe: Recipe) -> ListedRecipe:
    table = printed_table()[recipe.name]
    times: dict[Scale, list[float | None]] = {
        scale: [rough_estimate(recipe, p, scale) for p in recipe.parts] for scale in ALL_SCALES
    }
    times["smoke"] = [SMOKE_RUN * len(recipe.rows)]  # its parts share their runs
    return ListedRecipe(
        name=recipe.name,
        paper=f"{table.paper} ({table.venue})",
        table=table.table,
        parts=tuple(part.name for part in recipe.parts),
        rows=len(recipe.rows),
        seconds={scale: sum(s for s in known if s is not None) for scale, known in times.items()},
        whole=None not in times["paper"],
    )


def format_duration(seconds: float) -> str:
    """A rough time for people: ``40 seconds``, ``12 minutes``, ``5.5 hours``, ``3.2 days``."""
    for size, unit, most in ((1, "second", 90), (60, "minute", 5400)):
        if seconds < most:
            return count_noun(max(1, round(seconds / size)), unit)
    size, unit = (3600, "hours") if seconds < 48 * 3600 else (86400, "days")
    count = seconds / size
    return f"{count:.1f} {unit}" if count < 10 else f"{count:.0f} {unit}"
