"""The command line, called in this process where a process of its own would only cost time."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from protofed.cli import main


class Ended(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str


Cli = Callable[..., Ended]

SETTINGS = [
    "PROTOFED_DATA",
    "PROTOFED_MIRROR",
    "PYTHONUNBUFFERED",
    "NO_COLOR",
    "FORCE_COLOR",
    "TTY_COMPATIBLE",
    "TTY_INTERACTIVE",
    "COLUMNS",
]
TINY = """
net = "moon-mlp"
rounds = 2
[data]
name = "digits-mini"
domains = ["optical", "print"]
[partition]
kind = "shares"
clients = 2
samples = 9
[training]
epochs = 1
"""


@pytest.fixture(autouse=True)
def _plain_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Start in an empty folder, without the settings of whoever runs the tests."""
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Call ``protofed WORDS...`` as the console script does."""

    def call(*words: str | os.PathLike[str]) -> Ended:
        monkeypatch.setattr(sys, "argv", ["protofed", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        return Ended(code if isinstance(code, int) else 0, *capsys.readouterr())

    return call


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A spec file of a run that takes a second."""
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path
