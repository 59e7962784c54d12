from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

TINY = [
    *("--net", "moon-mlp", "--rounds", "2", "--workers", "2"),
    *("--set", 'data.domains=["optical", "print"]', "--set", "training.epochs=1"),
    *("--set", "partition.kind=shares", "--set", "partition.clients=2"),
    *("--set", "partition.samples=9"),
]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_compare_prints_a_table_and_reads_it_the_second_time(cli: Cli) -> None:
    words = ["compare", "fedavg", "fedprox:mu=0.1", "--seeds", "2", *TINY]
    first = cli(*words)
    assert first.code == 0, first.err
    assert first.err.count("finished") == 4
    lines = first.out.splitlines()
    assert lines[0].split()[:4] == ["method", "optical", "print", "AVG"]
    assert [line.split("  ")[0] for line in lines[2:4]] == ["FedAvg", "FedProx (mu=0.1)"]
    assert "too few seeds to test" in lines[3]
    assert "mean of the last 2 evaluations; 2 seeds (0, 1)" in first.out
    second = cli(*words)
    assert (second.out, second.err) == (first.out, "")
    found = json.loads(cli(*words, "--format", "json", "--score", "last").out)
    assert (found["rule"], found["baseline"]) == ("last round", "FedAvg")


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
        (["sweep", "fedprox"], "either --grid or --search"),
        (["sweep", "fedprox", "--grid", "partition.samples=9,12"], "the same images"),
        (["sweep", "fedprox", "--grid", "seed=0,1"], "the same images"),
        (["sweep", "fedprox", "--search", "method.mu=0..1", "--seeds", "2"], "--seeds"),
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


def test_sweep_runs_every_combination(cli: Cli) -> None:
    grid = ["--grid", "method.mu=0.1,1", "--grid", "training.lr=0.01,0.1"]
    ended = cli("sweep", "fedprox", *grid, *TINY, "--format", "json")
    assert ended.code == 0, ended.err
    rows = json.loads(ended.out)["rows"]
    assert [row["label"] for row in rows] == [
        "mu=0.1, training.lr=0.01",
        "mu=0.1, training.lr=0.1",
        "mu=1, training.lr=0.01",
        "mu=1, training.lr=0.1",
    ]
    assert len({row["digests"][0] for row in rows}) == 4


def test_search_prints_its_trials_and_the_best_as_flags(cli: Cli) -> None:
    small = [word for word in TINY if word not in ("--workers", "2")]
    small[small.index("--rounds") + 1 : small.index("--rounds") + 1] = ["1"]
    ended = cli("sweep", "fedprox", "--search", "method.mu=0.001..10", "--trials", "2", *small)
    assert ended.code == 0, ended.err
    *trials, best = ended.out.splitlines()
    assert len(trials) == 2
    assert best.startswith("best on held-out images: ")
    assert "--set method.mu=" in best
