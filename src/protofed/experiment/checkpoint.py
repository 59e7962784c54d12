"""A checkpoint: the state after some rounds, in files that say whether they are still whole."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from protofed.core.method import ServerState
from protofed.core.serialization import pack_tree, unpack_tree
from protofed.engines.engine import Engine
from protofed.errors import ProtofedError
from protofed.experiment.run_records import ADVICE, ManifestRecord, check_shape
from protofed.experiment.run_records import MANIFEST as SHAPE
from protofed.runtime.atomic_io import (
    atomic_directory,
    atomic_write,
    atomic_write_json,
    file_sha256,
    read_file_bytes,
)
from protofed.runtime.json_files import read_json_file

MANIFEST, SERVER = "manifest.json", "server.safetensors"
NAME = "round-"


class Checkpoint(NamedTuple):
    """A checkpoint on disk: the state after `round` finished rounds.

    The folder holds the server's state, the clients' private states and a manifest.
    """

    round: int
    folder: Path


class ResumePoint(NamedTuple):
    """Where a run can resume, and why newer checkpoints cannot be used.

    `checkpoint` is None if the run must start over; `faults` maps rounds to reasons.
    """

    checkpoint: Checkpoint | None
    faults: dict[int, str]

    @property
    def round(self) -> int:
        """The rounds behind the checkpoint; 0 if there is none."""
        return self.checkpoint.round if self.checkpoint else 0


def checkpoint_folder(checkpoints: Path, finished: int) -> Path:
    """The folder of the checkpoint after `finished` rounds, as ``checkpoints/round-00012``."""
    return checkpoints / f"{NAME}{finished:05d}"


def checkpoint_round(folder: Path) -> int:
    """The number of finished rounds that the name of a checkpoint states."""
    return int(folder.name.removeprefix(NAME))


def checkpoint_folders(checkpoints: Path) -> list[Path]:
    """The folders of all checkpoints, oldest first; their content is not checked."""
    named = (f for f in checkpoints.glob(f"{NAME}*") if f.name.removeprefix(NAME).isdecimal())
    return sorted(named, key=checkpoint_round)


def save_checkpoint(
    folder: Path, server: ServerState, engine: Engine, scores: Path, experiment: str
) -> None:
    """Write a checkpoint that is either complete or absent.

    The last file, ``manifest.json``, holds the digests of all others and of the scores so far. It
    also names the experiment by its digest, so no other experiment can resume from it.
    """
    with atomic_directory(folder) as made:
        atomic_write(made / SERVER, pack_tree(server))
        engine.save(made)
        files = {file.name: file_sha256(file) for file in sorted(made.iterdir())}
        manifest: ManifestRecord = {
            "experiment": experiment,
            "round": checkpoint_round(folder),
            "scores": file_sha256(scores),
            "sha256": files,
        }
        atomic_write_json(made / MANIFEST, manifest)


class ScoreHistory(NamedTuple):
    """What a run folder has recorded so far, against which its checkpoints are checked.

    `scores` are the lines of ``scores.jsonl`` with their rounds; `rounds` are those of
    ``rounds.jsonl``. A checkpoint must fit both and the experiment's digest.
    """

    experiment: str  # its digest
    scores: Sequence[tuple[int, bytes]]  # round and line
    rounds: Sequence[int]

    def fault_of(self, folder: Path) -> str:
        """Why a checkpoint cannot be used, in a few words; nothing if it can."""
        finished = checkpoint_round(folder)
        try:
            manifest = check_shape(SHAPE, read_json_file(folder / MANIFEST), MANIFEST)
        except ProtofedError:
            return f"{MANIFEST} cannot be read"
        if manifest["round"] != finished:
            return f"{MANIFEST} is of another round"
        if manifest["experiment"] != self.experiment:
            return f"it is of another experiment, {manifest['experiment'][:12]}"
        if fault := _fault_of_files(folder, manifest["sha256"]):
            return fault
        return self._fault_of_lines(finished, manifest["scores"])

    def _fault_of_lines(self, finished: int, scores: str) -> str:
        """Whether scores and rounds are on record up to here, the scores as they were then."""
        lines = b"".join(raw for number, raw in self.scores if number <= finished)
        if hashlib.sha256(lines).hexdigest() != scores:
            return "scores.jsonl is not as it was then"
        if all(number != finished for number, _ in self.scores):
            return "scores.jsonl has no such round"
        if [number for number in self.rounds if number <= finished] != [*range(1, finished + 1)]:
            return "rounds.jsonl does not have every round up to it"
        return ""


def _fault_of_files(folder: Path, sums: dict[str, str]) -> str:
    there = {file.name for file in folder.glob("*.safetensors")}
    if SERVER not in there or set(sums) != there:
        return f"there are other files than {MANIFEST} names"
    wrong = [name for name, digest in sums.items() if _digest(folder / name) != digest]
    return f"{wrong[0]} is not as it was written" if wrong else ""


def _digest(file: Path) -> str:
    """The digest of a file; none that anything could have if it cannot be read."""
    try:
        return file_sha256(file)
    except OSError:
        return ""


def load_server_state(checkpoint: Checkpoint) -> Any:
    """Load the server state of a checkpoint; any other content is refused.

    The engine loads the states of the clients itself (`Engine.load`).
    """
    file = checkpoint.folder / SERVER
    server = unpack_tree(read_file_bytes(file))
    if not isinstance(server, ServerState):  # digests are no signature
        raise ProtofedError(f"{file} does not hold the state of a server", hint=ADVICE)
    return server
