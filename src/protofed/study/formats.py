"""A comparison as text: Markdown, LaTeX, CSV and JSON, each with the rule behind its scores."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence
from typing import Literal

from protofed.experiment.result import mark_unseen
from protofed.study.stats import PairedDifference, SeedSpread, fewest_pairs
from protofed.study.table import ComparisonTable, MethodRow

Format = Literal["table", "markdown", "latex", "csv", "json"]
TEX = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
}
HEADS = {"mean": "AVG", "worst": "worst", "spread": "spread"}


def format_spread(value: SeedSpread | None) -> str:
    """``61.15`` for one seed, ``61.15 ± 0.42`` for several."""
    if value is None:
        return "-"
    return f"{value.mean:.2f}" if value.std is None else f"{value.mean:.2f} ± {value.std:.2f}"


def format_difference(value: PairedDifference | None) -> str:
    """``+1.20 [+0.30, +2.10]``: the difference and its 95 % interval."""
    if value is None:
        return ""
    if value.low is None or value.high is None:
        return f"{value.mean:+.2f}"
    return f"{value.mean:+.2f} [{value.low:+.2f}, {value.high:+.2f}]"


def format_p_value(value: PairedDifference | None) -> str:
    """The p-value, or why there is none."""
    if value is None:
        return ""
    return "too few seeds to test" if value.p is None else f"p = {value.p:.3f}"


def table_header(table: ComparisonTable) -> list[str]:
    """The heads of the columns."""
    columns = [HEADS.get(name, mark_unseen(name, table.unseen)) for name in table.columns]
    return ["method", *columns, *([f"to {table.baseline}", "test"] if table.baseline else [])]


def table_row(table: ComparisonTable, row: MethodRow) -> list[str]:
    """A row as text."""
    cells = [format_spread(row.cells[name]) for name in table.columns]
    compared = (
        [format_difference(row.difference), format_p_value(row.difference)]
        if table.baseline
        else []
    )
    return [row.label, *cells, *compared]


def table_footnotes(table: ComparisonTable) -> list[str]:
    """What must stand under the table."""
    seeds = sorted({seed for row in table.rows for seed in row.seeds})
    count = f"{len(seeds)} seed{'s' * (len(seeds) > 1)} ({', '.join(map(str, seeds))})"
    several = len(seeds) > 1
    deviation = ", ± standard deviation over seeds" if several else ""
    notes = [f"accuracy in %, {table.rule}; {count}{deviation}"]
    if len(table.rows) > 1 and several and table.baseline:
        notes.append(
            f"to {table.baseline}: paired by seed, 95 % interval (Student's t); test: Wilcoxon "
            f"signed rank, Holm-corrected, from {fewest_pairs(len(table.rows) - 1)} seeds on"
        )
    if table.ranks and table.ranks.critical is not None:
        mean = ", ".join(f"{label} {rank:.2f}" for label, rank in table.ranks.means.items())
        notes.append(
            f"mean rank over domains: {mean}; they differ at 5 % if further apart than "
            f"{table.ranks.critical:.2f} (Nemenyi; Friedman p = {table.ranks.p:.3f})"
        )
    runs = "; ".join(f"{row.label} {' '.join(row.digests)}" for row in table.rows)
    return [*notes, *table.notes, f"runs: {runs}"]


def table_markdown(table: ComparisonTable) -> str:
    """A Markdown table; best in bold, second in italics."""
    head = table_header(table)
    rows = [
        [_marked(table, row, place, text) for place, text in enumerate(table_row(table, row))]
        for row in table.rows
    ]
    body = [head, ["---"] * len(head), *rows]
    text = "\n".join(f"| {' | '.join(_safe(part, '|') for part in parts)} |" for parts in body)
    return text + "\n\n" + "\n".join(f"- {note}" for note in table_footnotes(table)) + "\n"


def table_latex(table: ComparisonTable) -> str:
    """A booktabs table; best in bold, second underlined."""
    rows, width = [], 1 + len(table.columns) + bool(table.baseline)  # without the test
    for row in table.rows:
        cells = [escape_latex(text) for text in table_row(table, row)[:width]]
        for place, name in enumerate(table.columns, start=1):
            standing = table.standing(name, row.label)
            if standing:
                command = "textbf" if standing == "best" else "underline"
                cells[place] = f"\\{command}{{{cells[place]}}}"
        rows.append(" & ".join(cells) + r" \\")
    heads = " & ".join(escape_latex(text) for text in table_header(table)[:width]) + r" \\"
    notes = "\n".join(f"% {note}" for note in table_footnotes(table))
    columns = "l" + "c" * (width - 1)
    body = "\n".join(rows)
    return (
        f"{notes}\n\\begin{{tabular}}{{{columns}}}\n\\toprule\n{heads}\n\\midrule\n"
        f"{body}\n\\bottomrule\n\\end{{tabular}}\n"
    )


def table_csv(table: ComparisonTable) -> str:
    """One line a method and column: method, column, mean, std, seeds; for other programs."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["method", "column", "mean", "std", "seeds", "rule"])
    for row in table.rows:
        for name in table.columns:
            value = row.cells[name]
            numbers = [value.mean, "" if value.std is None else value.std] if value else ["", ""]
            writer.writerow([row.label, name, *numbers, len(row.seeds), table.rule])
    return out.getvalue()


def table_json(table: ComparisonTable) -> str:
    """All there is, as JSON."""
    return json.dumps(table.to_dict(), indent=2, allow_nan=False) + "\n"


FORMATS: dict[str, Callable[[ComparisonTable], str]] = {
    "markdown": table_markdown,
    "latex": table_latex,
    "csv": table_csv,
    "json": table_json,
}


def _marked(table: ComparisonTable, row: MethodRow, place: int, text: str) -> str:
    """A cell of a Markdown table, marked if it is one of the best two."""
    if not 1 <= place <= len(table.columns):
        return text
    standing = table.standing(table.columns[place - 1], row.label)
    mark = {"best": "**", "second": "*", "": ""}[standing]
    return f"{mark}{text}{mark}"


def _safe(text: str, mark: str) -> str:
    return text.replace(mark, f"\\{mark}")


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(TEX.get(c, c) for c in text)


def table_terminal(
    table: ComparisonTable,
) -> tuple[Sequence[str], Sequence[Sequence[str]], Sequence[str]]:
    """Head, rows and footnotes for the terminal."""
    return (
        table_header(table),
        [table_row(table, row) for row in table.rows],
        table_footnotes(table),
    )
