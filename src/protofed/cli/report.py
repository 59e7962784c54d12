"""``protofed plot`` and ``protofed report``: figures and one page from finished runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from protofed.cli.options import ScoreOption, parse_rounds

if TYPE_CHECKING:
    from protofed.experiment.result import ScoreRule


def plot_command(
    kind: Annotated[
        str | None, typer.Argument(help="Kind of figure; leave it out to list them.")
    ] = None,
    runs: Annotated[list[Path] | None, typer.Argument(help="Run folders.")] = None,
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
    score: ScoreOption = "last_five",
    images: Annotated[int, typer.Option(min=1, help="Number of example images of gradcam.")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="Random seed for sampling and t-SNE.")] = 0,
) -> None:
    """Draw a figure from run folders; without a kind, list the kinds.

    Writes an SVG and a PNG. Each kind uses some of the options and refuses the others.
    """
    from protofed.figures import KINDS, draw_figure
    from protofed.figures.style import FigureOptions, save_figure

    if kind is None:
        width = max(map(len, KINDS))
        for name, summary in KINDS.items():
            typer.echo(f"{name:<{width}}  {summary}")
        return
    options = FigureOptions(parse_rounds("--rounds", rounds), domain, by, score, images, seed)
    figure = draw_figure(kind, runs or [], options)
    for file in save_figure(figure, out or Path(kind)):
        typer.echo(f"wrote {file}")


DEFAULT = Path("report.html")


def report_command(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, for example runs/*.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write; default: report.html.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="Row that the others are compared with; default: the first.")
    ] = None,
    score: ScoreOption = "last_five",
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
) -> None:
    """Write one self-contained HTML page about run folders, for example runs/*.

    It holds the table, curves, domains, confusion matrices, bytes, seconds, the spec and how to
    repeat it. Unfinished runs are shown as far as they are.
    """
    if watch and out:
        raise typer.BadParameter("--watch shows the page and writes no file: leave -o out")
    make = _maker(runs, baseline, score, confusion, watch)
    if not watch:
        return _write(out or DEFAULT, make)
    from protofed.report.load_runs import files_stamp
    from protofed.report.page import watch_report as serve

    return serve(make, partial(files_stamp, runs), port, _say)


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _maker(
    folders: list[Path], baseline: str | None, score: ScoreRule, confusion: bool, watched: bool
) -> Callable[[], str]:
    """What makes the page from the folders as they are at that moment."""
    from protofed.report.confusion import ConfusionCache
    from protofed.report.load_runs import read_runs
    from protofed.report.page import render_report

    confusions = ConfusionCache(_say) if confusion else None

    def make() -> str:
        runs = read_runs(folders)
        matrices = None if confusions is None else confusions.of(runs)
        return render_report(runs, matrices, baseline, score, watched)

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
