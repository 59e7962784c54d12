"""A checkpoint: the state after some rounds, in files that say whether they are still whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from protofed.core.disk import sha256, whole_folder, write_json, write_whole
from protofed.core.errors import ProtofedError
from protofed.core.method import Global
from protofed.core.pack import pack, unpack
from protofed.engines.base import Engine

MANIFEST, SERVER = "manifest.json", "server.safetensors"
NAME = "round-"
# Exactly these, so that no changed letter turns a manifest into one that asks for less.
FIELDS = {"round", "sha256", "scores"}


class Checkpoint(NamedTuple):
    """The state after `round` finished rounds."""

    round: int
    folder: Path


class Found(NamedTuple):
    """What a run can go on from, and why newer checkpoints were passed over: round and reason."""

    checkpoint: Checkpoint | None
    faults: dict[int, str]

    @property
    def round(self) -> int:
        """The rounds behind the checkpoint; 0 if there is none."""
        return self.checkpoint.round if self.checkpoint else 0


def place_of(checkpoints: Path, finished: int) -> Path:
    """The folder of the checkpoint after so many rounds."""
    return checkpoints / f"{NAME}{finished:05d}"


def number_of(folder: Path) -> int:
    """The rounds behind a checkpoint, by its name."""
    return int(folder.name.removeprefix(NAME))


def folders(checkpoints: Path) -> list[Path]:
    """All checkpoints, the oldest first, whole or not."""
    named = (f for f in checkpoints.glob(f"{NAME}*") if f.name.removeprefix(NAME).isdecimal())
    return sorted(named, key=number_of)


def save(folder: Path, server: Global, engine: Engine, scores: Path) -> None:
    """Write a checkpoint in one step; its manifest is the last file, and names all others."""
    with whole_folder(folder) as made:
        write_whole(made / SERVER, pack(server))
        engine.save(made)
        files = {file.name: sha256(file) for file in sorted(made.iterdir())}
        manifest = {"round": number_of(folder), "scores": sha256(scores), "sha256": files}
        write_json(made / MANIFEST, manifest)


def fault_of(folder: Path, scores: str | None = None) -> str:
    """What is wrong with a checkpoint, in a few words; nothing if it is as it was written.

    `scores` is the digest of the run's scores up to this round, as they are on record now.
    """
    try:
        manifest = read_json(folder / MANIFEST)
    except ProtofedError:
        return f"{MANIFEST} cannot be read"
    sums = manifest.get("sha256")
    if set(manifest) != FIELDS or manifest["round"] != number_of(folder) or not sums:
        return f"{MANIFEST} is not as it was written"
    if not isinstance(sums, dict) or set(sums) != {f.name for f in folder.glob("*.safetensors")}:
        return f"there are other files than {MANIFEST} names"
    for name, digest in sums.items():
        if _digest(folder / name) != digest:
            return f"{name} is not as it was written"
    if scores is not None and manifest["scores"] != scores:
        return "scores.jsonl is not as it was then"
    return ""


def _digest(file: Path) -> str:
    """The digest of a file; none that anything could have if it cannot be read."""
    try:
        return sha256(file)
    except OSError:
        return ""


def load_server(checkpoint: Checkpoint) -> Any:
    """The server state that a checkpoint holds."""
    return unpack((checkpoint.folder / SERVER).read_bytes())


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file of a run folder, which must hold a table."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise ProtofedError(f"{path} cannot be read: {fault}") from fault
    if not isinstance(content, dict):
        raise ProtofedError(f"{path} is damaged: it must hold a JSON object")
    return content
