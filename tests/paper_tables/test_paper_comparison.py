"""Ours beside the paper's: differences, signs, failed runs, and the three forms of a report."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protofed.analysis.finished_runs import RunRecord, read_record
from protofed.analysis.statistics import PairedDifference, SeedSpread
from protofed.data.digits_mini import DOMAINS
from protofed.federation.evaluation import DomainScores
from protofed.paper_tables.paper_comparison import (
    ComparedRow,
    PaperComparison,
    RecipeReport,
    compare_with_paper,
    part_footnotes,
    part_header,
    part_rows,
    recipe_document,
    settings_by_source,
)
from protofed.paper_tables.recipe import PrintedPart, Scale, printed_table, read_recipe
from protofed.paper_tables.run_recipe import prepare_recipe
from protofed.runtime.text_tables import render_document


def line(our_delta: float | None, paper_delta: float | None, known: bool = True) -> ComparedRow:
    """A row with 60 in ours and 57.5 in the paper."""
    delta = None if our_delta is None else PairedDifference(our_delta, None, None, None, 1)
    ours: dict[str, SeedSpread | None] = {"A": SeedSpread(60.0, None)}
    return ComparedRow("FPL", ours, {"A": 57.5}, 0.4, delta, paper_delta, known, ("abc",))


def raised(record: RunRecord, by: float) -> RunRecord:
    """A run with better scores: after so little training, all methods may score the same."""
    scores = {n: None if s is None else s + by for n, s in record.result.last.domains.items()}
    return record._replace(result=replace(record.result, last=DomainScores(scores)))


def beside(
    smoked: Path,
    scale: Scale = "quick",
    name: str = "fedseproto-table1",
    fail: int | None = None,
) -> PaperComparison:
    """The first part of a recipe; its smoke runs stand in for those of a real scale.

    The scores of its last row are raised by ten points.
    """
    recipe = read_recipe(name)
    plan = prepare_recipe(recipe, "smoke", [], None, smoked).plans[0]
    if scale != "smoke":
        heads = dict(zip(plan.part.columns, plan.columns, strict=True))
        plan = plan._replace(columns=heads)
    faults = {} if fail is None else {plan.cells[fail].folder: "failed: out of luck"}
    facts = printed_table()[name].parts[plan.part.name]
    records = [read_record(c.folder, c.label) for c in plan.cells if c.folder not in faults]
    records[-1] = raised(records[-1], 10.0)
    return compare_with_paper(recipe, plan, scale, facts, records, faults)


def report(part: PaperComparison, name: str = "fedseproto-table1") -> RecipeReport:
    return RecipeReport(name, printed_table()[name], (part,), {"other": "no images"}, {})


@pytest.mark.parametrize(
    ("ours", "paper", "agrees"),
    [(1.0, 2.0, True), (-1.0, -0.1, True), (1.0, -2.0, False), (0.001, 2.0, None), (1, None, None)],
)
def test_signs_agree_where_both_have_one(
    ours: float, paper: float | None, agrees: bool | None
) -> None:
    assert line(ours, paper).agrees is agrees


def test_a_copied_row_is_not_compared() -> None:
    copied = line(1.0, 2.0, known=False)
    assert copied.agrees is None
    assert copied.difference("A") is None
    assert line(1.0, 2.0).difference("A") == 2.5


def test_differences_are_ours_minus_the_papers(smoked: Path) -> None:
    part = beside(smoked)
    facts = printed_table()["fedseproto-table1"].parts["digits"]
    for row in part.lines:
        theirs = facts.rows[row.label]
        for column, value in zip(facts.columns, theirs.values, strict=True):
            ours = row.ours[column]
            assert ours is not None
            wanted = None if row.label == "FedProto" else ours.mean - value
            assert row.difference(column) == wanted
    rows = {row.label: row for row in part.lines}
    assert rows["FedSR"].paper_delta == -1.11  # not -0.49, as printed
    assert rows["FedAvg"].paper_delta is None
    assert rows["FedAvg"].our_delta is None
    base = rows["FedAvg"].ours["AVG"]
    found = [(row.ours["AVG"], row.our_delta) for row in part.lines if row.our_delta]
    assert found  # rows that this little training leaves identical to FedAvg have none
    for mean, delta in found:
        assert mean is not None
        assert base is not None
        assert delta.mean == pytest.approx(mean.mean - base.mean)


def test_known_reasons_stand_under_the_table(smoked: Path) -> None:
    notes = "\n".join(part_footnotes(beside(smoked)))
    for reason in ("FedProx row digit for digit", "-0.49", "syn is re-made", "supplement"):
        assert reason in notes
    office = prepare_recipe(read_recipe("fpl-table1"), "smoke", ["office"], None, smoked).plans[0]
    assert any("3.33 points" in text for text in office.part.differences)


def test_a_failed_run_leaves_a_row_without_scores(smoked: Path) -> None:
    part = beside(smoked, fail=1)
    rows = {row.label: row for row in part.lines}
    assert set(rows["FedProx"].ours.values()) == {None}
    assert rows["FedProx"].difference("MNIST") is None
    assert any(row.our_delta for row in part.lines)
    assert "FedProx, seed 0: failed: out of luck" in part.notes
    assert report(part).faulty
    assert not report(beside(smoked)).faulty


def test_without_the_baseline_no_row_has_a_difference_to_it(smoked: Path) -> None:
    part = beside(smoked, fail=0)
    assert {row.our_delta for row in part.lines} == {None}
    assert {row.agrees for row in part.lines} == {None}


def test_smoke_shows_its_own_domains_and_nothing_of_the_paper(smoked: Path) -> None:
    part = beside(smoked, "smoke")
    assert part_header(part) == ["method", *DOMAINS, "AVG", "to FedAvg"]
    assert [row[0] for row in part_rows(part)] == [line.label for line in part.lines]
    for row in part.to_dict()["rows"]:
        assert list(row["ours"]) == [*DOMAINS, "AVG"]
        assert row["paper"] == {}
        assert set(row["difference"].values()) == {None}
        assert (row["sign_agrees"], row["paper_delta"], row["paper_std"]) == (None, None, None)
    assert not any(note.startswith("paper:") for note in part.notes)
    text = render_document(recipe_document(report(part)), "markdown")
    assert "### digits: run on digits-mini" in text
    facts = printed_table()["fedseproto-table1"].parts["digits"]
    assert not any(name in text for name in facts.columns)
    assert not any(f"{row.avg:.2f}" in text for row in facts.rows.values())


def test_rows_that_came_out_the_same_are_told_and_have_no_sign(smoked: Path) -> None:
    name = "fedseproto-table1"
    recipe, facts = read_recipe(name), printed_table()[name].parts["digits"]
    plan = prepare_recipe(recipe, "smoke", [], None, smoked).plans[0]
    base, *others = [read_record(cell.folder, cell.label) for cell in plan.cells]
    records = [base, base._replace(label=others[0].label), *others[1:]]
    part = compare_with_paper(recipe, plan, "smoke", facts, records, {})
    (told,) = [note for note in part.notes if note.endswith("are identical in every score")]
    assert told.startswith(f"{base.label}, {others[0].label}")
    assert part.lines[1].our_delta is None
    assert part.lines[1].agrees is None


def test_rows_are_as_wide_as_the_head(smoked: Path) -> None:
    for scale in ("smoke", "quick"):
        part = beside(smoked, scale)
        assert {len(row) for row in part_rows(part)} == {len(part_header(part))}
    first = part_rows(beside(smoked))[:3]
    assert [row[1] for row in first] == ["ours", "paper", "difference"]
    assert first[1][-3:] == ["70.15 ± 0.28", "", ""]


def test_a_part_of_one_column_has_no_average(smoked: Path) -> None:
    part = beside(smoked, name="pgct-table3")
    assert part.columns == ("MNIST β=0.3",)
    facts: PrintedPart = printed_table()["pgct-table3"].parts["mnist-0.3"]
    deltas = {row.label: row.paper_delta for row in part.lines}
    assert (
        deltas["PGCT"]
        == round(97.88 - 96.14, 2)
        == round(facts.rows["PGCT"].values[0] - facts.rows["FedAvg"].values[0], 2)
    )


def test_json_says_all_that_the_table_says(smoked: Path) -> None:
    part = beside(smoked)
    told: dict[str, Any] = json.loads(render_document(recipe_document(report(part)), "json"))
    assert told["skipped"] == {"other": "no images"}
    (plain,) = told["parts"]
    assert plain["comparable"] is True
    assert plain["settings"]["rounds"] == {"value": 100, "source": "our_choice"}
    assert plain["fields"]["FedProx"]["mu"] == {"value": 0.01, "source": "our_choice"}
    row = plain["rows"][1]
    assert row["paper"]["MNIST"] == 79.09
    assert row["difference"]["MNIST"] == pytest.approx(row["ours"]["MNIST"]["mean"] - 79.09)


def test_markdown_has_tables_notes_sources_and_what_was_skipped(smoked: Path) -> None:
    part = beside(smoked)
    text = render_document(recipe_document(report(part)), "markdown")
    rows = [row for row in text.splitlines() if row.startswith("| ")]
    assert len(rows) == 2 + 3 * len(part.lines)
    assert len({row.count("|") for row in rows}) == 1
    assert "- recipe, our choice: " in text
    assert "FedProx: mu 0.01" in text
    assert text.endswith("### other\n\n- skipped: no images\n")


def test_bars_and_line_breaks_do_not_break_markdown(smoked: Path) -> None:
    part = beside(smoked, fail=1)
    first = replace(part.lines[0], label="Fed|Avg\nagain")
    notes = (*part.notes, "a | fault\non two lines")
    odd = replace(part, lines=(first, *part.lines[1:]), notes=notes)
    failed = replace(report(odd), failed={"office": "every | run\nfailed"})
    text = render_document(recipe_document(failed), "markdown")
    rows = [row for row in text.splitlines() if row.startswith("| ")]
    assert r"| Fed\|Avg again | ours |" in text
    assert len({len(re.findall(r"(?<!\\)\|", row)) for row in rows}) == 1
    assert "- a \\| fault on two lines\n" in text
    assert text.endswith("### office\n\n- failed: every \\| run\n- failed\n")


def test_settings_are_listed_by_source(smoked: Path) -> None:
    lines = settings_by_source(beside(smoked, name="fpl-table1").settings)
    assert [text.split(":")[0] for text in lines] == [
        "recipe, paper",
        "recipe, public code",
        "recipe, our choice",
    ]
    assert "training.lr 0.01" in lines[0]
    assert "data.flip True" in lines[1]
