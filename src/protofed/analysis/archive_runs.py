"""Small copies of finished runs: all that tables, curves and reports read, to keep beside code.

A copy holds no model, no rows of images and no metrics of single clients, but is a run folder like
any other.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from protofed.analysis.run_index import find_runs, measure_files, shorten_fault
from protofed.errors import ProtofedError
from protofed.experiment import run_records
from protofed.experiment.result import check_finished
from protofed.experiment.run_folder import RunDir
from protofed.runtime.atomic_io import atomic_directory, atomic_write, atomic_write_json

WHOLE = ("spec.json", "scores.jsonl", "done")
IF_THERE = ("events.jsonl",)


class ArchivedRun(NamedTuple):
    """The copy of a run: where it is, its size in bytes, and whether it was there before."""

    folder: Path
    size: int
    known: bool


def archive_runs(folders: Iterable[Path], place: Path) -> tuple[list[ArchivedRun], list[str]]:
    """Copy the finished runs in some folders to `place`; also a line on each that was left out."""
    made, left_out = [], []
    for folder in find_runs(folders):
        try:
            made.append(archive_run(folder, place / folder.name))
        except (ProtofedError, OSError) as fault:
            left_out.append(f"{folder}: {shorten_fault(folder, fault)}")
    return made, left_out


def archive_run(folder: Path, copy: Path) -> ArchivedRun:
    """Copy one finished run; a copy of the same run that is already there stays as it is."""
    run = RunDir(folder)
    if not run.done.exists():
        raise ProtofedError(f"{folder} holds no finished run", hint="run it to its end first")
    done = check_finished(run)
    if (copy / "done").exists():
        if check_finished(RunDir(copy)) != done:
            raise ProtofedError(f"{copy} is another run: other scores of the same experiment")
        return ArchivedRun(copy, measure_files(copy)[0], known=True)
    copy.parent.mkdir(parents=True, exist_ok=True)
    with atomic_directory(copy) as new:
        _write_copy(run, new)
    return ArchivedRun(copy, measure_files(copy)[0], known=False)


def _write_copy(run: RunDir, new: Path) -> None:
    for name in (*WHOLE, *(name for name in IF_THERE if (run.path / name).exists())):
        shutil.copyfile(run.path / name, new / name)
    world = run_records.read_world(run.path)
    system = str(world.get("platform", "")).partition("-")[0]  # the rest tells of one machine
    atomic_write_json(new / "env.json", {**world, "platform": system})
    atomic_write(new / run.rounds.name, _without_metrics(run.lines(run.rounds)))
    parts = run_records.read_record_file(run_records.HOLDINGS, run.path / "partition.json")
    atomic_write_json(new / "partition.json", [{**part, "rows": []} for part in parts])
    place = RunDir(new)
    place.checkpoints.mkdir()
    rounds = sorted(run.pruned_rounds().union(run.rounds_on_disk()))
    atomic_write_json(place.pruned, {"rounds": rounds})


def _without_metrics(rounds: Sequence[run_records.Line]) -> bytes:
    """The lines of rounds.jsonl with their bytes and seconds, but without parts and clients."""
    bare = {"parts": {"up": {}, "down": {}}, "legs": []}
    return b"".join(json.dumps({**line, **bare}).encode() + b"\n" for line in rounds)
