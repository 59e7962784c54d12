"""A reproduced table as text: for the terminal, as Markdown, as JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from protofed.recipes.beside import ComparedRow, PaperComparison
from protofed.recipes.papers import PrintedTable
from protofed.recipes.recipe import SOURCES, Values
from protofed.study.formats import format_difference, format_spread

Cells = list[list[str]]


@dataclass(frozen=True)
class RecipeReport:
    """A table of a paper, as far as it could be run."""

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
    """The heads of a part's columns."""
    compared = ["same sign"] if part.comparable else []
    return ["method", "", *part.columns, f"to {part.baseline}", *compared]


def part_rows(part: PaperComparison) -> Cells:
    """A part's rows: ours, the paper's and, where it means something, the difference."""
    return [row for line in part.lines for row in _three(part, line)]


def _three(part: PaperComparison, line: ComparedRow) -> Cells:
    last = part.columns[-1]
    theirs = [f"{line.paper[c]:.2f}" for c in part.columns]
    if line.paper_std is not None:
        theirs[part.columns.index(last)] += f" ± {line.paper_std:.2f}"
    rows = [
        [
            line.label,
            "ours",
            *(format_spread(line.ours[c]) for c in part.columns),
            format_difference(line.our_delta),
        ],
        ["", "paper", *theirs, _signed(line.paper_delta, "")],
    ]
    if not part.comparable:
        return rows
    gaps = [_signed(line.difference(c), "-") for c in part.columns]
    agrees = {None: "", True: "yes", False: "no"}[line.agrees]
    return [[*rows[0], ""], [*rows[1], ""], ["", "difference", *gaps, "", agrees]]


def _signed(value: float | None, none: str) -> str:
    return none if value is None else f"{value:+.2f}"


def part_footnotes(part: PaperComparison) -> list[str]:
    """What must stand under a part, the scale first."""
    seeds = f"{len(part.seeds)} seed{'s' * (len(part.seeds) > 1)}"
    rounds = f"{part.rounds} round{'s' * (part.rounds > 1)}"
    rule = f"ours: accuracy in %, {part.rule} of {rounds}, {seeds}; to {part.baseline}: of averages"
    runs = "; ".join(f"{line.label} {' '.join(line.digests)}" for line in part.lines)
    return [f"scale {part.scale}: {part.notes[0]}", rule, *part.notes[1:], f"runs: {runs}"]


def settings_by_source(values: Values) -> list[str]:
    """One line for each source: the values that come from it."""
    lines = []
    for source, name in SOURCES.items():
        mine = [f"{key} {value}" for key, (value, whose) in values.items() if whose == source]
        if mine:
            lines.append(f"recipe, {name}: {', '.join(mine)}")
    return lines


def recipe_markdown(report: RecipeReport) -> str:
    """The whole report: a table and its notes for each part, then its settings by source."""
    blocks = [f"## {_safe(report.title)}"]
    for part in report.parts:
        rows = [part_header(part), ["---"] * len(part_header(part)), *part_rows(part)]
        table = "\n".join(f"| {' | '.join(map(_safe, row))} |" for row in rows)
        blocks += [f"### {part.part}", table, _bullet_list(part_footnotes(part)), *_sources(part)]
    blocks += [f"### {name}\n\n{_safe(why)}" for name, why in report.missing]
    return "\n\n".join(blocks) + "\n"


def _sources(part: PaperComparison) -> list[str]:
    fields = {
        f"{label}: {n}": v for label, values in part.fields.items() for n, v in values.items()
    }
    lead = "Settings; what a method is not given here is its default, our choice:"
    return [lead, _bullet_list(settings_by_source({**part.settings, **fields}))]


def _bullet_list(lines: list[str]) -> str:
    return "\n".join(f"- {_safe(line)}" for line in lines)


def _safe(text: str) -> str:
    """On one line, bars escaped: both would break a table."""
    return " ".join(text.split()).replace("\\", r"\\").replace("|", r"\|")


def recipe_json(report: RecipeReport) -> str:
    """All there is, as JSON."""
    return json.dumps(report.to_dict(), indent=2, allow_nan=False, ensure_ascii=False) + "\n"
