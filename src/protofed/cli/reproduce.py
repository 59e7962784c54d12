"""``protofed reproduce``: a paper's table or figure, run again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, TypeVar

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
    from protofed.analysis.parallel_runs import GridWatcher
    from protofed.core.model import Precision
    from protofed.experiment.stale_code import StaleRule
    from protofed.paper_figures.run_figure import ReadyFigure
    from protofed.paper_tables.recipe import Scale
    from protofed.paper_tables.run_recipe import ReadyRecipe
    from protofed.runtime.text_tables import TableDocument

Report = TypeVar("Report")
LONG = 600.0  # seconds of work before which a start must be confirmed


def reproduce_command(
    name: Annotated[str | None, typer.Argument(help="Table or figure, see --list.")] = None,
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
        list[str] | None, typer.Option(help="Only this part or picture, e.g. office; repeatable.")
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
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for the pictures of a figure; default: figures."),
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
    """Run the experiments behind a paper's table or figure; print or draw ours.

    A table shows our scores beside the printed ones, a figure becomes pictures. Finished runs are
    read from their folders and interrupted ones resume, so the command can be repeated at any time.
    With `--from results/runs`, kept runs alone are read, those of scale paper. Work of more than
    ten minutes starts only after a yes. If a run fails, the others are still shown, and the exit
    code is 1.
    """
    from protofed.cli.output import print_document

    form = chosen_format(form, as_json)
    if listed:
        print_document(_listing(), form)
        return
    if name is None:
        raise typer.BadParameter("name a recipe; --list shows them")
    from protofed.analysis.parallel_runs import process_count
    from protofed.errors import require_known_name
    from protofed.paper_figures.figure_recipe import figure_names
    from protofed.paper_tables.recipe import recipe_names

    asked = Asked(
        require_known_name("recipe", name, (*recipe_names(), *figure_names())),
        scale=scale if source is None else kept_scale(scale),
        seeds=seeds,
        parts=part or [],
        precision=precision,
        source=source,
        runs=runs,
        dry=dry_run,
        yes=yes,
        workers=process_count(parse_workers(workers)),
        stale=stale,
    )
    drawn = name in figure_names()
    document, faulty = _figure(asked, out, row) if drawn else _table(asked, out, row)
    print_document(document, form)
    if faulty and source is None:
        raise typer.Exit(1)


class Asked(NamedTuple):
    """What was asked for, of a table or of a figure."""

    name: str
    scale: Scale
    seeds: int | None
    parts: list[str]
    precision: Precision | None
    source: Path | None
    runs: Path
    dry: bool
    yes: bool
    workers: int
    stale: StaleRule


def _listing() -> TableDocument:
    """All tables, then all figures."""
    from protofed.paper_figures.run_figure import list_figures
    from protofed.paper_tables.paper_comparison import list_recipes, recipes_document

    return recipes_document([*list_recipes(), *list_figures()])


def _table(asked: Asked, out: Path | None, rows: list[str] | None) -> tuple[TableDocument, bool]:
    """What to print of a table, and whether any run failed."""
    if out:
        raise typer.BadParameter("--out: a table is printed; only figures write files")
    from protofed.paper_tables.paper_comparison import recipe_document
    from protofed.paper_tables.recipe import read_recipe
    from protofed.paper_tables.recipe_plan import plan_document, plan_recipe
    from protofed.paper_tables.run_recipe import prepare_recipe, read_recipe_runs, run_recipe

    _, scale, seeds, parts, precision, source, runs, dry, yes, workers, stale = asked
    recipe = read_recipe(asked.name).with_rows(rows or []).with_precision(precision)
    if dry:
        plan = plan_recipe(recipe, scale, parts, seeds, runs, workers, stale)
        return plan_document(plan), False
    if source is not None:
        report = read_recipe_runs(recipe, scale, parts, seeds, source)
    else:
        ready = prepare_recipe(recipe, scale, parts, seeds, runs, stale)
        report = _played(ready, workers, yes, partial(run_recipe, ready, workers))
    return recipe_document(report), report.faulty


def _figure(asked: Asked, out: Path | None, rows: list[str] | None) -> tuple[TableDocument, bool]:
    """Draw a figure: what to print of it, and whether anything is missing."""
    if rows:
        raise typer.BadParameter("--row: a figure has no rows; choose pictures with --part")
    from protofed.paper_figures.figure_recipe import read_figure
    from protofed.paper_figures.run_figure import (
        draw_kept_runs,
        figure_document,
        plan_figure,
        prepare_figure,
        run_figure,
    )
    from protofed.paper_tables.recipe_plan import plan_document

    _, scale, seeds, parts, precision, source, runs, dry, yes, workers, stale = asked
    figure, out = read_figure(asked.name).with_pictures(parts), out or Path("figures")
    if dry:
        plan = plan_figure(figure, scale, seeds, runs, workers, stale, precision)
        return plan_document(plan), False
    if source is not None:
        report = draw_kept_runs(figure, scale, seeds, source, out, precision)
    else:
        ready = prepare_figure(figure, scale, seeds, runs, stale, precision)
        play = partial(run_figure, ready, workers, out)
        report = _played(ready, workers, yes, play)
    return figure_document(report), report.faulty


def kept_scale(scale: Scale) -> Scale:
    """The scale of kept runs: that of the papers unless another is named; nobody keeps smoke."""
    return "paper" if scale == "smoke" else scale


def _played(
    ready: ReadyRecipe | ReadyFigure, workers: int, yes: bool, play: Callable[[GridWatcher], Report]
) -> Report:
    """Run with progress on stderr, after a question if it takes long; Ctrl-C says how to resume."""
    from protofed.analysis.parallel_runs import GridWatcher

    with stopped_by_user(partial(typer.echo, err=True)):
        _confirm(ready, workers, yes)
        with GridWatcher() as watch:
            return play(watch)


def _confirm(ready: ReadyRecipe | ReadyFigure, workers: int, yes: bool) -> None:
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


def _forecast(ready: ReadyRecipe | ReadyFigure, seconds: float, workers: int) -> str:
    """How many runs are to do and, but for smoke, about how long they take."""
    from protofed.paper_tables.paper_comparison import format_duration

    left = len(ready.to_do())
    todo = f"{ready.name} at scale {ready.scale}: {left} of {len(ready.cells)} runs to do"
    if ready.scale == "smoke" or not left:
        return "; ".join([todo, *ready.notes])
    return (
        f"{todo}, about {format_duration(seconds)} with {max(1, workers)} at a time: estimated "
        f"from a few batches of the first row; other methods may take twice as long"
    )
