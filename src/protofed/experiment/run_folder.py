"""The run folder: all that a run leaves behind, in files that any tool can read.

spec.json  env.json  partition.json  rounds.jsonl  scores.jsonl  events.jsonl  checkpoints/  done
and, where they were asked for, public.json (rows of public images) and keep.json (rounds to keep)
and card.md, which is made from these, tracking.json (ids of logs elsewhere), and
checkpoints/pruned.json, which names checkpoints that were removed
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from protofed.core.method import ServerState
from protofed.engines.engine import Engine
from protofed.errors import ProtofedError, printable_text
from protofed.experiment import checkpoint, run_records
from protofed.experiment.checkpoint import Checkpoint, ResumePoint, ScoreHistory
from protofed.runtime import atomic_io
from protofed.runtime.atomic_io import file_lock
from protofed.spec.experiment_spec import Experiment

KEEP = 2  # checkpoints; the one before the newest is the fallback
PRUNED_FILE = "pruned.json"  # in checkpoints: the rounds whose checkpoints were removed
SHOWN = 5  # run folders, or fields, that an error names


class RunDir:
    """The folder of one run: where its files are, and how they are written and read.

    Files are replaced atomically; only the ``.jsonl`` files grow line by line. `locked` keeps other
    processes out, `find` returns where to resume. A folder belongs to one experiment, by its
    digest.
    """

    def __init__(self, path: Path):
        self.path = path
        self.rounds, self.scores = path / "rounds.jsonl", path / "scores.jsonl"
        self.done, self.checkpoints = path / "done", path / "checkpoints"
        self.pruned = self.checkpoints / PRUNED_FILE  # only where checkpoints were removed
        self.events = path / "events.jsonl"  # only where something went wrong
        self.keep = path / "keep.json"  # only where checkpoints are to stay
        self.card = path / "card.md"  # for people, from the other files
        self.tracking = path / "tracking.json"  # only where a tracker has to find its log again

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder against other processes; the system frees it when this one ends."""
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
        with file_lock(self.path, f"another process is writing to {self.path}; wait for it"):
            yield

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Say of a disk that is full, broken or not ours where that was, and what is not lost."""
        try:
            yield
        except OSError as fault:
            text = f"cannot write to {self.path}: {fault.strerror}"
            if safe := self.rounds_on_disk():
                text += (
                    f"\nall rounds up to {safe[-1]} are safe there; once the folder can be written "
                    f"again, `protofed resume {self.path}` continues"
                )
            raise ProtofedError(text) from fault

    def check(self, experiment: Experiment) -> None:
        """Stop if the folder holds something else than this experiment; write nothing."""
        spec = self.path / "spec.json"
        if spec.exists():
            found = self.digest()
            if found != experiment.digest:
                raise ProtofedError(
                    f"{self.path} holds another experiment (digest {found[:12]}, "
                    f"not {experiment.digest[:12]}){self._differences(experiment)}",
                    hint="choose another <out>; <again> repeats only the same experiment",
                )
        elif self.path.exists() and not _is_free(self.path):
            raise ProtofedError(f"{self.path} is not an empty folder", hint="choose another <out>")

    def _differences(self, experiment: Experiment) -> str:
        """A line with the fields in which the folder's experiment differs; "" if it is damaged."""
        try:
            found = run_records.load_spec(self.path).differences_to(experiment)
        except ProtofedError:
            return ""
        told = [
            f"{path} ({_brief(there)} there, {_brief(wanted)} now)"
            for path, (there, wanted) in found.items()
        ]
        rest = len(told) - SHOWN
        return f"\nit differs in {', '.join(told[:SHOWN])}" + (f" and {rest} more" * (rest > 0))

    def digest(self) -> str:
        """The experiment that the folder is for, as its spec.json says."""
        return run_records.read_record_file(run_records.SPEC, self.path / "spec.json")["digest"]

    def open(self, experiment: Experiment) -> None:
        """Make the folder, unless this experiment was begun in it before."""
        with self._writing():
            self.path.mkdir(parents=True, exist_ok=True)
            atomic_io.remove_temporaries(self.path)
            label = experiment.method.info.label
            recorded = {"digest": experiment.digest, "method_label": label}
            self.write("spec.json", {**recorded, **experiment.to_dict()})
            self.checkpoints.mkdir(exist_ok=True)  # after the spec: now the folder is a run's
            atomic_io.remove_temporaries(self.checkpoints)

    def clear(self) -> None:
        """Forget what an earlier run of this experiment left."""
        with self._writing():
            records = (self.done, self.rounds, self.scores, self.events, self.keep, self.card)
            for file in (*records, self.tracking):
                file.unlink(missing_ok=True)
            shutil.rmtree(self.checkpoints, ignore_errors=True)

    def write(self, name: str, content: object) -> None:
        """Write plain data as a JSON file of the folder."""
        with self._writing():
            atomic_io.atomic_write_json(self.path / name, content)

    def write_card(self, text: str) -> None:
        """Write the card, for people."""
        with self._writing():
            atomic_io.atomic_write(self.card, text.encode())

    def append(self, file: Path, line: dict[str, Any]) -> None:
        """Add one line to a JSON Lines file, and see it on the disk."""
        with self._writing():
            text = json.dumps(line, allow_nan=False, separators=(",", ":"))
            atomic_io.append_durably(file, f"{text}\n".encode())

    def lines(self, file: Path) -> list[dict[str, Any]]:
        """The lines of a JSON Lines file; a last one that a crash cut short is left out."""
        return run_records.read_record_lines(file)

    def rewind(self, finished: int) -> int:
        """Drop the lines of rounds that the state to go on from does not know.

        Damaged lines of events go too, and their number is told: no round can be played for them.
        """
        damaged = run_records.count_damaged_lines(self.events)
        with self._writing():
            for file in (self.rounds, self.scores, self.events):
                if file.exists() or file != self.events:
                    atomic_io.atomic_write(file, _up_to(finished, file))
        return damaged

    def drop_after(self, finished: int) -> None:
        """Drop checkpoints that were passed over, or they would count among the newest."""
        with self._writing():
            for folder in checkpoint.checkpoint_folders(self.checkpoints):
                if checkpoint.checkpoint_round(folder) > finished:
                    atomic_io.remove_directory(folder)

    def keeping(self, more: Collection[int]) -> set[int]:
        """The rounds to keep: those that were named when the run began, and `more`."""
        known: set[int] = set()
        if self.keep.exists():
            known = set(run_records.read_record_file(run_records.KEEP, self.keep)["rounds"])
        if not known.issuperset(more):
            self.write(self.keep.name, {"rounds": sorted(known.union(more))})
        return known.union(more)

    def save(
        self,
        finished: int,
        server: ServerState,
        engine: Engine,
        experiment: Experiment,
        keep: Collection[int] = (),
    ) -> None:
        """Write a checkpoint beside the others, then drop all but the newest and those to keep."""
        with self._writing():
            place = checkpoint.checkpoint_folder(self.checkpoints, finished)
            checkpoint.save_checkpoint(place, server, engine, self.scores, experiment.digest)
            for old in checkpoint.checkpoint_folders(self.checkpoints)[:-KEEP]:
                if checkpoint.checkpoint_round(old) not in keep:
                    atomic_io.remove_directory(old)

    def pruned_rounds(self) -> set[int]:
        """The rounds whose checkpoints were removed to free space."""
        if not self.pruned.exists():
            return set()
        return set(run_records.read_record_file(run_records.KEEP, self.pruned)["rounds"])

    def prune(self, rounds: Collection[int]) -> None:
        """Remove the checkpoints of some rounds, and what a kill left of others.

        They are noted first, so that a reader is told why they are gone, even after a kill.
        """
        gone = sorted(self.pruned_rounds().union(rounds))
        atomic_io.atomic_write_json(self.pruned, {"rounds": gone})
        for folder in checkpoint.checkpoint_folders(self.checkpoints):
            if checkpoint.checkpoint_round(folder) in rounds:
                atomic_io.remove_directory(folder)
        atomic_io.remove_temporaries(self.checkpoints)

    def rounds_on_disk(self) -> list[int]:
        """The rounds that have a checkpoint."""
        return [
            checkpoint.checkpoint_round(folder)
            for folder in checkpoint.checkpoint_folders(self.checkpoints)
        ]

    def kept(self, finished: int) -> Checkpoint | None:
        """The checkpoint after so many rounds, if it is there; one that is damaged is told."""
        folder = checkpoint.checkpoint_folder(self.checkpoints, finished)
        if not folder.exists():
            return None
        if fault := self._past().fault_of(folder):
            raise ProtofedError(
                f"{self.path}: the checkpoint of round {finished} cannot be used: {fault}",
                hint="choose another round, or repeat the run with <again>",
            )
        return Checkpoint(finished, folder)

    def _past(self) -> ScoreHistory:
        """What checkpoints are held against."""
        scores = [(line["round"], raw) for line, raw in run_records.undamaged_lines(self.scores)]
        rounds = [line["round"] for line, _ in run_records.undamaged_lines(self.rounds)]
        return ScoreHistory(self.digest(), scores, rounds)

    def find(self) -> ResumePoint:
        """The newest checkpoint that is whole and whose scores are on record."""
        faults: dict[int, str] = {}
        if not (self.path / "spec.json").exists():
            return ResumePoint(None, faults)
        past = self._past()
        for folder in reversed(checkpoint.checkpoint_folders(self.checkpoints)):
            finished = checkpoint.checkpoint_round(folder)
            fault = past.fault_of(folder)
            if not fault:
                return ResumePoint(Checkpoint(finished, folder), faults)
            faults[finished] = fault
        # A kill leaves one scored round without a checkpoint, never two.
        lost = [number for number, _ in past.scores][:-1]
        return ResumePoint(None, faults or dict.fromkeys(lost[-1:], "it is gone"))

    def newest(self) -> Checkpoint | None:
        """The checkpoint to go on from, or to read."""
        return self.find().checkpoint


def check_is_run(folder: Path) -> None:
    """Stop with an error if a folder is not a run.

    If it contains runs, the error names some of them: a parent folder is the usual slip.
    """
    if not folder.is_dir():
        raise ProtofedError(f"{folder}: no such folder; `protofed run` begins a run")
    if not (folder / "spec.json").exists():
        inside = [str(spec.parent) for spec in sorted(folder.glob("*/spec.json"))]
        runs = f"\nit contains the runs {', '.join(inside[:SHOWN])}" if inside else ""
        more = f" and {len(inside) - SHOWN} more" if len(inside) > SHOWN else ""
        raise ProtofedError(f"{folder} is not the folder of a run: no spec.json{runs}{more}")


def _brief(value: object) -> str:
    return "nothing" if value is None else printable_text(str(value), 40)


def _is_free(path: Path) -> bool:
    """Whether a run may begin here: nothing is there, but for a spec that a kill left half."""
    return path.is_dir() and all(map(atomic_io.is_temporary, path.iterdir()))


def _up_to(finished: int, file: Path) -> bytes:
    """What a JSON Lines file says of the first rounds."""
    return b"".join(
        raw for line, raw in run_records.undamaged_lines(file) if line["round"] <= finished
    )


def check_same_environment(folder: Path, world: run_records.World) -> None:
    """Refuse to resume a run that was begun with another torch or other images.

    `world` is the environment of today; that of the run is in ``env.json``.
    """
    begun = (folder / "env.json").exists()
    before = run_records.read_world(folder) if begun else world
    for what in ("torch", "data"):
        if before.get(what) != world[what]:
            raise ProtofedError(
                f"{folder} was begun with other {what}: {before.get(what)}, now {world[what]}",
                hint="start over with <again>, or in another folder with another <out>",
            )
