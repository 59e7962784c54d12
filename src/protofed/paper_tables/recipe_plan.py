"""What a recipe would run: how many runs, how long, and which images are missing for them."""

from __future__ import annotations

from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

from protofed.analysis.sweep import GridCell
from protofed.data.benchmarks import BENCHMARKS
from protofed.data.download import MissingImages, missing_images, unset_folder_notes
from protofed.errors import count_noun
from protofed.experiment.run_folder import RunDir
from protofed.experiment.stale_code import StaleRule, StaleRunError, must_repeat
from protofed.paper_tables.paper_comparison import format_duration
from protofed.paper_tables.recipe import (
    Recipe,
    Scale,
    choose_parts,
    missing_for_part,
    plan_runs,
    rough_run_estimate,
)
from protofed.paper_tables.run_recipe import ReadyRecipe, cells_to_do
from protofed.runtime.text_tables import TableDocument, TextTable


class PlannedPart(NamedTuple):
    """A part of a recipe before it runs.

    Of the folders in `runs`, those in `to_do` would run; those in `refused` were made by other code
    and stop the whole recipe. `seconds` are for the runs to do that no earlier part shares, with
    the given number of workers; None if unknown. They are `measured` on this machine if the images
    are here, and a rough guess otherwise.
    """

    part: str
    benchmark: str
    runs: tuple[Path, ...]
    to_do: tuple[Path, ...]
    refused: tuple[Path, ...]
    seconds: float | None
    measured: bool
    missing: tuple[MissingImages, ...]

    @property
    def finished(self) -> int:
        """The number of runs whose scores are read as they are."""
        return len(self.runs) - len(self.to_do) - len(self.refused)

    def cells(self) -> list[str]:
        """As a row of a table."""
        known = "unknown" if self.seconds is None else format_duration(self.seconds)
        time = "-" if self.seconds == 0 else known + "*" * (not self.measured)
        images = "missing" if self.missing else "there"
        return [self.part, self.benchmark, str(len(self.runs)), str(self.finished), time, images]

    def to_dict(self) -> dict[str, Any]:
        """As plain data, ready for JSON."""
        missing = [one._asdict() for one in self.missing]
        lists = {"runs": self.runs, "to_do": self.to_do, "refused": self.refused}
        folders = {name: [str(run) for run in runs] for name, runs in lists.items()}
        return {**self._asdict(), **folders, "finished": self.finished, "missing": missing}


class RecipePlan(NamedTuple):
    """All that a recipe would run at a scale, and what is missing for it.

    Made by `plan_recipe`; nothing has run.
    """

    name: str
    scale: Scale
    workers: int
    parts: tuple[PlannedPart, ...]
    skipped: dict[str, str]  # parts that cannot run in any case, and why

    @property
    def missing(self) -> list[MissingImages]:
        """The missing images of all parts, each once."""
        return list(dict.fromkeys(one for part in self.parts for one in part.missing))

    @property
    def seconds(self) -> float:
        """The estimated seconds of the parts whose time is known."""
        return sum(part.seconds or 0.0 for part in self.parts)

    @property
    def refused(self) -> int:
        """The number of runs that other code has made, so that nothing would start."""
        return len({run for part in self.parts for run in part.refused})

    def summary(self) -> str:
        """Runs, finished ones and time, in one line."""
        runs = len({run for part in self.parts for run in part.runs})
        to_do = len({run for part in self.parts for run in part.to_do})
        done = runs - to_do - self.refused
        told = f"{count_noun(runs, 'run')}, {done} finished, {to_do} to do"
        if self.refused:
            told += f", {self.refused} made by other code"
        if not to_do:
            return told
        return (
            f"{told}: about {format_duration(self.seconds)} with {max(1, self.workers)} at a time"
        )

    def to_dict(self) -> dict[str, Any]:
        """As plain data, ready for JSON."""
        return {
            "name": self.name,
            "scale": self.scale,
            "workers": self.workers,
            "summary": self.summary(),
            "seconds": self.seconds,
            "parts": [part.to_dict() for part in self.parts],
            "missing": [one._asdict() for one in self.missing],
            "skipped": self.skipped,
        }


def plan_recipe(
    recipe: Recipe,
    scale: Scale,
    parts: Sequence[str],
    seeds: int | None,
    runs: Path,
    workers: int,
    stale: StaleRule = "refuse",
) -> RecipePlan:
    """Look at what a recipe would run, without running it; parts without images are included.

    Runs that other code has made are counted as `stale` says; with "refuse" they are no error here.
    Times are measured by training on one batch where the images are here, as for a real start.
    """
    planned: list[PlannedPart] = []
    skipped = {}
    for part in choose_parts(recipe, parts):
        if part.benchmark not in BENCHMARKS:
            skipped[part.name] = missing_for_part(part, scale)
            continue
        plan = plan_runs(recipe, part, scale, seeds, runs)
        taken = {folder for one in planned for folder in one.runs}  # at smoke, parts share runs
        ready = ReadyRecipe(recipe, scale, (plan,), {}, stale)
        planned.append(plan_part(ready, taken, workers))
    return RecipePlan(recipe.name, scale, workers, tuple(planned), skipped)


def plan_part(ready: ReadyRecipe, taken: Set[Path], workers: int) -> PlannedPart:
    """What the only part of `ready` would run; the time of `taken` runs is counted elsewhere.

    Its images need not be there.
    """
    (plan,), scale, stale = ready.plans, ready.scale, ready.stale
    part, refused = plan.part, [c.folder for c in plan.cells if _is_refused(c, stale)]
    accepted = [cell for cell in plan.cells if cell.folder not in refused]
    left = cells_to_do(accepted, stale, ready.models)
    domains = tuple(part.columns.values())
    missing = () if scale == "smoke" else tuple(missing_images(part.benchmark, domains))
    own = plan._replace(cells=tuple(cell for cell in left if cell.folder not in taken))
    if missing:
        each = rough_run_estimate(ready.recipe, part, scale)
        seconds = None if each is None else each * len(own.cells) / max(1, workers)
    else:
        seconds = ready._replace(plans=(own,)).seconds(workers)
    return PlannedPart(
        part=part.name,
        benchmark=plan.cells[0].experiment.data.label,
        runs=tuple(cell.folder for cell in plan.cells),
        to_do=tuple(cell.folder for cell in left),
        refused=tuple(refused),
        seconds=seconds,
        measured=not missing,
        missing=missing,
    )


def _is_refused(cell: GridCell, stale: StaleRule) -> bool:
    try:
        must_repeat(RunDir(cell.folder), cell.experiment, stale)
    except StaleRunError:
        return True
    return False


PLAN_HEADS = ["part", "data", "runs", "finished", "time", "images"]
MISSING_HEADS = ["missing", "of", "folder", "get it"]


def plan_document(plan: RecipePlan) -> TableDocument:
    """The plan as text: a row per part, then all missing images with the commands to get them."""
    rough = any(part.missing for part in plan.parts)
    guess = "*: a rough guess for this net, as the images are missing"
    notes = [guess, *unset_folder_notes()] if rough else []
    if plan.refused:
        notes = [
            "nothing starts before the runs made by other code are repeated or accepted",
            *notes,
        ]
    parts = TextTable(PLAN_HEADS, [part.cells() for part in plan.parts])
    rows = [[one.source, one.benchmark, one.folder, one.command] for one in plan.missing]
    return TableDocument(
        tables=[parts, TextTable(MISSING_HEADS, rows)] if rows else [parts],
        content=plan.to_dict(),
        title=f"{plan.name} at scale {plan.scale}",
        notes=[f"plan: {plan.summary()}", *notes, *(f"{n}: {w}" for n, w in plan.skipped.items())],
    )
