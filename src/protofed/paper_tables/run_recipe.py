"""Run a recipe at a scale: plan its runs, say how long they may take, run them, compare."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple, cast

import torch

from protofed.analysis.finished_runs import read_record
from protofed.analysis.parallel_runs import Watch, run_all
from protofed.analysis.sweep import GridCell, GridVariant, grid_cells
from protofed.core.site import SCAN_BATCH, ArrayDataset, RoundContext, Site
from protofed.core.training import torch_threads
from protofed.data.benchmarks import BENCHMARKS, load_benchmark
from protofed.data.digits_mini import DOMAINS
from protofed.errors import ProtofedError
from protofed.experiment.result import ScoreRule
from protofed.experiment.run_folder import RunDir
from protofed.federation.build import Federation, build_federation
from protofed.methods import METHODS
from protofed.paper_tables.paper_comparison import PaperComparison, RecipeReport, compare_with_paper
from protofed.paper_tables.recipe import Recipe, RecipePart, RecipeRow, nest_values, printed_table
from protofed.spec.experiment_spec import Experiment
from protofed.spec.spec_parser import Raw

Scale = Literal["smoke", "quick", "paper"]
SMOKE_NOTE = (
    "NOT COMPARABLE with the paper: a few images of digits-mini, two rounds, a small net; "
    "it shows only that every row runs"
)
SMOKE_NET = "moon-cnn"  # the smallest
SMOKE_CLIENTS = 4


class RunPlan(NamedTuple):
    """What runs for a part at a scale, and how its scores are read.

    `columns` maps the paper's column names to the domains that run at this scale. `note` says what
    runs instead of the recipe's rounds and seeds.
    """

    part: RecipePart
    cells: tuple[GridCell, ...]
    columns: dict[str, str]  # the paper's name -> the domain at this scale
    rule: ScoreRule
    note: str  # what runs instead of the recipe


def plan_runs(
    recipe: Recipe, part: RecipePart, scale: Scale, seeds: int | None, runs: Path
) -> RunPlan:
    """The runs of a part: every row with every seed, in folders below `runs`.

    `seeds` is their number; None takes the recipe's at scale ``paper`` and one at the others.
    """
    settings = nest_values(recipe.settings(part))
    scoring = settings["scoring"]
    count = seeds or (scoring["seeds"] if scale == "paper" else 1)
    variants = [
        GridVariant(row.label, _spec(recipe, part, row, scale, scoring["quick_rounds"]))
        for row in recipe.rows
    ]
    columns = dict(zip(part.columns, DOMAINS, strict=False)) if scale == "smoke" else part.columns
    made = tuple(grid_cells(variants, range(count), runs))
    note = SMOKE_NOTE
    if scale != "smoke":
        rounds = made[0].experiment.rounds  # the same in all rows
        note = describe_scale((rounds, settings["rounds"]), (count, scoring["seeds"]))
    return RunPlan(part, made, columns, cast(ScoreRule, scoring["rule"]), note)


def describe_scale(rounds: tuple[int, int], seeds: tuple[int, int]) -> str:
    """What runs instead of the recipe, and what that does to the scores.

    Both arguments are pairs: the number that runs, and the recipe's own.
    """
    parts = {
        "round": (*rounds, "scores are lower"),
        "seed": (*seeds, "differences are less certain"),
    }
    other = {word: part for word, part in parts.items() if part[0] != part[1]}
    if not other:
        return "the recipe as it is"
    told = [f"{n} {word}{'s' * (n > 1)} instead of {of}" for word, (n, of, _) in other.items()]
    effects = [effect for n, of, effect in other.values() if n < of]
    return "the recipe with " + ": ".join(filter(None, [" and ".join(told), ", ".join(effects)]))


def _spec(recipe: Recipe, part: RecipePart, row: RecipeRow, scale: Scale, quick_rounds: int) -> Raw:
    """The experiment of a row as plain data."""
    raw = recipe.raw(part, row)
    del raw["scoring"]
    if scale == "quick":
        return {**raw, "rounds": min(quick_rounds, raw["rounds"])}
    return raw if scale == "paper" else _smoke(raw)


def _smoke(raw: Raw) -> Raw:
    """The same method on next to nothing; equal rows of different parts become one run."""
    domains = DOMAINS[: len(raw["data"]["domains"])]
    method = dict(raw["method"])
    if "server_epochs" in {field.name for field in dataclasses.fields(METHODS[method["name"]])}:
        method["server_epochs"] = 2  # of hundreds
    return {
        "data": {"name": "digits-mini", "domains": list(domains), "side": 16},
        "method": method,
        # Different nets must go together, so they stay as they are.
        "net": raw["net"] if isinstance(raw["net"], list) else SMOKE_NET,
        "partition": {"kind": "shares", "clients": SMOKE_CLIENTS, "samples": 12},
        "training": {**raw["training"], "epochs": 1, "batch": 8},
        "rounds": 2,  # prototypes act from the second on
    }


def missing_for_part(part: RecipePart, scale: Scale) -> str:
    """Why a part cannot run at a scale, for example for lack of images; empty if it can.

    At scale ``smoke`` no real images are needed.
    """
    if part.benchmark not in BENCHMARKS:
        return f"the images of {part.benchmark} cannot be had in protofed yet"
    if scale == "smoke":
        return ""
    try:
        load_benchmark(part.benchmark, tuple(part.columns.values()))
    except ProtofedError as fault:
        return str(fault)
    return ""


def choose_parts(recipe: Recipe, names: Sequence[str]) -> list[RecipePart]:
    """The named parts of a recipe, or all of them if none is named.

    An unknown name is refused with the known ones.
    """
    return [recipe.part(name) for name in names] or list(recipe.parts)


# Seconds to train on 1,000 images of 32 pixels, measured on one core; only an order of magnitude.
PACE = {
    "lsa-cnn": 2.1,
    "moon-cnn": 0.2,
    "moon-mlp": 0.1,
    "moon-resnet18": 63.0,
    "resnet10": 31.0,
    "seproto-cnn": 1.6,
    "seproto-cnn2": 1.0,
}


class RoundPace(NamedTuple):
    """Seconds that one round of training and one evaluation take.

    `run` extrapolates to a whole experiment.
    """

    training: float
    scoring: float

    def run(self, experiment: Experiment) -> float:
        """The seconds of a whole run."""
        rounds = experiment.rounds
        return rounds * self.training + -(-rounds // experiment.evaluate_every) * self.scoring


def rough_estimate(recipe: Recipe, part: RecipePart, scale: Scale) -> float | None:
    """Seconds that a part takes on one core, from a table of measured nets; nothing is run.

    None if the number of images is not known.
    """
    if part.benchmark not in BENCHMARKS or part.images is None:
        return None
    raw = nest_values(recipe.settings(part))
    full = scale == "paper"
    rounds = raw["rounds"] if full else min(raw["rounds"], raw["scoring"]["quick_rounds"])
    runs = len(recipe.rows) * (raw["scoring"]["seeds"] if full else 1)
    nets = raw["net"] if isinstance(raw["net"], list) else [raw["net"]]
    pace = sum(PACE[net] for net in nets) / len(nets) * (raw["data"]["side"] / 32) ** 2
    return float(runs * rounds * raw["training"]["epochs"] * part.images / 1000 * pace)


def measured_estimate(
    plans: Iterable[RunPlan], open_cells: Callable[[RunPlan], list[GridCell]], workers: int
) -> float:
    """Seconds that all unfinished runs may take, from a few batches of the first row of each part.

    `open_cells` returns the unfinished runs of a plan; `workers` of them run at a time.
    """
    total = 0.0
    for plan in plans:
        left = open_cells(plan)
        if left:
            pace = measure_pace(plan.cells[0].experiment)
            total += sum(pace.run(cell.experiment) for cell in left)
    return total / max(1, workers)  # without workers, one run after the other


def measure_pace(experiment: Experiment) -> RoundPace:
    """Time one training batch and one evaluation block, and extrapolate to a round.

    Builds the federation of the experiment, so its images must be there. Takes seconds.
    """
    with torch_threads(experiment.threads):
        federation = build_federation(experiment)
        site = max(federation.sites.values(), key=lambda site: len(site.train))
        return RoundPace(
            _training(experiment, federation, site), _scoring(experiment, federation, site)
        )


def _training(experiment: Experiment, federation: Federation, site: Site) -> float:
    method, training = experiment.method, experiment.training
    few = replace(
        site, train=_first(site.train, training.batch), training=replace(training, epochs=1)
    )
    server = method.init_server(federation.server)
    step = RoundContext(0, experiment.rounds)
    received = method.send(federation.server, server, [site.id], step)[site.id]
    state = method.init_client(site)
    seconds = _timed(lambda: method.train(few, received, state, step))
    images = sum(len(other.train) for other in federation.sites.values()) * training.epochs
    return seconds * experiment.participation * images / len(few.train)


def _scoring(experiment: Experiment, federation: Federation, site: Site) -> float:
    images = sum(len(test) for test in federation.tests.values())
    block = _first(max(federation.tests.values(), key=len), SCAN_BATCH)
    model = site.initial_model()
    seconds = _timed(lambda: [site.forward_eval(model, x) for x, _ in site.eval_batches(block)])
    models = len(federation.sites) if experiment.method.personal else 1
    return seconds * models * images / len(block)


def _first(data: ArrayDataset, most: int) -> ArrayDataset:
    return data.take(torch.arange(min(most, len(data))))


def _timed(work: Callable[[], object]) -> float:
    """Seconds of the second time, as the first warms up."""
    work()
    began = time.monotonic()
    work()
    return time.monotonic() - began


class ReadyRecipe(NamedTuple):
    """A recipe at a scale after all checks, ready for `run_recipe`.

    `plans` are the parts that will run; `skipped` says why the others cannot.
    """

    recipe: Recipe
    scale: Scale
    plans: tuple[RunPlan, ...]
    skipped: dict[str, str]

    @property
    def cells(self) -> list[GridCell]:
        """All runs, those that several rows share once."""
        return list({cell.folder: cell for plan in self.plans for cell in plan.cells}.values())

    def seconds(self, workers: int) -> float:
        """An estimate of how long the unfinished runs take, by measuring a few batches."""
        return measured_estimate(self.plans, lambda plan: unfinished_cells(plan.cells), workers)


def unfinished_cells(cells: Sequence[GridCell]) -> list[GridCell]:
    """The cells whose runs are not finished yet."""
    return [cell for cell in cells if not RunDir(cell.folder).done.exists()]


def prepare_recipe(
    recipe: Recipe, scale: Scale, parts: Sequence[str], seeds: int | None, runs: Path
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
    return ReadyRecipe(recipe, scale, tuple(plans), skipped)


def run_recipe(ready: ReadyRecipe, workers: int, watch: Watch) -> RecipeReport:
    """Run what is not finished and compare the scores with the printed ones.

    Runs that fail do not stop the others; a part of which every run failed has no table.
    """
    faults = run_all(ready.cells, workers, watch)
    parts, failed = [], {}
    for one in ready.plans:
        told = [faults[cell.folder] for cell in one.cells if cell.folder in faults]
        if len(told) == len(one.cells):
            failed[one.part.name] = f"every run failed, the first with: {told[0]}"
        else:
            parts.append(_part(ready, one, faults))
    name = ready.recipe.name
    return RecipeReport(name, printed_table()[name], tuple(parts), ready.skipped, failed)


def _part(ready: ReadyRecipe, plan: RunPlan, faults: Mapping[Path, str]) -> PaperComparison:
    records = [read_record(c.folder, c.label) for c in plan.cells if c.folder not in faults]
    facts = printed_table()[ready.recipe.name].parts[plan.part.name]
    return compare_with_paper(ready.recipe, plan, ready.scale, facts, records, faults)
