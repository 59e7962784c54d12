"""``protofed reproduce``: a paper's table, run again and laid beside the printed one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

if TYPE_CHECKING:
    from protofed.paper_tables.paper_comparison import RecipeReport
    from protofed.paper_tables.run_plan import Scale
    from protofed.paper_tables.run_recipe import ReadyRecipe

FORMATS = ("table", "markdown", "json")


def reproduce_command(
    name: Annotated[str | None, typer.Argument(help="Recipe, see --list.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the recipes and stop.")] = False,
    scale: Annotated[
        str,
        typer.Option(help="smoke: only see it run; quick: fewer rounds, one seed; paper: all."),
    ] = "smoke",
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Number of seeds; default: the scale's.")
    ] = None,
    part: Annotated[
        list[str] | None, typer.Option(help="Only this part, e.g. office; repeatable.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; default: one a core.")
    ] = None,
    runs: Annotated[Path, typer.Option(help="Folder of the run folders.")] = Path("runs"),
    form: Annotated[str, typer.Option("--format", help="table, markdown or json.")] = "table",
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Run a table of a paper again and show ours beside the paper's.

    Finished runs are read from their folders and interrupted ones go on, so the same command can
    be given again at any time. If a run failed, the rest is still shown, and the exit code is 1.
    """
    form = _one_of("--format", "json" if as_json else form, FORMATS)
    if listed:
        _print_list(form == "json")
        return
    if name is None:
        raise typer.BadParameter("name a recipe; --list shows them")
    from protofed.paper_tables.recipe import read_recipe
    from protofed.paper_tables.run_recipe import prepare_recipe
    from protofed.runtime.resources import usable_cores

    ready = prepare_recipe(read_recipe(name), _scale(scale), part or [], seeds, runs)
    report = _played(ready, workers or usable_cores())
    _print_report(report, form)
    if report.faulty:
        raise typer.Exit(1)


def _one_of(option: str, word: str, known: tuple[str, ...]) -> str:
    if word not in known:
        raise typer.BadParameter(f"{option} {word}: choose {', '.join(known)}")
    return word


def _scale(word: str) -> Scale:
    from protofed.paper_tables.run_plan import Scale

    known: tuple[Scale, ...] = get_args(Scale)
    _one_of("--scale", word, known)
    return next(scale for scale in known if scale == word)


def _print_list(as_json: bool) -> None:
    from protofed.cli.output import print_table
    from protofed.paper_tables.paper_comparison import HEADS, list_recipes

    rows = list_recipes()
    if as_json:
        typer.echo(json.dumps([row.to_dict() for row in rows], indent=2))
        return
    print_table(HEADS, [row.cells() for row in rows])
    typer.echo()
    typer.echo("times: rough estimates for one core; *: without parts whose images are not there")


def _played(ready: ReadyRecipe, workers: int) -> RecipeReport:
    """Run with progress on stderr; Ctrl-C says how to go on."""
    from protofed.cli.output import GridWatcher
    from protofed.paper_tables.run_recipe import run_recipe

    with GridWatcher() as watch:
        for skipped, why in ready.skipped.items():
            watch.say(f"{skipped}: skipped: {why}")
        try:
            watch.say(_forecast(ready, workers))  # trains a little, so it may take a while
            return run_recipe(ready, workers, watch)
        except KeyboardInterrupt:
            watch.say("stopped; the same command goes on from there")
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
        f"{todo}, about {seconds} with {workers} at a time: an estimate from a few batches of the "
        f"first row; other methods may take twice as long"
    )


def _print_report(report: RecipeReport, form: str) -> None:
    from protofed.paper_tables.paper_comparison import recipe_json, recipe_markdown

    if form == "table":
        _print_tables(report)
    else:
        text: str = {"markdown": recipe_markdown, "json": recipe_json}[form](report)
        typer.echo(text, nl=False)


def _print_tables(report: RecipeReport) -> None:
    from protofed.cli.output import print_table
    from protofed.paper_tables.paper_comparison import (
        part_footnotes,
        part_header,
        part_rows,
        settings_by_source,
    )

    typer.echo(report.title)
    for part in report.parts:
        typer.echo(f"\n{part.part}")
        print_table(part_header(part), part_rows(part))
        typer.echo()
        for note in [*part_footnotes(part), *settings_by_source(part.settings)]:
            typer.echo(f"note: {note}")
    for name, why in report.missing:
        typer.echo(f"\n{name}\n{why}")
