"""The run folder: all that a run leaves behind, in files that any tool can read.

spec.json  env.json  partition.json  rounds.jsonl  scores.jsonl  events.jsonl  checkpoints/  done
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from protofed.core.disk import sha256, sync_folder, write_json, write_whole
from protofed.core.errors import ProtofedError
from protofed.core.lock import alone
from protofed.core.method import Global
from protofed.core.pack import pack, unpack
from protofed.engines.base import Engine
from protofed.experiment.spec import Experiment

KEEP = 2  # checkpoints; the one before the newest is the fallback


class Checkpoint(NamedTuple):
    """The state after `round` finished rounds."""

    round: int
    folder: Path


class RunDir:
    """One experiment's folder; lines are appended, everything else is replaced whole."""

    def __init__(self, path: Path):
        self.path = path
        self.rounds, self.scores = path / "rounds.jsonl", path / "scores.jsonl"
        self.done, self.checkpoints = path / "done", path / "checkpoints"
        self.events = path / "events.jsonl"  # only where something went wrong

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder against other processes; the system frees it when this one ends."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as fault:
            raise ProtofedError(f"cannot write to {self.path}: {fault.strerror}") from fault
        with alone(self.path, f"another process is writing to {self.path}; wait for it"):
            yield

    def check(self, experiment: Experiment) -> None:
        """Stop if the folder holds something else than this experiment; write nothing."""
        spec = self.path / "spec.json"
        if spec.exists():
            found = read_json(spec).get("digest", "")
            if found != experiment.digest:
                raise ProtofedError(
                    f"{self.path} holds another experiment (digest {found[:12]}, "
                    f"not {experiment.digest[:12]}): choose another --out; "
                    "--again repeats only the same experiment"
                )
        elif self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise ProtofedError(f"{self.path} is not an empty folder: choose another --out")

    def open(self, experiment: Experiment) -> None:
        """Make the folder, unless this experiment was begun in it before."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.write("spec.json", {"digest": experiment.digest, **experiment.plain()})
            self.checkpoints.mkdir(exist_ok=True)
        except OSError as fault:
            raise ProtofedError(f"cannot write to {self.path}: {fault.strerror}") from fault

    def clear(self) -> None:
        """Forget what an earlier run of this experiment left."""
        for file in (self.done, self.rounds, self.scores, self.events):
            file.unlink(missing_ok=True)
        shutil.rmtree(self.checkpoints, ignore_errors=True)

    def write(self, name: str, content: object) -> None:
        """Write plain data as a JSON file of the folder."""
        write_json(self.path / name, content)

    def append(self, file: Path, line: dict[str, Any]) -> None:
        """Add one line to a JSON Lines file, and see it on the disk."""
        with file.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line, allow_nan=False) + "\n")
            stream.flush()
            os.fsync(stream.fileno())

    def lines(self, file: Path) -> list[dict[str, Any]]:
        """The lines of a JSON Lines file; a last one that a crash cut short is left out."""
        if not file.exists():
            return []
        found = []
        for text in file.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(text))
            except ValueError:
                break
        return found

    def rewind(self, finished: int) -> None:
        """Drop the lines of rounds that the checkpoint to go on from does not know."""
        for file in (self.rounds, self.scores, *([self.events] if self.events.exists() else [])):
            kept = [line for line in self.lines(file) if line["round"] <= finished]
            write_whole(file, "".join(json.dumps(line) + "\n" for line in kept).encode())

    def save(
        self, finished: int, server: Global, engine: Engine, keep: Collection[int] = ()
    ) -> None:
        """Write a checkpoint beside the others, then drop all but the newest and those to keep."""
        made = self.checkpoints / f".round-{finished:05d}.tmp"
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        write_whole(made / "server.safetensors", pack(server))
        engine.save(made)
        files = {file.name: sha256(file) for file in sorted(made.iterdir())}
        write_json(made / "manifest.json", {"round": finished, "sha256": files})
        final = self.checkpoints / f"round-{finished:05d}"
        shutil.rmtree(final, ignore_errors=True)
        made.rename(final)
        sync_folder(self.checkpoints)
        for old in sorted(self.checkpoints.glob("round-*"))[:-KEEP]:
            if _number(old) not in keep:
                shutil.rmtree(old)

    def rounds_on_disk(self) -> list[int]:
        """The rounds that have a checkpoint."""
        return sorted(_number(folder) for folder in self.checkpoints.glob("round-*"))

    def kept(self, finished: int) -> Checkpoint | None:
        """The checkpoint after so many rounds, if it is there and whole."""
        folder = self.checkpoints / f"round-{finished:05d}"
        return Checkpoint(finished, folder) if _whole(folder) == finished else None

    def newest(self) -> Checkpoint | None:
        """The newest checkpoint that is whole and whose scores are on record."""
        scored = {line["round"] for line in self.lines(self.scores)}
        for folder in sorted(self.checkpoints.glob("round-*"), reverse=True):
            finished = _whole(folder)
            if finished in scored:
                return Checkpoint(finished, folder)
        return None


def _number(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("round-"))


def _whole(folder: Path) -> int:
    """The rounds behind a checkpoint whose files are all as they were written; else 0."""
    try:
        manifest = read_json(folder / "manifest.json")
        finished, sums = int(manifest["round"]), dict(manifest["sha256"])
        whole = sums and all(sha256(folder / name) == found for name, found in sums.items())
        return finished if whole else 0
    except (ProtofedError, OSError, KeyError, TypeError, ValueError):
        return 0


def load_server(checkpoint: Checkpoint) -> Any:
    """The server state that a checkpoint holds."""
    return unpack((checkpoint.folder / "server.safetensors").read_bytes(), older=True)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file of a run folder, which must hold a table."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as fault:
        raise ProtofedError(f"{path} cannot be read: {fault}") from fault
    if not isinstance(content, dict):
        raise ProtofedError(f"{path} is damaged: it must hold a JSON object")
    return content
