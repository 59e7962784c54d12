"""The printed numbers fit together as printed tables do, but for the faults that are listed."""

from __future__ import annotations

import itertools
import math

import pytest

from protofed.paper_tables.recipe import (
    PrintedPart,
    PrintedRow,
    printed_table,
    read_recipe,
    recipe_names,
)

PARTS = [(table, part) for table in printed_table() for part in printed_table()[table].parts]
HALF = 0.005 + 1e-9  # what rounding to two decimals may move
# Test images of a domain, as the published values reveal them.
OFFICE, PACS = (224, 190, 58, 30), (501, 615, 704, 1179)


def fits(value: float, images: int, evaluations: int) -> bool:
    """Whether a printed accuracy can be the mean of some evaluations on so many images."""
    of = images * evaluations
    # a mean of evaluations that were rounded themselves may be off by that much again
    off = HALF if evaluations == 1 else 2 * HALF
    return abs(100 * round(value * of / 100) / of - value) <= off


def found(part: PrintedPart, baseline: str) -> set[tuple[str, str]]:
    """Faults in a printed part, found by arithmetic: their kind and row."""
    faults = set()
    base = part.rows[baseline].level
    for label, row in part.rows.items():
        mean = math.fsum(row.values) / len(row.values)
        if row.avg is not None and abs(mean - row.avg) > HALF:
            faults.add(("average", label))
        if row.delta is not None and abs(row.level - base - row.delta) > HALF:
            faults.add(("delta", label))
    for (_, one), (label, other) in itertools.combinations(part.rows.items(), 2):
        if len(one.values) > 1 and one.values == other.values:
            faults.add(("copy", label))
    return faults


@pytest.mark.parametrize(("table", "part"), PARTS)
def test_averages_and_differences_fit_but_for_the_listed_faults(table: str, part: str) -> None:
    facts = printed_table()[table].parts[part]
    listed = {(fault.kind, fault.row) for fault in facts.faults if fault.kind != "text"}
    assert found(facts, read_recipe(table).baseline) == listed


def test_a_slip_of_the_pen_would_be_found() -> None:
    facts = printed_table()["fedlsa-table2"].parts["office"]
    row = facts.rows["FedLSA"]
    slip = PrintedRow(values=(55.9, *row.values[1:]), avg=row.avg, delta=row.delta)
    wrong = facts.model_copy(update={"rows": {**facts.rows, "FedLSA": slip}})
    assert found(wrong, "FedAvg") == {("average", "FedLSA")}


@pytest.mark.parametrize(("table", "part"), PARTS)
def test_rows_have_a_value_for_each_column_and_faults_name_rows(table: str, part: str) -> None:
    facts = printed_table()[table].parts[part]
    for row in facts.rows.values():
        assert len(row.values) == len(facts.columns)
        assert (row.avg is None) == (len(row.values) == 1)
        assert all(0 < value < 100 for value in row.values)
    for fault in facts.faults:
        assert {fault.row, fault.of or fault.row} <= set(facts.rows)


@pytest.mark.parametrize(
    ("table", "part", "sizes"),
    [
        ("fedlsa-table2", "office", OFFICE),
        ("fedlsa-table5", "office", OFFICE),
        ("fedlsa-table3", "pacs", PACS),
    ],
)
def test_values_of_fedlsa_fit_one_evaluation(table: str, part: str, sizes: tuple[int, ...]) -> None:
    for label, row in printed_table()[table].parts[part].rows.items():
        for value, images in zip(row.values, sizes, strict=True):
            assert fits(value, images, 1), f"{label}: {value} of {images}"


@pytest.mark.parametrize("table", ["fpl-table1", "fpl-table2"])
def test_values_of_fpl_fit_three_trials_of_five_but_for_the_told_rows(table: str) -> None:
    part = printed_table()[table].parts["office"]
    odd = {fault.row for fault in part.faults if "10 evaluations" in fault.note}
    for label, row in part.rows.items():
        times = 10 if label in odd else 15
        for value, images in zip(row.values, OFFICE, strict=True):
            assert fits(value, images, times), f"{label}: {value} of {images}"
        if label in odd:
            assert not all(fits(v, n, 15) for v, n in zip(row.values, OFFICE, strict=True))


def test_rows_that_two_tables_of_a_paper_share_are_the_same() -> None:
    tables = printed_table()
    for one, other, label in (
        ("fpl-table1", "fpl-table2", "FPL"),
        ("fpl-table1", "fpl-table2", "FedAvg"),
        ("fedlsa-table2", "fedlsa-table4", "FedLSA"),
        ("fedlsa-table2", "fedlsa-table5", "FedAvg"),
    ):
        for name in tables[one].parts.keys() & tables[other].parts.keys():
            rows = [tables[table].parts[name].rows[label] for table in (one, other)]
            assert rows[0].values == rows[1].values
            assert rows[0].avg == rows[1].avg
    for name, part in tables["pgct-table3"].parts.items():
        whole = tables["pgct-table1"].parts[name].rows
        assert part.rows["PGCT"] == whole["PGCT(FedAvg)"]
        assert part.rows["+Exg"] == whole["FedExg"]
        assert part.rows["FedAvg"] == whole["FedAvg"]


def test_every_table_has_a_recipe() -> None:
    assert tuple(printed_table()) == recipe_names()
