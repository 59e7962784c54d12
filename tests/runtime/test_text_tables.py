"""One table in every format: the same cells, and foreign text that stays text."""

from __future__ import annotations

import csv
import io
import json

import pytest

from protofed.runtime.text_tables import (
    TABLE_FORMATS,
    RankedCell,
    TableDocument,
    TableFormat,
    TextTable,
    escape_latex,
    escape_markdown,
    markdown_list,
    render_document,
)

HOSTILE = "\x1b[2J[a](http:b) <i> c_d|e & 5 % #1\nnext"


def document(*cells: str) -> TableDocument:
    table = TextTable(["name", "mean"], [[*cells], ["b", "2.00"]], "part", ["under it"])
    return TableDocument([table], {"rows": 2}, "title", ["at the end"])


@pytest.mark.parametrize("form", ["terminal", "markdown", "latex"])
def test_a_document_shows_titles_tables_and_notes(form: TableFormat) -> None:
    text = render_document(document("a", "1.00"), form)
    for part in ("title", "part", "name", "1.00", "2.00", "under it", "at the end"):
        assert part in text
    assert text.endswith("\n")


def test_the_best_two_are_marked_in_markdown_and_latex_alone() -> None:
    cells = [RankedCell("3", "best"), RankedCell("2", "second"), RankedCell("1", "")]
    made = TableDocument([TextTable(["a", "b", "c"], [cells])], None)
    assert "| **3** | *2* | 1 |" in render_document(made, "markdown")
    assert r"\textbf{3} & \underline{2} & 1 \\" in render_document(made, "latex")
    assert render_document(made, "csv") == "a,b,c\n3,2,1\n"
    assert render_document(made, "terminal").splitlines()[-1].split() == ["3", "2", "1"]


def test_csv_holds_records_in_place_of_tables_and_json_the_content() -> None:
    made = document("a", "1.00")
    assert render_document(made, "csv") == "name,mean\na,1.00\nb,2.00\n"
    records = TableDocument(made.tables, {"x": 1}, records=TextTable(["k"], [["v"]]))
    assert render_document(records, "csv") == "k\nv\n"
    assert json.loads(render_document(records, "json")) == {"x": 1}


@pytest.mark.parametrize("form", TABLE_FORMATS)
def test_foreign_text_makes_no_column_line_or_markup(form: TableFormat) -> None:
    text = render_document(document(HOSTILE, "1.00"), form)
    if form == "csv":
        assert list(csv.reader(io.StringIO(text)))[1] == [HOSTILE, "1.00"]
        return
    assert all(line.isprintable() for line in text.split("\n"))
    if form == "markdown":
        (row,) = [line for line in text.splitlines() if "x1b" in line]
        assert row.replace(r"\|", "").count("|") == 3
        assert "<" not in text
        assert "](" not in text
    if form == "latex":
        assert text.count("\\\\\n") == 3
        assert r"c\_d|e \& 5 \% \#1" in text


def test_escapes_leave_numbers_and_parentheses_readable() -> None:
    assert escape_markdown("FPL (tau=0.5) +1.20") == "FPL (tau=0.5) +1.20"
    assert escape_latex("61.15 ± 0.42") == r"61.15 $\pm$ 0.42"
    assert escape_latex("[x]") == "{[}x]"  # no optional argument of the line before it
    assert markdown_list(["- a", "1. b", "c"]) == "- \\- a\n- 1\\. b\n- c"
