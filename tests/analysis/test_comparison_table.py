from __future__ import annotations

import csv
import io
import json
import statistics
from dataclasses import replace

import pytest

from protofed.analysis.comparison_table import (
    ComparisonTable,
    MethodRow,
    compare_records,
    comparison_document,
    table_footnotes,
    table_header,
    table_row,
)
from protofed.analysis.finished_runs import RunRecord, read_record
from protofed.analysis.statistics import SeedSpread
from protofed.analysis.sweep import GridCell
from protofed.errors import ProtofedError
from protofed.experiment.result import ScoreRule
from protofed.federation.evaluation import DomainScores, score_rules
from protofed.runtime.text_tables import TABLE_FORMATS, TableFormat, render_document


@pytest.fixture
def records(grid: list[GridCell]) -> list[RunRecord]:
    return [read_record(cell.folder) for cell in grid]


@pytest.mark.parametrize("rule", ["last_five", "last"])
def test_cells_are_means_over_seeds_of_what_the_runs_say(
    rule: ScoreRule, records: list[RunRecord]
) -> None:
    table = compare_records(records, rule=rule)
    for row in table.rows:
        scores = [getattr(r.result, rule) for r in records if r.label == row.label]
        assert row.digests == tuple(r.result.digest[:12] for r in records if r.label == row.label)
        for name in table.domains:
            values = [s.domains[name] for s in scores]
            expected = (statistics.fmean(values), statistics.stdev(values))
            assert row.cells[name] == pytest.approx(expected)
        for name in ("mean", "worst", "spread"):
            values = [getattr(s, name) for s in scores]
            assert row.cells[name] == pytest.approx(
                (statistics.fmean(values), statistics.stdev(values))
            )


def test_the_difference_is_paired_by_seed(records: list[RunRecord]) -> None:
    table = compare_records(records, baseline="FedAvg")
    base, other = table.rows
    assert base.difference is None
    assert other.difference is not None
    means = {(r.label, r.seed): r.result.last_five.mean or 0 for r in records}
    gaps = [means["FPL", seed] - means["FedAvg", seed] for seed in (0, 1)]
    assert other.difference.mean == pytest.approx(statistics.fmean(gaps))
    assert (other.difference.pairs, other.difference.p) == (2, None)
    assert compare_records(records, baseline="FPL").rows[1].difference is None


def test_a_missing_seed_leaves_the_common_ones(records: list[RunRecord]) -> None:
    table = compare_records(records[:3])
    assert table.rows[1].seeds == (0,)
    assert table.rows[1].difference is not None
    assert table.rows[1].difference.pairs == 1


def test_an_unknown_baseline_and_a_doubled_run_are_refused(records: list[RunRecord]) -> None:
    with pytest.raises(ProtofedError, match="baseline"):
        compare_records(records, baseline="FedLSA")
    with pytest.raises(ProtofedError, match="same seed"):
        compare_records([*records, records[0]])


def made(**means: float) -> ComparisonTable:
    """A table with one domain and the given means."""
    rows = tuple(
        MethodRow(
            label,
            (0,),
            ("abc",),
            dict.fromkeys(("d", "mean", "worst", "spread"), SeedSpread(m, None)),
            None,
        )
        for label, m in means.items()
    )
    return ComparisonTable(("d",), rows, next(iter(means)), "last round", None, ())


def text_of(table: ComparisonTable, form: TableFormat) -> str:
    return render_document(comparison_document(table), form)


def standings(table: ComparisonTable, column: str) -> dict[str, str]:
    return {row.label: table.standing(column, row.label) for row in table.rows}


def test_best_and_second_are_marked_and_small_spreads_are_good() -> None:
    table = made(a=50.0, b=70.0, c=60.0)
    assert standings(table, "d") == {"a": "", "b": "best", "c": "second"}
    assert standings(table, "spread") == {"a": "best", "b": "", "c": "second"}
    text = text_of(table, "latex")
    assert r"\textbf{70.00}" in text
    assert r"\underline{60.00}" in text
    assert text.count(r"\toprule") == text.count(r"\midrule") == text.count(r"\bottomrule") == 1
    assert "**70.00**" in text_of(table, "markdown")


def test_what_prints_the_same_is_marked_the_same() -> None:
    assert standings(made(a=50.0, b=50.001), "d") == {"a": "", "b": ""}
    ties = made(a=60.0, b=60.001, c=50.0, d=50.0, e=40.0)
    assert list(standings(ties, "d").values()) == ["best", "best", "second", "second", ""]


def test_rows_scored_by_different_rules_are_refused(records: list[RunRecord]) -> None:
    other = records[2]._replace(
        result=replace(records[2].result, rules={"last": "last round", "last_five": "of 1"})
    )
    with pytest.raises(ProtofedError, match="different rules"):
        compare_records([records[0], other])
    assert compare_records([records[0], other], rule="last").rule == "last round"
    lacking = score_rules(2, [["print"], ["print"]])
    other = records[2]._replace(result=replace(records[2].result, rules=lacking))
    with pytest.raises(ProtofedError, match=r"last round, without print\)\nrepeat the runs"):
        compare_records([records[0], other], rule="last")


def test_a_run_without_a_score_has_no_difference(records: list[RunRecord]) -> None:
    none = replace(records[2].result, last_five=DomainScores({"optical": None, "print": None}))
    assert (
        compare_records([records[0], records[2]._replace(result=none)]).rows[1].difference is None
    )


def test_latex_and_markdown_survive_odd_names() -> None:
    table = made(**{"a_b & 5 % | x": 1.0, "c^2": 2.0})
    assert r"a\_b \& 5 \% | x &" in text_of(table, "latex")
    assert r"c\textasciicircum{}2 &" in text_of(table, "latex")
    assert r"| a\_b &amp; 5 % \| x |" in text_of(table, "markdown")


def test_every_format_says_by_which_rule_and_csv_and_json_hold_the_numbers(
    records: list[RunRecord],
) -> None:
    table = compare_records(records)
    for form in TABLE_FORMATS:
        assert table.rule in text_of(table, form), form
    plain = json.loads(text_of(table, "json"))
    lines = list(csv.DictReader(io.StringIO(text_of(table, "csv"))))
    for place, row in enumerate(table.rows):
        for name in table.columns:
            cell = row.cells[name]
            assert cell is not None
            assert plain["rows"][place]["cells"][name] == {"mean": cell.mean, "std": cell.std}
            (found,) = [n for n in lines if (n["method"], n["column"]) == (row.label, name)]
            assert (float(found["mean"]), float(found["std"])) == cell


def test_the_terminal_says_too_few_seeds_to_test(records: list[RunRecord]) -> None:
    table = compare_records(records)
    assert table_row(table, table.rows[1])[-1] == "too few seeds to test"
    assert table_header(table)[-2:] == ["to FedAvg", "test"]
    notes = "\n".join(table_footnotes(table))
    assert "2 seeds (0, 1)" in notes
    assert all(digest in notes for row in table.rows for digest in row.digests)
