"""Free the space of checkpoints that finished runs no longer need; their scores stay."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from protofed.analysis.run_index import RunEntry, measure_files, shorten_fault
from protofed.errors import ProtofedError
from protofed.experiment.checkpoint import checkpoint_folders, checkpoint_round
from protofed.experiment.result import check_finished
from protofed.experiment.run_folder import RunDir
from protofed.runtime.atomic_io import is_temporary


class PrunePlan(NamedTuple):
    """What is to be removed from one finished run: the checkpoints of some rounds.

    `size` also counts what an earlier, killed removal left behind.
    """

    folder: Path
    rounds: tuple[int, ...]
    size: int  # bytes


def plan_pruning(
    entries: Iterable[RunEntry], everything: bool = False
) -> tuple[list[PrunePlan], list[str]]:
    """What can be removed from some runs, and a line on each run that must be left alone.

    Of a finished run, the newest checkpoint and those of the rounds to keep stay, unless
    `everything` is to go. Runs that are unfinished, running or damaged are left alone.
    """
    plans, spared = [], []
    for entry in entries:
        if entry.state != "finished":
            spared.append(f"{entry.folder}: {entry.describe_state()}")
            continue
        try:
            plan = _plan(entry.folder, everything)
        except (ProtofedError, OSError) as fault:
            spared.append(f"{entry.folder}: {shorten_fault(entry.folder, fault)}")
            continue
        if plan:
            plans.append(plan)
    return plans, spared


def _plan(folder: Path, everything: bool) -> PrunePlan | None:
    place = RunDir(folder)
    if place.checkpoints.is_symlink():
        raise ProtofedError("its checkpoints are in another place")
    found = checkpoint_folders(place.checkpoints)
    stay = set() if everything else place.keeping(()).union(place.rounds_on_disk()[-1:])
    go = [folder for folder in found if checkpoint_round(folder) not in stay]
    left = [child for child in place.checkpoints.glob(".*") if is_temporary(child)]
    size = sum(measure_files(child)[0] for child in (*go, *left))
    return PrunePlan(folder, tuple(map(checkpoint_round, go)), size) if go or left else None


def prune_run(plan: PrunePlan) -> None:
    """Remove what a plan says, and nothing else; a kill in between leaves a readable run.

    The folder is locked meanwhile. A run that has begun anew since the plan was made is refused.
    """
    place = RunDir(plan.folder)
    if not place.path.is_dir():
        raise ProtofedError(f"{plan.folder} is gone")
    with place.locked():
        if not place.done.exists():
            raise ProtofedError(f"{plan.folder} is no longer finished")
        check_finished(place)
        place.prune(plan.rounds)
