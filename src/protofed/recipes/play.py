"""Running a recipe: skip what has no images, say how long it may take, run, lay beside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from protofed.core.errors import ProtofedError
from protofed.experiment.rundir import RunDir
from protofed.recipes.beside import Beside, lay_beside
from protofed.recipes.estimate import measured
from protofed.recipes.papers import printed
from protofed.recipes.recipe import Recipe
from protofed.recipes.report import Report
from protofed.recipes.scale import Plan, Scale, chosen, lacking, plan
from protofed.study.collect import read_record
from protofed.study.pool import Watch, run_all
from protofed.study.variants import Cell


class Ready(NamedTuple):
    """A recipe at a scale, checked: what will run, and what cannot."""

    recipe: Recipe
    scale: Scale
    plans: tuple[Plan, ...]
    skipped: dict[str, str]

    @property
    def cells(self) -> list[Cell]:
        """All runs, those that several rows share once."""
        return list({cell.folder: cell for plan in self.plans for cell in plan.cells}.values())

    def seconds(self, workers: int) -> float:
        """An estimate of how long the unfinished runs take, by measuring a few batches."""
        return measured(self.plans, lambda plan: unfinished(plan.cells), workers)


def unfinished(cells: Sequence[Cell]) -> list[Cell]:
    """The runs that are still to do."""
    return [cell for cell in cells if not RunDir(cell.folder).done.exists()]


def get_ready(
    recipe: Recipe, scale: Scale, parts: Sequence[str], seeds: int | None, runs: Path
) -> Ready:
    """Check every spec and look for the images; stop if no part can run."""
    asked = chosen(recipe, parts)
    skipped = {part.name: why for part in asked if (why := lacking(part, scale))}
    if len(skipped) == len(asked):
        told = "\n".join(f"{name}: {why}" for name, why in skipped.items())
        raise ProtofedError(
            f"no part of {recipe.name} can run at scale {scale}\n{told}\n"
            f"--scale smoke needs no images but those that protofed makes"
        )
    plans = [plan(recipe, p, scale, seeds, runs) for p in asked if p.name not in skipped]
    return Ready(recipe, scale, tuple(plans), skipped)


def play(ready: Ready, workers: int, watch: Watch) -> Report:
    """Run what is not finished and lay the scores beside the printed ones."""
    faults = run_all(ready.cells, workers, watch)
    parts, failed = [], {}
    for one in ready.plans:
        told = [faults[cell.folder] for cell in one.cells if cell.folder in faults]
        if len(told) == len(one.cells):
            failed[one.part.name] = f"every run failed, the first with: {told[0]}"
        else:
            parts.append(_part(ready, one, faults))
    name = ready.recipe.name
    return Report(name, printed()[name], tuple(parts), ready.skipped, failed)


def _part(ready: Ready, plan: Plan, faults: Mapping[Path, str]) -> Beside:
    records = [read_record(c.folder, c.label) for c in plan.cells if c.folder not in faults]
    facts = printed()[ready.recipe.name].parts[plan.part.name]
    return lay_beside(ready.recipe, plan, ready.scale, facts, records, faults)
