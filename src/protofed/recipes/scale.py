"""A recipe at a scale: as the paper has it, with fewer rounds, or only to see that it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple, cast

from protofed.core.errors import ProtofedError
from protofed.data.catalog import BENCHMARKS, load_benchmark
from protofed.data.digits_mini import DOMAINS
from protofed.experiment.parse import Raw
from protofed.methods import METHODS
from protofed.recipes.recipe import Recipe, RecipePart, RecipeRow, nest_values
from protofed.study.table import Rule
from protofed.study.variants import GridCell, GridVariant, grid_cells

Scale = Literal["smoke", "quick", "paper"]
SMOKE_NOTE = (
    "NOT COMPARABLE with the paper: a few images of digits-mini, two rounds, a small net; "
    "it shows only that every row runs"
)
SMOKE_NET = "moon-cnn"  # the smallest
SMOKE_CLIENTS = 4


class RunPlan(NamedTuple):
    """What is to run for a part, and how its scores are read."""

    part: RecipePart
    cells: tuple[GridCell, ...]
    columns: dict[str, str]  # the paper's name -> the domain at this scale
    rule: Rule
    note: str  # what runs instead of the recipe


def plan_runs(
    recipe: Recipe, part: RecipePart, scale: Scale, seeds: int | None, runs: Path
) -> RunPlan:
    """The runs of a part; `seeds` counts them, the recipe's number if None."""
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
    return RunPlan(part, made, columns, cast(Rule, scoring["rule"]), note)


def describe_scale(rounds: tuple[int, int], seeds: tuple[int, int]) -> str:
    """What runs, each beside the recipe's number, and what a smaller one does to the scores."""
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
    """Why a part cannot run, or nothing."""
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
    """The named parts of a recipe, or all."""
    return [recipe.part(name) for name in names] or list(recipe.parts)
