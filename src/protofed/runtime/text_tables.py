"""Tables as text: rows of cells in; Markdown, LaTeX, HTML, CSV, JSON or terminal lines out.

Every table that protofed prints is written here, so each format has one escape for foreign text.
"""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar, get_args

from protofed.errors import ProtofedError, printable_text

if TYPE_CHECKING:
    from pandas import DataFrame

Key = TypeVar("Key", int, str)
TableFormat = Literal["terminal", "markdown", "latex", "html", "csv", "json"]
TABLE_FORMATS: tuple[TableFormat, ...] = get_args(TableFormat)
PLAIN_WIDTH = 200  # columns of text that no terminal limits
TEX = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "[": "{[}",  # after \\ it would begin an optional argument
    "±": r"$\pm$",
}


class RankedCell(NamedTuple):
    """A cell that Markdown and LaTeX emphasise: the best of its column, or the second best."""

    text: str
    rank: Literal["best", "second", ""]


Cell = str | RankedCell


@dataclass(frozen=True)
class TextTable:
    """A table of text cells with an optional title above it and notes below it.

    Every row has as many cells as `head`. A table with an empty head is not drawn; its title and
    notes still are. `line_before` is the number of the row above which a terminal draws a line.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""
    notes: Sequence[str] = ()
    line_before: int | None = None


@dataclass(frozen=True)
class TableDocument:
    """What a command prints: tables for people, and the same content for programs.

    `content` is plain data for JSON. `records` replaces the tables in CSV where another layout
    suits programs better, for example one line per method and domain.
    """

    tables: Sequence[TextTable]
    content: object
    title: str = ""
    notes: Sequence[str] = ()
    records: TextTable | None = None


def render_document(
    document: TableDocument, form: TableFormat = "terminal", width: int | None = None
) -> str:
    """The document in one of the formats; `width` limits the lines of a terminal.

    CSV holds the tables alone, with an empty line between two; the other formats hold all of it.
    """
    if form == "json":
        return json.dumps(document.content, indent=2, allow_nan=False) + "\n"
    if form == "csv":
        tables = [document.records] if document.records else document.tables
        return "\n".join(csv_table(table) for table in tables if table.head)
    if form == "latex":
        return _latex_document(document)
    if form == "html":
        return _html_document(document)
    blocks = _markdown(document) if form == "markdown" else _terminal(document, width)
    return "\n\n".join(filter(None, blocks)) + "\n"


def escape_markdown(text: object) -> str:
    """Foreign text on one line, with nothing in it that Markdown or HTML would act on."""
    line = printable_text(" ".join(str(text).split()))
    marked = re.sub(r"([\\`*_\[\]#|~$^]|(?<=\])\()", r"\\\1", line)
    return marked.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def escape_latex(text: object) -> str:
    """Foreign text on one line, as LaTeX prints it unchanged."""
    return "".join(TEX.get(c, c) for c in printable_text(" ".join(str(text).split())))


def markdown_table(table: TextTable) -> str:
    """The rows of a table in Markdown; the best cell in bold, the second best in italics."""
    head = [escape_markdown(cell) for cell in table.head]
    rows = [[_markdown_cell(cell) for cell in row] for row in table.rows]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def markdown_list(lines: Iterable[str]) -> str:
    """A bullet list of foreign text, none of which begins a list of its own."""
    escaped = (re.sub(r"^(\d*)([-+.)])", r"\1\\\2", escape_markdown(line)) for line in lines)
    return "\n".join(f"- {line}" for line in escaped)


def latex_table(table: TextTable) -> str:
    """The rows of a table for booktabs; the best cell in bold, the second best underlined."""
    body = "\n".join(" & ".join(_latex_cell(cell) for cell in row) + r" \\" for row in table.rows)
    head = " & ".join(escape_latex(cell) for cell in table.head) + r" \\"
    columns = "l" + "c" * (len(table.head) - 1)
    return (
        f"\\begin{{tabular}}{{{columns}}}\n\\toprule\n{head}\n\\midrule\n"
        f"{body}\n\\bottomrule\n\\end{{tabular}}\n"
    )


def html_table(table: TextTable) -> str:
    """A table as HTML without styles; the best cell is strong, the second best emphasised."""
    head = "".join(f"<th>{escape_html(cell)}</th>" for cell in table.head)
    rows = ["".join(f"<td>{_html_cell(cell)}</td>" for cell in row) for row in table.rows]
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table>"


def escape_html(text: object) -> str:
    """Foreign text on one line, with nothing in it that a browser would act on."""
    return html.escape(printable_text(" ".join(str(text).split())))


def csv_table(table: TextTable) -> str:
    """The head and rows of a table as CSV, every cell as it is."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table.head)
    writer.writerows([_text(cell) for cell in row] for row in table.rows)
    return out.getvalue()


def data_frame(rows: Mapping[Key, Mapping[str, object]], index: str) -> DataFrame:
    """A DataFrame with one line per entry of `rows`; `index` names the column of their keys."""
    try:
        import pandas as pd
    except ImportError:
        raise ProtofedError("a DataFrame needs pandas: pip install 'protofed[pandas]'") from None
    frame = pd.DataFrame.from_dict({key: dict(row) for key, row in rows.items()}, orient="index")
    return frame.rename_axis(index)


def terminal_table(table: TextTable, width: int | None = None) -> str:
    """A table in aligned columns: the first to the left, numbers to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for place, name in enumerate(table.head):
        right = place > 0 and all(_is_number(_text(row[place])) for row in table.rows)
        shown.add_column(
            Text(printable_text(name)), justify="right" if right else "left", overflow="fold"
        )
    for number, row in enumerate(table.rows, start=1):
        # Text, as names in square brackets would be taken for markup
        cells = (Text(printable_text(_text(cell))) for cell in row)
        shown.add_row(*cells, end_section=number == table.line_before)
    console = Console(width=width)
    with console.capture() as captured:
        console.print(shown)
    return captured.get().rstrip("\n")


def _markdown(document: TableDocument) -> list[str]:
    blocks = [f"## {escape_markdown(document.title)}" if document.title else ""]
    for table in document.tables:
        blocks.append(f"### {escape_markdown(table.title)}" if table.title else "")
        blocks.append(markdown_table(table) if table.head else "")
        blocks.append(markdown_list(table.notes))
    return [*blocks, markdown_list(document.notes)]


def _terminal(document: TableDocument, width: int | None) -> list[str]:
    blocks = [printable_text(document.title)]
    for table in document.tables:
        drawn = terminal_table(table, width) if table.head else ""
        blocks.append("\n".join(filter(None, [printable_text(table.title), drawn])))
        blocks.append("\n".join(map(printable_text, table.notes)))
    return [*blocks, "\n".join(map(printable_text, document.notes))]


def _latex_document(document: TableDocument) -> str:
    """Titles and notes as comments, each above what it belongs to."""
    blocks = [_latex_comments([document.title, *document.notes])]
    for table in document.tables:
        comments = _latex_comments([table.title, *table.notes])
        blocks.append(comments + (latex_table(table) if table.head else ""))
    return blocks[0] + "\n".join(blocks[1:])


def _html_document(document: TableDocument) -> str:
    blocks = [f"<h3>{escape_html(document.title)}</h3>" if document.title else ""]
    for table in document.tables:
        blocks.append(f"<h4>{escape_html(table.title)}</h4>" if table.title else "")
        blocks.append(html_table(table) if table.head else "")
        blocks += [f"<p>{escape_html(line)}</p>" for line in table.notes]
    blocks += [f"<p>{escape_html(line)}</p>" for line in document.notes]
    return "\n".join(filter(None, blocks)) + "\n"


def _latex_comments(lines: Iterable[str]) -> str:
    return "".join(f"% {printable_text(line)}\n" for line in lines if line)


def _markdown_cell(cell: Cell) -> str:
    mark = "" if isinstance(cell, str) else {"best": "**", "second": "*", "": ""}[cell.rank]
    return f"{mark}{escape_markdown(_text(cell))}{mark}"


def _html_cell(cell: Cell) -> str:
    text = escape_html(_text(cell))
    if isinstance(cell, str) or not cell.rank:
        return text
    return f"<strong>{text}</strong>" if cell.rank == "best" else f"<em>{text}</em>"


def _latex_cell(cell: Cell) -> str:
    text = escape_latex(_text(cell))
    if isinstance(cell, str) or not cell.rank:
        return text
    return f"\\{'textbf' if cell.rank == 'best' else 'underline'}{{{text}}}"


def _text(cell: Cell) -> str:
    return cell if isinstance(cell, str) else cell.text


def _is_number(cell: str) -> bool:
    return cell in ("-", "") or cell.replace(".", "", 1).isdigit()
