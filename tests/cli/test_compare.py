from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

TINY = [
    *("--net", "moon-mlp", "--rounds", "2", "--workers", "0"),
    *("--set", 'data.domains=["optical", "print"]', "--set", "training.epochs=1"),
    *("--set", "partition.kind=shares", "--set", "partition.clients=2"),
    *("--set", "partition.samples=9"),
]

MORE = ["--set", "partition.samples=40", "--set", "training.batch=4"]  # so that scores move at all


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_compare_prints_a_table_and_reads_it_the_second_time(cli: Cli) -> None:
    words = ["compare", "fedavg", "fedprox:mu=9", "--seeds", "2", *TINY, *MORE]
    first = cli(*words)
    assert first.code == 0, first.err
    assert first.err.count("finished") == 4
    lines = first.out.splitlines()
    assert lines[0].split()[:4] == ["method", "optical", "print", "AVG"]
    assert [line.split("  ")[0] for line in lines[2:4]] == ["FedAvg", "FedProx (mu=9)"]
    assert "too few seeds to test" in lines[3]
    assert "last round; 2 seeds (0, 1)" in first.out
    second = cli(*words)
    assert (second.out, second.err) == (first.out, "")
    found = json.loads(cli(*words, "--format", "json", "--score", "last_five").out)
    assert (found["rule"], found["baseline"]) == ("mean of the last 2 evaluations", "FedAvg")


def test_methods_that_came_out_as_the_same_are_told_and_not_tested(cli: Cli) -> None:
    rows = ["fedavg", "fedbn", "fpl", "fpl:cpcl=0,upcr=0"]
    words = ["compare", *rows, "--seeds", "2", *TINY, *MORE]
    ended = cli(*words)
    assert ended.code == 0, ended.err
    _, _, _, bn, fpl, off, *notes = ended.out.splitlines()
    assert "FedAvg, FedBN and FPL (cpcl=0,upcr=0) are identical in every score" in notes
    assert [line.split()[-1] for line in (bn, off)] == ["identical", "identical"]
    assert fpl.split("  ")[-1].strip() == "too few seeds to test"
    assert "FedBN: the net has no batch norm to keep: FedBN is FedAvg here" in notes
    assert any(note.startswith("FPL: FPL ended with one cluster per class") for note in notes)
    assert not any("Friedman" in note for note in notes)
    told = json.loads(cli(*words, "--json").out)
    assert told["identical"] == [["FedAvg", "FedBN", "FPL (cpcl=0,upcr=0)"]]
    assert any("one cluster per class" in note for note in told["notes"])
    assert told["ranks"] is None


@pytest.mark.parametrize(("rounds", "rule"), [(9, "last round"), (10, "mean of the last 5")])
def test_the_default_rule_follows_the_number_of_evaluations(
    rounds: int, rule: str, cli: Cli
) -> None:
    words = ["compare", "fedavg", "--json", *TINY]
    words[words.index("--rounds") + 1] = str(rounds)
    ended = cli(*words)
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["rule"].startswith(rule)
    each = cli(*words[:2], "--leave-out", "each", *words[2:])
    assert {row["rule"] for row in json.loads(each.out)} == {json.loads(ended.out)["rule"]}


def test_a_row_that_fails_is_told_and_the_exit_code_is_one(cli: Cli) -> None:
    ended = cli("compare", "fedavg", "fedopt:lr=1e30", *TINY)
    assert ended.code == 1
    assert "FedOPT (lr=1e30), seed 0: failed" in ended.out
    assert ended.out.splitlines()[2].startswith("FedAvg")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["compare", "fedavg", "--baseline", "FPL"], "unknown baseline 'FPL'"),
        (["compare", "fedavg", "--set", "seed=7"], "--seeds"),
        (["compare", "fedavgg"], "did you mean 'fedavg'"),
        (["ablate", "fedavg"], "declares no ablations"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_become_a_table_is_told_before_anything_runs(
    words: list[str], says: str, cli: Cli
) -> None:
    ended = cli(*words)
    assert ended.code == 2
    assert says in ended.err
    assert not Path("runs").exists()


def test_a_failed_baseline_is_said_and_a_name_in_any_case_is_known(cli: Cli) -> None:
    rows = ["compare", "fedavg", "fedprox", "fedopt:lr=1e30"]
    ended = cli(*rows, "--baseline", "fedopt (LR=1e30)", *TINY)
    assert ended.code == 1
    assert "no differences: the baseline, FedOPT (lr=1e30), failed" in ended.out
    assert ended.out.splitlines()[0].split() == [*HEAD]
    for form in ("markdown", "latex", "csv", "json"):  # finished runs are read, no other stands in
        table = cli(*rows, "--baseline", "fedopt (LR=1e30)", *TINY, "--format", form)
        assert table.code == 1
        assert "to FedAvg" not in table.out


HEAD = ("method", "optical", "print", "AVG", "worst", "spread")


def test_help_has_no_stray_backslashes(cli: Cli) -> None:
    for command in ("run", "compare", "ablate", "sweep", "reproduce", "plot", "report", "track"):
        assert "\\" not in cli(command, "--help").out


def test_ablate_runs_what_the_method_declares(cli: Cli) -> None:
    ended = cli("ablate", "fedlsa", *TINY, "--set", "method.server_epochs=2", "--format", "csv")
    assert ended.code == 0, ended.err
    rows = list(csv.DictReader(io.StringIO(ended.out)))
    labels = list(dict.fromkeys(row["method"] for row in rows))
    assert labels == ["COM only", "SEP only", "FedLSA (full)"]
