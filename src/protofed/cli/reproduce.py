"""``protofed reproduce``: a paper's table, run again and laid beside the printed one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from protofed.cli.options import (
    FormatOption,
    JsonOption,
    RunsOption,
    WorkersOption,
    chosen_format,
    parse_workers,
)

if TYPE_CHECKING:
    from protofed.paper_tables.paper_comparison import RecipeReport
    from protofed.paper_tables.run_recipe import ReadyRecipe


def reproduce_command(
    name: Annotated[str | None, typer.Argument(help="Recipe, see --list.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the recipes and exit.")] = False,
    scale: Annotated[
        Literal["smoke", "quick", "paper"],  # Scale, whose module would load torch
        typer.Option(
            help="smoke: only see it run; quick: fewer rounds, one seed; paper: the full setting."
        ),
    ] = "smoke",
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds; default: that of the scale.")
    ] = None,
    part: Annotated[
        list[str] | None, typer.Option(help="Only this part, e.g. office; repeatable.")
    ] = None,
    workers: WorkersOption = "auto",
    runs: RunsOption = Path("runs"),
    form: FormatOption = "terminal",
    as_json: JsonOption = False,
) -> None:
    """Run the experiments behind a paper's table and print our scores beside the printed ones.

    Finished runs are read from their folders and interrupted ones resume, so the command can be
    repeated at any time. If a run fails, the others are still shown, and the exit code is 1.
    """
    from protofed.cli.output import print_document
    from protofed.paper_tables.paper_comparison import (
        list_recipes,
        recipe_document,
        recipes_document,
    )

    form = chosen_format(form, as_json)
    if listed:
        print_document(recipes_document(list_recipes()), form)
        return
    if name is None:
        raise typer.BadParameter("name a recipe; --list shows them")
    from protofed.paper_tables.recipe import read_recipe
    from protofed.paper_tables.run_recipe import prepare_recipe
    from protofed.runtime.resources import usable_cores

    count = parse_workers(workers)
    ready = prepare_recipe(read_recipe(name), scale, part or [], seeds, runs)
    report = _played(ready, usable_cores() if count == "auto" else count)
    print_document(recipe_document(report), form)
    if report.faulty:
        raise typer.Exit(1)


def _played(ready: ReadyRecipe, workers: int) -> RecipeReport:
    """Run with progress on stderr; Ctrl-C says how to resume."""
    from protofed.cli.output import GridWatcher
    from protofed.paper_tables.run_recipe import run_recipe

    with GridWatcher() as watch:
        for skipped, why in ready.skipped.items():
            watch.say(f"{skipped}: skipped: {why}")
        try:
            watch.say(_forecast(ready, workers))  # trains a little, so it may take a while
            return run_recipe(ready, workers, watch)
        except KeyboardInterrupt:
            watch.say("stopped; the same command resumes")
            raise typer.Exit(130) from None


def _forecast(ready: ReadyRecipe, workers: int) -> str:
    """How many runs are to do and, but for smoke, about how long they take."""
    from protofed.cli.output import format_clock
    from protofed.paper_tables.run_recipe import unfinished_cells

    left = len(unfinished_cells(ready.cells))
    todo = f"{ready.recipe.name} at scale {ready.scale}: {left} of {len(ready.cells)} runs to do"
    if ready.scale == "smoke" or not left:
        return "; ".join([todo, *dict.fromkeys(plan.note for plan in ready.plans)])
    seconds = format_clock(ready.seconds(workers))
    return (
        f"{todo}, about {seconds} with {max(1, workers)} at a time: estimated from a few batches "
        f"of the first row; other methods may take twice as long"
    )
