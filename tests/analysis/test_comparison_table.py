from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from protofed.analysis.comparison_table import (
    ComparisonTable,
    MethodRow,
    compare_records,
    comparison_document,
    format_p_value,
    table_footnotes,
    table_header,
    table_row,
)
from protofed.analysis.finished_runs import RunRecord, read_record
from protofed.analysis.statistics import (
    FEWEST_BLOCKS,
    PairedDifference,
    SeedSpread,
    holm_correction,
    mean_ranks,
)
from protofed.analysis.sweep import GridCell
from protofed.errors import ProtofedError
from protofed.experiment.result import ScoreRule
from protofed.federation.evaluation import (
    ENOUGH_FOR_MEAN,
    DomainScores,
    Evaluation,
    last_5_mean,
    score_rules,
)
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
    table = compare_records(records, "FedAvg", "last_five")
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
        compare_records([records[0], other], rule="last_five")
    assert compare_records([records[0], other], rule="last").rule == "last round"
    lacking = score_rules(2, [["print"], ["print"]])
    other = records[2]._replace(result=replace(records[2].result, rules=lacking))
    with pytest.raises(ProtofedError, match=r"last round, without print\)\nrepeat the runs"):
        compare_records([records[0], other], rule="last")


def test_a_run_without_a_score_has_no_difference(records: list[RunRecord]) -> None:
    none = replace(records[2].result, last=DomainScores({"optical": None, "print": None}))
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


def invented(
    record: RunRecord, label: str, seed: int, scores: Sequence[float], evaluations: int = 3
) -> RunRecord:
    """A run with the given scores by domain in its last evaluation, and other ones before."""
    history = [
        DomainScores({f"d{n}": s - back for n, s in enumerate(scores)})
        for back in reversed(range(evaluations))
    ]
    result = replace(
        record.result,
        rules=score_rules(evaluations),
        last=history[-1],
        last_five=last_5_mean(history),
        history=tuple(Evaluation(n, one) for n, one in enumerate(history, start=1)),
        digest=f"{label}{seed}",
    )
    return record._replace(label=label, seed=seed, result=result)


def invented_grid(
    record: RunRecord, labels: str, seeds: int, gap: float = 0.0
) -> dict[str, list[RunRecord]]:
    """Runs on three domains by label; each label is `gap` points above the one before."""
    draw = np.random.default_rng(len(labels) * seeds)
    return {
        label: [
            invented(record, label, seed, (draw.normal(60, 1, 3) + gap * place).tolist())
            for seed in range(seeds)
        ]
        for place, label in enumerate(labels)
    }


def rows_of(grid: dict[str, list[RunRecord]]) -> list[RunRecord]:
    return [record for runs in grid.values() for record in runs]


def test_one_seed_has_no_ranks_at_all(records: list[RunRecord]) -> None:
    """Four domains of one run are one repeat, however clearly the rows differ."""
    table = compare_records(rows_of(invented_grid(records[0], "abcd", 1, gap=9.0)))
    assert table.ranks is None
    notes = "\n".join(table_footnotes(table))
    assert not any(word in notes for word in ("mean rank", "Friedman", "Nemenyi", "p ="))


def test_a_few_seeds_have_mean_ranks_and_no_test(records: list[RunRecord]) -> None:
    table = compare_records(rows_of(invented_grid(records[0], "abc", FEWEST_BLOCKS - 1, gap=9.0)))
    assert table.ranks is not None
    assert table.ranks == ({"a": 3.0, "b": 2.0, "c": 1.0}, FEWEST_BLOCKS - 1, None, None)
    (note,) = [note for note in table_footnotes(table) if "mean rank" in note]
    assert note == "mean rank by AVG over 9 seeds: a 3.00, b 2.00, c 1.00; tested from 10 seeds on"


@pytest.mark.parametrize(("gap", "told"), [(9.0, "methods differ at 5 %"), (0.0, "no difference")])
def test_the_blocks_of_the_ranks_are_the_seeds(
    gap: float, told: str, records: list[RunRecord]
) -> None:
    grid = invented_grid(records[0], "abc", FEWEST_BLOCKS, gap)
    table = compare_records(rows_of(grid), rule="last")
    means = {label: [run.result.last.mean or 0 for run in runs] for label, runs in grid.items()}
    assert table.ranks == mean_ranks(means)
    assert table.ranks is not None
    assert (table.ranks.critical is not None) == (gap > 0)
    assert told in "\n".join(table_footnotes(table))


def test_rows_with_other_seeds_or_without_a_score_have_no_ranks(records: list[RunRecord]) -> None:
    grid = invented_grid(records[0], "abc", 4)
    assert compare_records(rows_of(grid)).ranks is not None
    assert compare_records(rows_of(grid)[:-1]).ranks is None
    last = grid["c"][-1]
    nothing = replace(last.result, last=DomainScores(dict.fromkeys(("d0", "d1", "d2"))))
    assert compare_records([*rows_of(grid)[:-1], last._replace(result=nothing)]).ranks is None


def twin(runs: Sequence[RunRecord], label: str) -> list[RunRecord]:
    return [run._replace(label=label) for run in runs]


def test_identical_rows_are_named_and_not_compared(records: list[RunRecord]) -> None:
    grid = invented_grid(records[0], "ab", 3)
    table = compare_records([*rows_of(grid), *twin(grid["a"], "x")], baseline="a")
    assert table.identical == (("a", "x"),)
    assert "a and x are identical in every score" in table_footnotes(table)
    assert table.rows[2].difference is None
    assert table_row(table, table.rows[2])[-2:] == ["identical", ""]
    assert table_row(table, table.rows[0])[-2:] == ["", ""]
    assert table.to_dict()["identical"] == (("a", "x"),)
    other = compare_records([*rows_of(grid), *twin(grid["a"], "x")], baseline="x")
    assert [row.difference is None for row in other.rows] == [True, False, True]
    assert table_row(other, other.rows[0])[-2] == "identical"


def test_one_score_of_one_seed_makes_rows_different(records: list[RunRecord]) -> None:
    grid = invented_grid(records[0], "a", 3)
    near = twin(grid["a"], "x")
    first = near[1].result.history[0]
    domains = {**first.scores.domains, "d1": (first.scores.domains["d1"] or 0) + 0.001}
    moved = replace(first, scores=DomainScores(domains))
    result = replace(near[1].result, history=(moved, *near[1].result.history[1:]))
    near[1] = near[1]._replace(result=result)
    assert compare_records([*rows_of(grid), *near]).identical == ()
    assert compare_records([*rows_of(grid), *twin(grid["a"], "x")[:2]]).identical == ()


def test_the_last_bit_of_a_mean_over_clients_makes_no_difference(records: list[RunRecord]) -> None:
    tenth = invented(records[0], "a", 0, [0.1 + 0.2, 7.0])
    other = invented(records[0], "b", 0, [0.3, 7.0])
    assert tenth.result.last != other.result.last
    assert compare_records([tenth, other]).identical == (("a", "b"),)


def test_a_repeated_row_is_no_further_test(records: list[RunRecord]) -> None:
    grid = invented_grid(records[0], "abc", 12, gap=0.5)
    alone = compare_records(rows_of(grid))
    both = compare_records([*rows_of(grid), *twin(grid["c"], "x")])
    ps = {row.label: row.difference.p for row in both.rows if row.difference}
    assert ps == {
        **{row.label: row.difference.p for row in alone.rows if row.difference},
        "x": ps["c"],
    }
    raw = [stats_of(grid["a"], grid[label]) for label in "bc"]
    assert [ps["b"], ps["c"]] == pytest.approx(holm_correction(raw))
    assert both.ranks == alone.ranks
    assert both.tested == alone.tested == 2


def stats_of(base: Sequence[RunRecord], other: Sequence[RunRecord]) -> float:
    gaps = [
        (b.result.last.mean or 0) - (a.result.last.mean or 0)
        for a, b in zip(base, other, strict=True)
    ]
    return float(stats.wilcoxon(gaps).pvalue)


def test_a_tiny_p_value_is_not_printed_as_zero() -> None:
    assert format_p_value(PairedDifference(1.0, 0.9, 1.1, 0.0004, 12)) == "p < 0.001"
    assert format_p_value(PairedDifference(1.0, 0.9, 1.1, 0.0314, 12)) == "p = 0.031"


@pytest.mark.parametrize(
    ("evaluations", "rule", "words"),
    [
        (ENOUGH_FOR_MEAN, None, "mean of the last 5 evaluations"),
        (ENOUGH_FOR_MEAN - 1, None, "last round"),
        (ENOUGH_FOR_MEAN, "last", "last round"),
        (5, "last_five", "mean of the last 5 evaluations"),
    ],
)
def test_the_mean_of_five_is_the_default_only_for_enough_evaluations(
    evaluations: int, rule: ScoreRule | None, words: str, records: list[RunRecord]
) -> None:
    runs = [invented(records[0], label, 0, [50.0, 60.0], evaluations) for label in "ab"]
    table = compare_records(runs, rule=rule)
    assert table.rule == words
    cell = table.rows[0].cells["d0"]
    assert cell is not None
    assert cell.mean == (48.0 if words.startswith("mean") else 50.0)
    for form in TABLE_FORMATS:
        assert words in text_of(table, form)
