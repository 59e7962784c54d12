"""``protofed plot``: a figure from finished runs, as SVG and PNG."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from protofed.cli.options import ScoreOption, parse_rounds


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
