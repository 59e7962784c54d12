"""``protofed reproduce``: a paper's table, run again and laid beside the printed one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from protofed.cli.options import (
    FormatOption,
    JsonOption,
    RunsOption,
    StaleOption,
    WorkersOption,
    chosen_format,
    confirm_or_stop,
    parse_workers,
    stopped_by_user,
)

if TYPE_CHECKING:
    from protofed.paper_tables.paper_comparison import RecipeReport
    from protofed.paper_tables.recipe import Scale
    from protofed.paper_tables.run_recipe import ReadyRecipe

LONG = 600.0  # seconds of work before which a start must be confirmed


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
    row: Annotated[
        list[str] | None,
        typer.Option(help="Only this row and the baseline; repeatable."),
    ] = None,
    precision: Annotated[
        Literal["float32", "bfloat16"] | None,  # Precision, whose module would load torch
        typer.Option(help="Compute in this precision instead of the recipe's; not at scale smoke."),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", help="Read finished runs from this folder; train nothing."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print runs, time and missing images; run nothing.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Start long work without being asked.")
    ] = False,
    workers: WorkersOption = "auto",
    stale: StaleOption = "refuse",
    runs: RunsOption = Path("runs"),
    form: FormatOption = "terminal",
    as_json: JsonOption = False,
) -> None:
    """Run the experiments behind a paper's table and print our scores beside the printed ones.

    Finished runs are read from their folders and interrupted ones resume, so the command can be
    repeated at any time. With `--from results/runs`, tables are made from kept runs alone, those of
    scale paper. Work of more than ten minutes starts only after a yes. If a run fails, the
    others are still shown, and the exit code is 1.
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
    from protofed.analysis.parallel_runs import process_count
    from protofed.paper_tables.recipe import read_recipe
    from protofed.paper_tables.recipe_plan import plan_document, plan_recipe
    from protofed.paper_tables.run_recipe import prepare_recipe, read_recipe_runs

    count = process_count(parse_workers(workers))
    recipe = read_recipe(name).with_rows(row or []).with_precision(precision)
    if dry_run:
        plan = plan_recipe(recipe, scale, part or [], seeds, runs, count, stale)
        print_document(plan_document(plan), form)
        return
    if source is not None:
        report = read_recipe_runs(recipe, kept_scale(scale), part or [], seeds, source)
    else:
        ready = prepare_recipe(recipe, scale, part or [], seeds, runs, stale)
        report = _played(ready, count, yes)
    print_document(recipe_document(report), form)
    if report.faulty and source is None:
        raise typer.Exit(1)


def kept_scale(scale: Scale) -> Scale:
    """The scale of kept runs: that of the papers unless another is named; nobody keeps smoke."""
    return "paper" if scale == "smoke" else scale


def _played(ready: ReadyRecipe, workers: int, yes: bool) -> RecipeReport:
    """Run with progress on stderr, after a question if it takes long; Ctrl-C says how to resume."""
    from protofed.analysis.parallel_runs import GridWatcher
    from protofed.paper_tables.run_recipe import run_recipe

    with stopped_by_user(partial(typer.echo, err=True)):
        _confirm(ready, workers, yes)
        with GridWatcher() as watch:
            return run_recipe(ready, workers, watch)


def _confirm(ready: ReadyRecipe, workers: int, yes: bool) -> None:
    """Say what is to do and how long it takes; ask before long work."""
    from protofed.errors import ProtofedError, printable_text
    from protofed.paper_tables.paper_comparison import format_duration

    for skipped, why in ready.skipped.items():
        for line in f"{skipped}: skipped: {why}".splitlines():
            typer.echo(printable_text(line), err=True)
    seconds = ready.seconds(workers)  # trains a little, so it may take a while
    typer.echo(_forecast(ready, seconds, workers), err=True)
    if seconds > LONG:
        took = format_duration(seconds)
        refusal = ProtofedError(
            f"this takes about {took}, and there is no terminal to confirm it",
            hint="add <yes> to start, or <dry_run> to see the plan",
        )
        confirm_or_stop(f"Start about {took} of work?", yes, refusal)


def _forecast(ready: ReadyRecipe, seconds: float, workers: int) -> str:
    """How many runs are to do and, but for smoke, about how long they take."""
    from protofed.paper_tables.paper_comparison import format_duration
    from protofed.paper_tables.run_recipe import cells_to_do

    left = len(cells_to_do(ready.cells, ready.stale))
    todo = f"{ready.recipe.name} at scale {ready.scale}: {left} of {len(ready.cells)} runs to do"
    if ready.scale == "smoke" or not left:
        return "; ".join([todo, *dict.fromkeys(plan.note for plan in ready.plans)])
    return (
        f"{todo}, about {format_duration(seconds)} with {max(1, workers)} at a time: estimated "
        f"from a few batches of the first row; other methods may take twice as long"
    )
