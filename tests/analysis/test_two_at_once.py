"""Two commands on one folder of runs: each ends with the whole table, whoever ran what."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from protofed.analysis.parallel_runs import GridProgress, run_all
from protofed.analysis.sweep import GridCell, grid_cells, named_variants
from protofed.experiment.run_folder import RunDir
from protofed.experiment.runner import run
from protofed.runtime.atomic_io import is_locked
from tests.analysis.conftest import SHARED
from tests.cli.conftest import Cli
from tests.cli.conftest import cli as cli

COMMAND = [
    *(sys.executable, "-m", "protofed", "compare", "fedavg", "fedprox"),
    *("--rounds", "12", "--net", "moon-mlp", "--format", "json", "--workers", "1"),
    *("--set", "partition.kind=shares", "--set", "partition.samples=40"),
    *("--set", "training.epochs=1"),
]
Command = subprocess.Popen[str]


@pytest.fixture
def two(tmp_path: Path) -> Iterator[list[Command]]:
    """The same comparison twice, in processes of their own; what they tell goes into files."""
    made = []
    for number in range(2):
        with (tmp_path / f"told-{number}").open("w") as told:
            made.append(
                subprocess.Popen(
                    [*COMMAND, "--runs", str(tmp_path / "runs")],
                    stdout=subprocess.PIPE,
                    stderr=told,
                    text=True,
                    start_new_session=True,
                )
            )
    yield made
    for command in made:
        if command.poll() is None:
            os.killpg(command.pid, signal.SIGKILL)
        command.communicate()


@pytest.mark.long
def test_both_print_the_same_whole_table(two: list[Command], tmp_path: Path) -> None:
    tables = [command.communicate(timeout=200)[0] for command in two]
    news = "".join((tmp_path / f"told-{number}").read_text() for number in range(2))
    assert [command.returncode for command in two] == [0, 0], news
    assert tables[0] == tables[1]
    assert '"baseline": "FedAvg"' in tables[0]
    assert '"FedProx"' in tables[0]
    assert "which another process is running" in news
    assert "failed" not in news
    assert len(re.findall(r": finished(?! by)", news)) == 2  # each was run once


@pytest.mark.long
def test_who_waits_takes_over_from_who_dies(two: list[Command], tmp_path: Path) -> None:
    waits = _who_waits(tmp_path)
    assert not list(tmp_path.glob("runs/fedavg*/done")), "it was really in the middle"
    os.killpg(two[1 - waits].pid, signal.SIGKILL)
    out, _ = two[waits].communicate(timeout=200)
    told = (tmp_path / f"told-{waits}").read_text()
    assert two[waits].returncode == 0, told
    assert '"baseline": "FedAvg"' in out
    assert "failed" not in told
    runs = list((tmp_path / "runs").iterdir())
    assert [len(RunDir(folder).lines(folder / "rounds.jsonl")) for folder in runs] == [12, 12]
    assert all((folder / "done").exists() for folder in runs)


def _who_waits(folder: Path) -> int:
    """Which command waits for FedAvg, which the other is running."""
    for _ in range(1200):
        for number in range(2):
            if "waiting for FedAvg" in (folder / f"told-{number}").read_text():
                return number
        time.sleep(0.05)
    raise AssertionError("nobody waits")


@pytest.fixture
def cell(tmp_path: Path) -> GridCell:
    (made,) = grid_cells(named_variants(["fedavg"], SHARED), range(1), tmp_path)
    return made


def test_a_run_that_another_finishes_is_read(cell: GridCell, tmp_path: Path) -> None:
    """Held for a while here, then finished by somebody else."""
    run(cell.experiment, tmp_path / "made", workers=0)
    seen: list[str] = []

    def finish(now: GridProgress) -> None:
        seen.append(now.news)
        if "waiting" in now.news:
            threading.Timer(0.5, holding.set).start()

    holding = threading.Event()
    other = threading.Thread(target=_hold, args=(cell.folder, holding, tmp_path / "made"))
    other.start()
    while not is_locked(cell.folder):
        time.sleep(0.01)
    assert run_all([cell], 1, finish) == {}
    other.join()
    told = f"waiting for FedAvg, seed 0, which another process is running in {cell.folder}"
    assert [news for news in seen if news] == [told, "FedAvg, seed 0: finished by another process"]


def _hold(folder: Path, until: threading.Event, made: Path) -> None:
    """Hold a folder as a run does, and leave a finished run in it."""
    with RunDir(folder).locked():
        until.wait(30)
        made.rename(folder)


@pytest.mark.long
def test_a_search_waits_for_a_trial_that_another_runs(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["sweep", "fedprox", "--search", "method.mu=0.1..1", "--trials", "1", "--net"]
    words += ["moon-mlp", "--rounds", "1", "--set", "training.epochs=1"]
    words += ["--set", "partition.kind=shares", "--set", "partition.samples=9"]
    first = cli(*words, "--workers", "0")
    assert first.code == 0
    (folder,) = Path("runs").iterdir()
    (folder / "done").unlink()
    until = threading.Event()
    threading.Timer(1, until.set).start()
    other = threading.Thread(target=_sit_on, args=(folder, until))
    other.start()
    while not is_locked(folder):
        time.sleep(0.01)
    second = cli(*words)
    other.join()
    assert (second.code, second.out) == (0, first.out)
    assert "which another process is running" in second.err


def _sit_on(folder: Path, until: threading.Event) -> None:
    with RunDir(folder).locked():
        until.wait(30)
