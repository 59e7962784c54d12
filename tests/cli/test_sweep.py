from __future__ import annotations

import csv
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from protofed.analysis.search import SearchTrial, plan_search
from protofed.cli.sweep import final_command
from protofed.experiment.run_folder import RunDir
from protofed.experiment.run_records import load_spec
from protofed.spec.experiment_spec import Experiment
from tests.cli.conftest import Cli
from tests.cli.test_compare import TINY

SEARCH = [
    *("sweep", "fedprox", "--search", "method.mu=0.001..10", "--search", "training.epochs=1..3"),
    *("--trials", "4", "--seeds", "2", "--rungs", "2", "--eta", "2", "--net", "moon-mlp"),
    *("--rounds", "4", "--set", 'data.domains=["optical", "print"]'),
    *("--set", "partition.kind=shares", "--set", "partition.clients=2"),
    *("--set", "partition.samples=20", "--set", "training.batch=8"),
]


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


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "either --grid or --search"),
        (["--grid", "partition.samples=9,12"], "the same images"),
        (["--grid", "seed=0,1"], "the same images"),
        (["--grid", "method.mu=0,1", "--trials", "3"], "--trials"),
        (["--grid", "method.mu=0,1", "--search", "method.mu=0..1"], "either --grid or --search"),
        (["--search", "method.mu=0..1", "--baseline", "x"], "--baseline"),
        (["--search", "method.mu=0..1", "--set", "seed=3"], "--seeds"),
        (["--search", "method.muu=0..1"], "did you mean 'mu'"),
        (["--search", "method.mu=0..1", "--search", "training.epochs=1..2.5"], "training.epochs"),
        (["--search", "method.mu=1"], "section.field=low..high"),
        (["--search", "rounds=1..5"], "--rungs 1"),
        (["--search", "seed=0..9"], "same images\nsearch another field; --set gives"),
        (["--search", "method.mu=0..1", "--json", "--format", "csv"], "--json means"),
        (["--search", "method.mu=0..1", "--eta", "1"], "--eta"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_swept_is_told_before_anything_runs(
    words: list[str], says: str, cli: Cli
) -> None:
    ended = cli("sweep", "fedprox", *words)
    assert ended.code == 2
    assert says in ended.err
    assert not Path("runs").exists()


def test_a_search_ranks_its_trials_and_ends_with_a_command_that_works(cli: Cli) -> None:
    ended = cli(*SEARCH, "--workers", "0")
    assert ended.code == 0, ended.err
    told = [line for line in ended.err.splitlines() if line.startswith("trial ")]
    assert len(told) == 4
    assert all(" after round " in line and " ± " in line for line in told)
    head, _, first, *lines = ended.out.splitlines()
    assert head.split()[:5] == ["trial", "mu", "training.epochs", "held-out", "accuracy"]
    assert first.split()[-2:] == ["4", "finished"]
    assert sum(line.rstrip().endswith("pruned") for line in lines) == 2

    found = json.loads(cli(*SEARCH, "--json").out)  # finished and paused runs are read
    assert found["protocol"]["score"] == "last"  # of 4 evaluations
    assert any(line.startswith("score: last round;") for line in lines)
    assert lines[-1] == found["command"]
    assert found["best"]["scores"] == found["trials"][0]["scores"]
    assert (found["protocol"]["seeds"], found["protocol"]["rungs"]) == ([0, 1], [2, 4])
    before = set(Path("runs").iterdir())
    words = shlex.split(found["command"])
    assert words[:2] == ["protofed", "compare"]
    tested = cli(*words[1:], "--workers", "0")
    assert tested.code == 0, tested.err
    assert "last round; 2 seeds (0, 1)" in tested.out
    made = sorted(set(Path("runs").iterdir()) - before)
    assert {load_spec(folder).seed for folder in made} == {0, 1}
    searched = {load_spec(folder).digest for folder in before}
    assert set(found["best"]["digests"]) <= searched
    assert {with_validation(load_spec(folder)) for folder in made} == {*found["best"]["digests"]}


def with_validation(experiment: Experiment) -> str:
    """The digest of the same experiment with a fifth of the images held out."""
    assert experiment.validation is None
    return Experiment.model_validate({**experiment.to_dict(), "validation": 0.2}).digest


def test_all_formats_hold_every_trial(cli: Cli) -> None:
    small = [*SEARCH[:3], "method.mu=0.1,1", *SEARCH[10:], "--rungs", "1", "--rounds", "1"]
    assert cli(*small, "--workers", "0").code == 0
    table = cli(*small, "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(table.out)))
    assert sorted(row["mu"] for row in rows) == ["0.1", "1"]
    assert [row["state"] for row in rows] == ["finished", "finished"]
    assert table.err.splitlines()[-1].startswith("protofed compare fedprox ")
    for form in ("markdown", "latex"):
        out = cli(*small, "--format", form).out
        assert "protofed compare fedprox" in out
        assert "finished" in out


@pytest.mark.long
def test_a_search_that_is_killed_takes_up_its_way(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same document in the end, wherever it was killed and however many were at work."""
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    killed.mkdir()
    whole.mkdir()
    words = [*SEARCH, "--json", "--trials", "3", "--seeds", "1"]
    search = subprocess.Popen(
        [sys.executable, "-m", "protofed", *words, "--workers", "2"],
        cwd=killed,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        played = _wait_for_rounds(killed / "runs", 3)
    finally:
        os.killpg(search.pid, signal.SIGKILL)
        out, _ = search.communicate()
    assert out == b"", "it was really in the middle"
    documents = []
    for place in (killed, whole):
        monkeypatch.chdir(place)
        ended = cli(*words, "--workers", "0")
        assert ended.code == 0, ended.err
        documents.append(json.loads(ended.out))
    assert documents[0] == documents[1]
    assert {trial["state"] for trial in documents[0]["trials"]} == {"finished", "pruned"}
    for folder, before in played.items():  # what had a checkpoint was not played again
        now = (folder / "rounds.jsonl").read_bytes()
        assert now.startswith(b"".join(before[:-1]))
    for folder in (whole / "runs").iterdir():
        twin = killed / "runs" / folder.name
        assert (folder / "scores.jsonl").read_bytes() == (twin / "scores.jsonl").read_bytes()
        assert RunDir(folder).done.exists() == RunDir(twin).done.exists()


def _wait_for_rounds(runs: Path, least: int) -> dict[Path, list[bytes]]:
    """The lines of all runs that have begun, as soon as there are enough of them."""
    for _ in range(2400):
        files = list(runs.glob("*/rounds.jsonl"))
        found = {file.parent: file.read_bytes().splitlines(keepends=True) for file in files}
        if sum(map(len, found.values())) >= least:
            return found
        time.sleep(0.05)
    raise AssertionError("nothing runs")


def test_the_final_command_is_complete_and_quoted(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    """Whatever the spec file says beside the searched fields is in it; `validation` is not."""
    from protofed.analysis.sweep import GridVariant, grid_cells
    from protofed.spec.spec_parser import read_spec, set_value

    method = {"name": "fedproto", "param_avg": False}
    odd = {"validation": 0.4, "net": ["moon-mlp", "moon-cnn"], "method": method}
    raw = {**read_spec(tiny), **odd, "partition": {"clients": {"optical": 2, "print": 1}}}
    plan = plan_search(
        "fedproto", ["method.lam=0.1,1", "training.lr=0.01..0.1"], raw, tmp_path / "my runs"
    )
    settings: dict[str, object] = {"method.lam": 1, "training.lr": 0.0321}
    own = plan.raw
    for field, value in settings.items():
        own = set_value(own, field, value)
    cells = grid_cells([GridVariant("best", own)], [0], plan.runs)
    words = shlex.split(final_command(plan, SearchTrial(1, settings, cells), "last"))
    assert words[words.index("--runs") + 1] == str(tmp_path / "my runs")
    assert words[words.index("--score") + 1] == "last"
    ended = cli(*words[1:], "--workers", "0")
    assert ended.code == 0, ended.err
    (folder,) = (tmp_path / "my runs").iterdir()
    wanted = cells[0].experiment.to_dict()
    assert wanted.pop("validation") == 0.4
    assert load_spec(folder).to_dict() == wanted
