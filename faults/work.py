"""The small runs that are broken here, and how two of them are compared."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from faults.forks import call
from protofed.experiment.checkpoint import checkpoint_folder
from protofed.experiment.run_folder import RunDir
from protofed.runtime.atomic_io import file_sha256

METHODS = ("fedavg", "scaffold", "moon", "fedseproto", "fedlsa", "pgct")
ROUNDS = 4
FIELDS = {
    "net": "moon-mlp",
    "data.domains": '["optical", "print"]',
    "data.side": 8,
    "partition.kind": "shares",
    "partition.clients": 3,
    "partition.samples": 9,
    "training.epochs": 1,
    "training.batch": 4,
}
SHORT = {"fedgh": {"server_epochs": 5}, "fedlsa": {"server_epochs": 5}}
SHORT |= {"fedmd": {"public_batch": 8}, "fedtgp": {"server_epochs": 5}}


class Work(NamedTuple):
    """A method on a few images, and in how many processes."""

    method: str
    workers: int = 0
    rounds: int = ROUNDS

    def words(self, out: Path) -> list[str]:
        """The command that runs it into a folder."""
        fields = {**FIELDS, **{f"method.{k}": v for k, v in SHORT.get(self.method, {}).items()}}
        said = [word for name, value in fields.items() for word in ("--set", f"{name}={value}")]
        named = ["--method", self.method, "--rounds", str(self.rounds), "--out", str(out)]
        return ["run", *named, *said, *self.processes()]

    def processes(self) -> list[str]:
        """The part of the command that says in how many processes."""
        return ["--workers", str(self.workers)]

    def again(self, out: Path) -> list[str]:
        """The command that goes on from the folder alone."""
        return ["resume", str(out), *self.processes()]


class Unbroken(NamedTuple):
    """A run that nothing happened to: where it lies and how long it took."""

    folder: Path
    seconds: float


def unbroken(work: Work, folder: Path, keep: bool = False) -> Unbroken:
    """Run some work without any fault; `keep` the states after all rounds."""
    folder.mkdir(parents=True)
    kept = ["--keep", ",".join(map(str, range(1, work.rounds + 1)))] if keep else []
    began = time.monotonic()
    ended = call([*work.words(folder / "run"), *kept], folder / "log")
    if ended.code:
        raise RuntimeError(f"{work} fails without any fault:\n{ended.told}")
    return Unbroken(folder / "run", time.monotonic() - began)


def state(run: Path, finished: int) -> dict[str, str]:
    """The digests of the server's and the clients' states after so many rounds."""
    place = checkpoint_folder(run / "checkpoints", finished)
    return {file.name: file_sha256(file) for file in sorted(place.glob("*.safetensors"))}


def bytes_of(run: Path, rounds: int) -> dict[str, str]:
    """What must be equal in two runs of one experiment: scores and the last states."""
    if lacks := [name for name in ("card.md", "done") if not (run / name).exists()]:
        return {f"lacks {name}": str(run) for name in lacks}
    return {"scores.jsonl": file_sha256(run / "scores.jsonl"), **state(run, rounds)}


def differences(run: Path, other: Path, rounds: int) -> list[str]:
    """The files in which two finished runs differ."""
    one, two = bytes_of(run, rounds), bytes_of(other, rounds)
    return sorted(name for name in one.keys() | two.keys() if one.get(name) != two.get(name))


def damage(run: Path) -> list[str]:
    """What is wrong with the checkpoints of a run folder; a kill must leave nothing."""
    return [f"round {finished}: {why}" for finished, why in RunDir(run).find().faults.items()]


def figures(found: Sequence[list[str]], **more: Any) -> dict[str, Any]:
    """How many cases were tried, how many of them held, and what failed in the others."""
    return {
        "tried": len(found),
        "held": sum(not failures for failures in found),
        **more,
        "failures": [failure for failures in found for failure in failures],
    }
