"""``--track``: runs, resumed runs and grids that are logged, and what is told if they cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from protofed.tracking.log_identity import log_name
from tests.cli.conftest import Cli
from tests.tracking.conftest import expected_points, tensorboard_points


def check_logged(folder: Path, logs: Path) -> None:
    """The log of a run has the steps and names that the run has on record."""
    found, wanted = tensorboard_points(logs / log_name(folder)), expected_points(folder)
    assert {name: [step for step, _ in points] for name, points in found.items()} == {
        name: [step for step, _ in points] for name, points in wanted.items()
    }


def test_a_run_is_logged_and_a_resumed_one_again(cli: Cli, tiny: Path) -> None:
    words = ["run", "--spec", tiny, "--workers", "0", "--out", "a", "--track", "tensorboard"]
    assert cli(*words).code == 0
    check_logged(Path("a"), Path("tensorboard"))
    Path("a/done").unlink()
    ended = cli("resume", "a", "--workers", "0", "--track", "tensorboard", "--track-to", "logs")
    assert ended.code == 0, ended.err
    check_logged(Path("a"), Path("logs"))
    assert f"-> later/{log_name(Path('a'))}" in cli("track", "a", "--to", "later").out
    check_logged(Path("a"), Path("later"))


@pytest.mark.parametrize("workers", ["0", pytest.param("2", marks=pytest.mark.long)])
def test_every_run_of_a_grid_is_logged(workers: str, cli: Cli, tiny: Path) -> None:
    words = ["compare", "fedavg", "fpl", "--spec", tiny, "--workers", workers]
    ended = cli(*words, "--track", "tensorboard", "--track-to", "logs")
    assert ended.code == 0, ended.err
    folders = sorted(Path("runs").iterdir())
    assert len(folders) == len([*Path("logs").iterdir()]) == 2
    for folder in folders:
        check_logged(folder, Path("logs"))


@pytest.mark.parametrize("workers", ["0", "1"])
def test_a_tracker_that_fails_in_a_grid_is_told_and_the_runs_finish(
    workers: str, cli: Cli, tiny: Path
) -> None:
    Path("logs").write_text("a file, where a folder is to be")
    words = ["compare", "fedavg", "--spec", tiny, "--workers", workers]
    ended = cli(*words, "--track", "tensorboard", "--track-to", "logs")
    assert ended.code == 0, ended.err
    assert ended.err.count("TensorBoardTracker failed and is switched off") == 1
    assert "FedAvg, seed 0: finished" in ended.err


def test_a_tracker_that_fails_in_a_run_is_a_note(cli: Cli, tiny: Path) -> None:
    Path("logs").write_text("a file, where a folder is to be")
    words = ["run", "--spec", tiny, "--workers", "0", "--out", "a"]
    ended = cli(*words, "--track", "tensorboard", "--track-to", "logs")
    assert ended.code == 0, ended.err
    assert ended.err.count("note: TensorBoardTracker failed and is switched off") == 1
    assert Path("a/done").exists()


def test_a_folder_without_a_tracker_and_an_unknown_one_are_refused(cli: Cli, tiny: Path) -> None:
    ended = cli("run", "--spec", tiny, "--track-to", "logs")
    assert (ended.code, "--track-to needs --track" in ended.err) == (2, True)
    ended = cli("run", "--spec", tiny, "--track", "wnb")
    assert (ended.code, "unknown tracker 'wnb'" in ended.err) == (2, True)
    assert not Path("runs").exists()
