"""Nobody reads what is printed: a command ends quietly, and a run is not lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from protofed.cli.output import UNREAD

QUICK = ["--net", "moon-mlp", "--rounds", "2", "--set", "training.epochs=1", "--workers", "0"]
QUICK += ["--set", "partition.kind=shares", "--set", "partition.samples=9"]


def called(*words: str, out: int | None = None, err: int | None = None) -> tuple[int, str, str]:
    """Exit code and both streams of a real command; a stream may be given its own end."""
    ended = subprocess.run(
        [sys.executable, "-m", "protofed", *words],
        stdout=subprocess.PIPE if out is None else out,
        stderr=subprocess.PIPE if err is None else err,
        text=True,
    )
    return ended.returncode, ended.stdout or "", ended.stderr or ""


@pytest.fixture
def unread() -> int:
    """A pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize("words", [["methods"], ["methods", "--json"], ["--help"], ["--version"]])
def test_a_command_that_nobody_reads_ends_quietly(words: list[str], unread: int) -> None:
    assert called(*words, out=unread) == (UNREAD, "", "")


def test_a_run_is_finished_although_nobody_reads_its_scores(unread: int) -> None:
    code, _, err = called("run", *QUICK, "--out", "a", out=unread)
    assert code == UNREAD
    assert Path("a/done").exists()
    assert "round 2/2" in err
    assert "Error" not in err
    assert "Traceback" not in err


def test_a_run_goes_on_although_nobody_reads_its_progress(unread: int) -> None:
    code, out, _ = called("run", *QUICK, "--out", "a", err=unread)
    assert code == 0
    assert "run folder: a" in out
    assert Path("a/done").exists()


@pytest.mark.long
def test_a_grid_goes_on_although_nobody_reads_its_progress(unread: int) -> None:
    words = [word for word in QUICK if word not in ("--workers", "0")]
    code, out, _ = called("compare", "fedavg", *words, "--workers", "1", err=unread)
    assert code == 0
    assert out.splitlines()[2].startswith("FedAvg")


def test_a_full_disk_behind_a_stream_is_told_once() -> None:
    with Path("/dev/full").open("w") as full:
        code, _, err = called("methods", out=full.fileno())
    assert (code, err) == (2, "error: [Errno 28] No space left on device\n")


def test_streams_that_are_closed_from_the_start_are_no_fault() -> None:
    for closed in ("1", "2"):
        command = f"{sys.executable} -m protofed methods {closed}>&-"
        assert subprocess.run(command, shell=True, capture_output=True).returncode == 0
