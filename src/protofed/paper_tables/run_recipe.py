"""Running a recipe: skip what has no images, say how long it may take, run, compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from protofed.analysis.finished_runs import read_record
from protofed.analysis.parallel_runs import (
    Watch,
    changed_code_notes,
    run_all,
    stale_folders,
)
from protofed.analysis.run_process import RunOptions
from protofed.analysis.sweep import GridCell
from protofed.errors import ProtofedError
from protofed.experiment.result import ScoreRule
from protofed.experiment.run_folder import RunDir
from protofed.experiment.stale_code import StaleRule
from protofed.experiment.trained_run import find_checkpoint
from protofed.paper_tables.paper_comparison import PaperComparison, RecipeReport, compare_with_paper
from protofed.paper_tables.recipe import (
    SMOKE_RUN,
    Recipe,
    RunPlan,
    Scale,
    choose_parts,
    measured_estimate,
    missing_for_part,
    plan_runs,
    printed_table,
)


class ReadyRecipe(NamedTuple):
    """A recipe at a scale after all checks, ready for `run_recipe`.

    `plans` are the parts that will run; `skipped` says why the others cannot. `stale` says what is
    done with runs that other code has made, `models` names the rounds whose models are needed
    (None: the last one).
    """

    recipe: Recipe
    scale: Scale
    plans: tuple[RunPlan, ...]
    skipped: dict[str, str]
    stale: StaleRule = "refuse"
    models: tuple[int | None, ...] = ()

    @property
    def name(self) -> str:
        """What a user calls it."""
        return self.recipe.name

    @property
    def notes(self) -> list[str]:
        """What runs instead of the recipe, each once."""
        return list(dict.fromkeys(plan.note for plan in self.plans))

    @property
    def cells(self) -> list[GridCell]:
        """All runs, those that several rows share once."""
        return list({cell.folder: cell for plan in self.plans for cell in plan.cells}.values())

    def to_do(self) -> list[GridCell]:
        """The runs that are not finished, or must be repeated."""
        return cells_to_do(self.cells, self.stale, self.models)

    def seconds(self, workers: int) -> float:
        """An estimate of how long the runs to do take, by measuring a few batches.

        At scale ``smoke`` nothing is measured: most of a run's time goes into starting it.
        """
        if self.scale == "smoke":
            return SMOKE_RUN * len(self.to_do()) / max(1, workers)
        return measured_estimate(
            self.plans, lambda plan: cells_to_do(plan.cells, self.stale, self.models), workers
        )


def cells_to_do(
    cells: Sequence[GridCell],
    stale: StaleRule = "refuse",
    models: Sequence[int | None] = (),
) -> list[GridCell]:
    """The cells whose runs are not finished, or must be repeated because other code made them.

    With the rule "refuse" such runs are an error. Runs that lack one of the `models` must be
    repeated, too.
    """
    repeat = stale_folders(cells, stale)
    return [
        cell
        for cell in cells
        if cell.folder in repeat
        or not RunDir(cell.folder).done.exists()
        or lacks_model(cell.folder, models)
    ]


def lacks_model(folder: Path, rounds: Sequence[int | None]) -> str:
    """Why a run has no model of one of the rounds (None: the last one); empty if it has all."""
    try:
        for number in rounds:
            find_checkpoint(folder, number)
    except ProtofedError as fault:
        return str(fault)
    return ""


def prepare_recipe(
    recipe: Recipe,
    scale: Scale,
    parts: Sequence[str],
    seeds: int | None,
    runs: Path,
    stale: StaleRule = "refuse",
) -> ReadyRecipe:
    """Check every spec of a recipe and look for its images; stop if no part can run.

    `parts` names the parts to run, all if empty. Parts without images are skipped with the reason.
    """
    asked = choose_parts(recipe, parts)
    skipped = {part.name: why for part in asked if (why := missing_for_part(part, scale))}
    if len(skipped) == len(asked):
        reasons = "\n".join(f"{name}: {why}" for name, why in skipped.items())
        raise ProtofedError(
            f"no part of {recipe.name} can run at scale {scale}\n{reasons}",
            hint="<scale=smoke> needs only images that protofed draws itself",
        )
    plans = [plan_runs(recipe, p, scale, seeds, runs) for p in asked if p.name not in skipped]
    return ReadyRecipe(recipe, scale, tuple(plans), skipped, stale)


def run_recipe(ready: ReadyRecipe, workers: int, watch: Watch) -> RecipeReport:
    """Run what is not finished and compare the scores with the printed ones.

    Runs that fail do not stop the others; a part of which every run failed has no table.
    """
    told = run_all(ready.cells, workers, watch, RunOptions(ready.stale))
    faults = {folder: f"failed: {fault}" for folder, fault in told.items()}
    parts, failed = [], {}
    for one in ready.plans:
        own = [told[cell.folder] for cell in one.cells if cell.folder in told]
        if len(own) == len(one.cells):
            failed[one.part.name] = f"every run failed, the first with: {own[0]}"
        else:
            parts.append(_part(ready, one, faults))
    name = ready.recipe.name
    return RecipeReport(name, printed_table()[name], tuple(parts), ready.skipped, failed)


def read_recipe_runs(
    recipe: Recipe,
    scale: Scale,
    parts: Sequence[str],
    seeds: int | None,
    folder: Path,
    rule: ScoreRule | None = None,
) -> RecipeReport:
    """Compare the runs of a recipe that lie in `folder` with the printed numbers; train nothing.

    No images are needed. Runs that are not there are named under the table; parts without any run
    have no table. `rule` replaces the rule by which the recipe takes scores.
    """
    made, failed = [], {}
    for part in choose_parts(recipe, parts):
        plan = plan_runs(recipe, part, scale, seeds, folder)
        plan = plan._replace(rule=rule or plan.rule)
        absent = {
            c.folder: f"not in {folder}" for c in plan.cells if not RunDir(c.folder).done.exists()
        }
        if len(absent) == len(plan.cells):
            failed[part.name] = f"none of its {len(plan.cells)} runs is in {folder}"
            continue
        made.append(_part(ReadyRecipe(recipe, scale, (plan,), {}), plan, absent))
    if not made:
        raise ProtofedError(
            f"{folder} holds no run of {recipe.name} at scale {scale}",
            hint="train them by leaving <from> out",
        )
    return RecipeReport(recipe.name, printed_table()[recipe.name], tuple(made), failed, {})


def _part(ready: ReadyRecipe, plan: RunPlan, faults: Mapping[Path, str]) -> PaperComparison:
    records = [read_record(c.folder, c.label) for c in plan.cells if c.folder not in faults]
    facts = printed_table()[ready.recipe.name].parts[plan.part.name]
    compared = compare_with_paper(ready.recipe, plan, ready.scale, facts, records, faults)
    if ready.stale != "accept":
        return compared
    changed = changed_code_notes([cell for cell in plan.cells if cell.folder not in faults])
    return replace(compared, notes=(*compared.notes, *changed))
