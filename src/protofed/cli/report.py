"""``protofed plot`` and ``protofed report``: figures and one page from finished runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from protofed.cli.options import (
    AllowCodeOption,
    Metric,
    MetricOption,
    ScoreOption,
    WhereOption,
    parse_rounds,
    tell_left_out,
    tell_line,
)

if TYPE_CHECKING:
    from protofed.experiment.result import ScoreRule
    from protofed.report.confusion import ConfusionCache


def plot_command(
    kind: Annotated[
        str | None, typer.Argument(help="Kind of figure; leave it out to list them.")
    ] = None,
    runs: Annotated[
        list[Path] | None, typer.Argument(help="Run folders, or folders that hold them.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Writes FILE.svg and FILE.png; default: the kind."),
    ] = None,
    rounds: Annotated[
        str, typer.Option(help="Rounds whose models are drawn, e.g. 1,10; see run --keep.")
    ] = "",
    domain: Annotated[str | None, typer.Option(help="Only this domain.")] = None,
    by: Annotated[
        Literal["class", "domain"], typer.Option(help="What the colours of points mean.")
    ] = "class",
    score: ScoreOption = None,
    metric: MetricOption = "accuracy",
    images: Annotated[int, typer.Option(min=1, help="Number of example images of gradcam.")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="Random seed for sampling and t-SNE.")] = 0,
    clients: Annotated[
        str, typer.Option(help="Clients whose own models are drawn: ids or domains, e.g. 0,mnist.")
    ] = "",
    where: WhereOption = None,
) -> None:
    """Draw a figure from run folders; without a kind, list the kinds.

    Writes an SVG and a PNG. Each kind uses some of the options and refuses the others. Runs that
    cannot be drawn are left out with a note.
    """
    from protofed.analysis.run_index import choose_runs
    from protofed.errors import require_known_name
    from protofed.figures import KINDS, check_drawable, draw_figure
    from protofed.figures.style import FigureOptions, save_figure

    if kind is None:
        width = max(map(len, KINDS))
        for name, summary in KINDS.items():
            typer.echo(f"{name:<{width}}  {summary}")
        return
    require_known_name("kind of figure", kind, KINDS)
    shown = tuple(word.strip() for word in clients.split(",") if word.strip())
    numbers = parse_rounds("--rounds", rounds)
    options = FigureOptions(numbers, domain, by, score, images, seed, metric, shown)
    chosen = choose_runs(runs or [], where or [], partial(check_drawable, kind, options))
    tell_left_out(chosen.left_out)
    figure = draw_figure(kind, chosen.folders, options)
    for file in save_figure(figure, out or Path(kind)):
        typer.echo(f"wrote {file}")


DEFAULT = Path("report.html")


def report_command(
    runs: Annotated[
        list[Path], typer.Argument(help="Run folders, or folders that hold them, as runs.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write; default: report.html.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Row that the others are compared with; default: the first.")
    ] = None,
    score: ScoreOption = None,
    metric: MetricOption = "accuracy",
    confusion: Annotated[
        bool,
        typer.Option("--confusion/--no-confusion", help="Confusion matrices; they need the data."),
    ] = True,
    watch: Annotated[
        bool, typer.Option("--watch", help="Serve the page on 127.0.0.1 while runs make progress.")
    ] = False,
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="For --watch; if taken, the next free one.")
    ] = 8000,
    where: WhereOption = None,
    allow_code: AllowCodeOption = False,
) -> None:
    """Write one self-contained HTML page about run folders, for example runs/*.

    It holds the table, curves, domains, confusion matrices, bytes, seconds, the spec and how to
    repeat it. Unfinished runs are shown as far as they are; damaged ones are left out with a note.
    """
    if watch and out:
        raise typer.BadParameter("--watch shows the page and writes no file: leave -o out")
    from protofed.report.confusion import ConfusionCache
    from protofed.runtime.code_reference import ANY_CODE, OUR_CODE

    access = ANY_CODE if allow_code else OUR_CODE
    cache = ConfusionCache(tell_line, access) if confusion else None
    make = _maker(runs, where or [], baseline, score, metric, watch, cache)
    if not watch:
        return _write(out or DEFAULT, make)
    from protofed.analysis.run_index import find_runs
    from protofed.report.load_runs import files_stamp
    from protofed.report.page import watch_report as serve

    return serve(make, lambda: files_stamp(find_runs(runs)), port, tell_line)


def _maker(
    folders: list[Path],
    where: list[str],
    baseline: str | None,
    score: ScoreRule | None,
    metric: Metric,
    watched: bool,
    confusions: ConfusionCache | None,
) -> Callable[[], str]:
    """What makes the page from the folders as they are at that moment; a note is told once."""
    from protofed.analysis.run_index import choose_runs
    from protofed.report.load_runs import check_readable, read_runs, runs_by_metric
    from protofed.report.page import render_report

    told: set[str] = set()

    def make() -> str:
        chosen = choose_runs(folders, where, check_readable)
        tell_left_out(line for line in chosen.left_out if line not in told)
        told.update(chosen.left_out)
        runs = read_runs(chosen.folders)
        matrices = None if confusions is None else confusions.of(runs)
        shown = runs_by_metric(runs, metric)
        return render_report(shown, matrices, baseline, score, watched, chosen.left_out)

    return make


def _write(out: Path, make: Callable[[], str]) -> None:
    """Write the page and say how large it is; a place that cannot hold it is told first."""
    from protofed.errors import ProtofedError
    from protofed.runtime.atomic_io import atomic_write

    if out.is_dir() or not out.parent.is_dir():
        raise ProtofedError(f"-o {out}: name a file in a folder that is there")
    page = make().encode()
    atomic_write(out, page)
    typer.echo(f"wrote {out} ({len(page) // 1000} kB)")
