"""A handful of tiny runs, made once, and copies of them for tests that change files."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protofed.experiment.runner import run
from protofed.federation.evaluation import DomainScores
from protofed.spec.spec_parser import parse_experiment

TINY: dict[str, Any] = {
    "data": {"name": "digits-mini", "domains": ["optical", "print"]},
    "partition": {"kind": "shares", "clients": 3, "samples": 40},
    "training": {"epochs": 2, "batch": 8, "lr": 0.02},
    "net": "moon-mlp",
    "rounds": 3,
}
Copy = Callable[[str], Path]


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the runs fedavg-0, fedavg-1, fpl-0, fpl-1 and local-0."""
    home = tmp_path_factory.mktemp("report")
    for method, seed in (("fedavg", 0), ("fedavg", 1), ("fpl", 0), ("fpl", 1), ("local", 0)):
        run(parse_experiment({**TINY, "method": method, "seed": seed}), home / f"{method}-{seed}")
    return home


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Copy:
    """A run under its own name in a folder of the test's own."""

    def make(name: str) -> Path:
        return Path(shutil.copytree(made / name, tmp_path / name))

    return make


def rewrite_scores(folder: Path, lines: list[dict[str, Any]]) -> None:
    """Put other scores into a run, and the mark that they belong to it."""
    lines = [{**line, **DomainScores(line["domains"]).to_dict()} for line in lines]
    text = "".join(json.dumps(line) + "\n" for line in lines).encode()
    (folder / "scores.jsonl").write_bytes(text)
    done = json.loads((folder / "done").read_text())
    done["scores"] = hashlib.sha256(text).hexdigest()
    (folder / "done").write_text(json.dumps(done))


def lines_of(file: Path) -> list[dict[str, Any]]:
    """The lines of a JSON Lines file."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def unfinish(folder: Path, rounds: int) -> None:
    """Make a finished run one that has some rounds behind it."""
    (folder / "done").unlink()
    for name in ("rounds.jsonl", "scores.jsonl"):
        kept = [line for line in lines_of(folder / name) if line["round"] <= rounds]
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in kept))
