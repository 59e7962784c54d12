"""Tables of runs without a domain each, from records made by hand."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from protofed.analysis.finished_runs import RunRecord
from protofed.analysis.leave_one_domain_out import (
    unseen_document,
    unseen_scores,
    unseen_summary,
    unseen_table,
)
from protofed.experiment.result import RunResult
from protofed.federation.evaluation import DomainScores
from protofed.runtime.text_tables import TABLE_FORMATS, TableFormat, render_document
from protofed.spec.spec_parser import parse_experiment

SHARED = {"data": {"name": "digits-mini", "domains": ["optical", "print", "syn"]}}


def record(label: str, left: str, domains: dict[str, float | None], seed: int = 0) -> RunRecord:
    scores = DomainScores(domains)
    words = {"last": "last evaluation", "last_five": "mean of the last 5 evaluations"}
    result = RunResult(
        *(
            Path("nowhere"),
            f"{label}-{left}-{seed}",
            words,
            scores,
            scores,
            {},
            None,
            None,
            (),
            1.0,
        ),
        unseen=left,
    )
    return RunRecord(label, seed, parse_experiment({**SHARED, "seed": seed}), result, {}, "")


def test_runs_that_were_tested_on_different_domains_stand_in_one_table() -> None:
    """As with `validation`, and a domain without clients: only its own run is tested on it."""
    records = [
        record("FedAvg", "optical", {"optical": 11.0, "syn": 12.0}),
        record("FedAvg", "print", {"optical": 21.0, "print": 22.0, "syn": 23.0}),
        record("FedAvg", "print", {"optical": 25.0, "syn": 27.0}, seed=1),
        record("FedAvg", "syn", {"optical": 31.0, "syn": 32.0}),
    ]
    (found,) = unseen_scores(records, "last")
    table = unseen_table(found)
    assert table.head[1:4] == ["optical", "print", "syn"]
    assert table.rows[:3] == [
        ["optical", "[11.00]", "-", "12.00", "11.00"],
        ["print", "23.00 ± 2.83", "[22.00]", "25.00 ± 2.83", "22.00"],
        ["syn", "31.00", "-", "[32.00]", "32.00"],
    ]


def test_a_domain_that_only_the_second_method_finished_without_has_a_column() -> None:
    everywhere: dict[str, float | None] = {"optical": 1.0, "print": 2.0, "syn": 3.0}
    records = [
        record("FedAvg", "print", everywhere),
        *(record("Local", left, everywhere) for left in everywhere),
    ]
    table = unseen_summary(unseen_scores(records, "last"))
    assert sorted(table.head[1:-1]) == ["optical", "print", "syn"]
    columns = {name: [row[place] for row in table.rows] for place, name in enumerate(table.head)}
    assert columns["print"] == ["2.00", "2.00"]
    assert columns["syn"] == ["-", "3.00"]


@pytest.mark.parametrize("form", TABLE_FORMATS)
def test_every_format_says_by_which_rule_and_which_runs_failed(form: TableFormat) -> None:
    found = unseen_scores(
        [record("FedAvg", "syn", {"optical": 1.0, "print": 2.0, "syn": 3.0})], "last"
    )
    failed = "FedAvg without print, seed 0: failed"
    text = render_document(unseen_document(found, "last evaluation", [failed]), form)
    assert "last evaluation" in text
    assert (failed in text) == (form != "csv")  # which has lines for scores alone
    if form == "json":
        assert json.loads(text)[0]["notes"] == [failed]
    if form == "csv":
        assert {row["rule"] for row in csv.DictReader(io.StringIO(text))} == {"last evaluation"}
    if form == "latex":
        assert text.index(failed) < text.index(r"\begin{tabular}")
        assert all(line.startswith("%") for line in text.partition("\\begin")[0].splitlines())
