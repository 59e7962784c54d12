from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from protofed.analysis.parallel_runs import GridProgress, run_all
from protofed.analysis.run_process import RunOptions, RunProcess
from protofed.analysis.sweep import GridCell, grid_cells, named_variants
from protofed.errors import ProtofedError
from protofed.experiment.runner import run
from tests.analysis.conftest import SHARED
from tests.cli.conftest import Cli
from tests.cli.conftest import cli as cli
from tests.conftest import Once


@pytest.mark.parametrize("workers", [2, 0])
def test_the_grid_gives_the_bytes_of_single_runs(
    workers: int, grid: list[GridCell], tmp_path: Path
) -> None:
    some = [cell._replace(folder=tmp_path / cell.folder.name) for cell in grid[1:3]]
    assert run_all(some, workers, lambda progress: None) == {}
    for cell in some:
        alone = tmp_path / f"{cell.folder.name}-alone"
        run(cell.experiment, alone)
        for file in ("scores.jsonl", "spec.json", "partition.json"):
            assert (cell.folder / file).read_bytes() == (alone / file).read_bytes()


def test_finished_runs_are_not_repeated(copied: list[GridCell]) -> None:
    before = {c.folder: (c.folder / "rounds.jsonl").stat().st_mtime_ns for c in copied}
    seen: list[GridProgress] = []
    assert run_all(copied, 2, seen.append) == {}
    assert before == {c.folder: (c.folder / "rounds.jsonl").stat().st_mtime_ns for c in copied}
    assert [(p.runs, p.of_runs, p.rounds, p.of_rounds) for p in seen] == [(4, 4, 12, 12)]


@pytest.mark.parametrize(("workers", "count"), [(1, 1), (0, 2)])
def test_cells_pause_where_they_say_and_go_on_from_there(
    workers: int, count: int, grid: list[GridCell], tmp_path: Path
) -> None:
    made = [cell._replace(folder=tmp_path / cell.folder.name) for cell in grid[:count]]
    seen: list[GridProgress] = []
    for _ in range(2):  # the second time there is nothing to do
        assert run_all([cell._replace(stop_after=2) for cell in made], workers, seen.append) == {}
        assert (seen[-1].rounds, seen[-1].of_rounds, seen[-1].runs) == (2 * count, 2 * count, count)
    news = [progress.news for progress in seen if progress.news]
    assert sorted(news) == [f"FedAvg, seed {n}: round 2 of 3 finished" for n in range(count)]
    assert not any((cell.folder / "done").exists() for cell in made)
    assert run_all(made, workers, seen.append) == {}
    for cell, twin in zip(made, grid, strict=False):
        for file in ("scores.jsonl", "done"):
            assert (cell.folder / file).read_bytes() == (twin.folder / file).read_bytes()


@pytest.mark.parametrize("workers", [2, 0])
def test_a_run_that_fails_is_named_and_the_others_finish(workers: int, tmp_path: Path) -> None:
    wild = {**SHARED, "training": {**SHARED["training"], "lr": 1e12}}
    made = [
        *grid_cells(named_variants(["fedavg"], SHARED), range(1), tmp_path),
        *grid_cells(named_variants(["fedprox"], wild), range(1), tmp_path),
    ]
    seen: list[GridProgress] = []
    faults = run_all(made, workers, seen.append)
    assert list(faults) == [made[1].folder]
    assert "lower `training.lr`" in faults[made[1].folder]
    assert (made[0].folder / "done").exists()
    news = [p.news for p in seen if p.news]
    assert any(n == "FedAvg, seed 0: finished" for n in news)
    assert any(n.startswith("FedProx, seed 0: failed: round 1, exchange 1: client") for n in news)


def test_a_killed_worker_is_named_and_the_others_finish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[RunProcess] = []

    class Watched(RunProcess):
        def __init__(self, cell: GridCell, options: RunOptions):
            super().__init__(cell, options)
            started.append(self)

    monkeypatch.setattr("protofed.analysis.parallel_runs.RunProcess", Watched)
    made = grid_cells(
        named_variants(["fedavg", "fedprox"], {**SHARED, "rounds": 30}), range(1), tmp_path
    )
    killed: list[int] = []

    def kill_the_first(progress: GridProgress) -> None:
        if started and not killed and progress.rounds:
            killed.append(started[0].process.pid)
            started[0].process.kill()

    faults = run_all(made, 1, kill_the_first)
    assert killed
    assert faults == {made[0].folder: "its process ended with code -9"}
    assert (made[1].folder / "done").exists()


@pytest.mark.long
def test_who_is_told_to_ignore_hangups_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As under nohup, when the terminal is closed: the grid and its processes get SIGHUP."""
    started: list[int] = []

    class Watched(RunProcess):
        def __init__(self, cell: GridCell, options: RunOptions):
            super().__init__(cell, options)
            started.append(self.process.pid)

    def hang_up(progress: GridProgress) -> None:
        if progress.rounds and not progress.runs:
            hung_up.append(progress.rounds)
            for pid in (os.getpid(), *started):
                os.kill(pid, signal.SIGHUP)

    monkeypatch.setattr("protofed.analysis.parallel_runs.RunProcess", Watched)
    made = grid_cells(named_variants(["fedavg"], {**SHARED, "rounds": 30}), range(1), tmp_path)
    hung_up: list[int] = []
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run_all(made, 1, hang_up) == {}
    finally:
        signal.signal(signal.SIGHUP, before)
    assert hung_up
    assert (made[0].folder / "done").exists()


def test_a_folder_of_another_experiment_stops_the_grid_before_it_starts(
    copied: list[GridCell], tmp_path: Path
) -> None:
    wrong = [copied[0]._replace(experiment=copied[1].experiment)]
    with pytest.raises(ProtofedError, match="another experiment"):
        run_all(wrong, 1, lambda progress: None)


WORDS = [
    *("compare", "fedavg", "fedprox", "--rounds", "20", "--net", "moon-mlp", "--format", "json"),
    *("--set", "partition.kind=shares", "--set", "partition.samples=40"),
    *("--set", "training.epochs=1"),
]


def command(workers: int, runs: Path) -> list[str]:
    words = [*WORDS, "--workers", str(workers), "--runs", str(runs)]
    return [sys.executable, "-m", "protofed", *words]


@pytest.fixture(scope="session")
def unbroken(once: Once) -> Path:
    """The runs of the whole grid, and what the command prints."""
    return once("unbroken", run_unbroken)


def run_unbroken(home: Path) -> None:
    ended = subprocess.run(command(0, home / "runs"), capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    (home / "printed").write_text(ended.stdout)


@pytest.mark.parametrize(
    "how",
    [
        signal.SIGKILL,
        *(pytest.param(how, marks=pytest.mark.long) for how in (signal.SIGINT, signal.SIGTERM)),
    ],
)
def test_killed_in_the_middle_it_goes_on_and_ends_with_the_same_bytes(
    how: signal.Signals, unbroken: Path, cli: Cli, tmp_path: Path
) -> None:
    broken = subprocess.Popen(
        command(2, tmp_path),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    until = time.monotonic() + 120
    while sum(f.read_bytes().count(b"\n") for f in tmp_path.glob("*/rounds.jsonl")) < 3:
        assert broken.poll() is None
        assert time.monotonic() < until
        time.sleep(0.01)
    if how is signal.SIGKILL:
        os.killpg(broken.pid, how)  # the machine goes down: parent and children
        broken.wait()
    else:
        broken.send_signal(how)
        assert broken.wait(timeout=60) == 130
    assert len(list(tmp_path.glob("*/done"))) < 2  # it was really in the middle
    printed = (unbroken / "printed").read_text()
    assert cli(*WORDS, "--workers", "0", "--runs", tmp_path).out == printed
    for folder in (unbroken / "runs").iterdir():
        for file in ("scores.jsonl", "spec.json", "partition.json", "done"):
            assert (folder / file).read_bytes() == (tmp_path / folder.name / file).read_bytes()
