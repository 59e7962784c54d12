"""``protofed plot``: a figure from finished runs, as SVG and PNG."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer


def plot_command(
    kind: Annotated[
        str | None, typer.Argument(help="Kind of figure; leave it out to list them.")
    ] = None,
    runs: Annotated[list[Path] | None, typer.Argument(help="Run folders.")] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", help="Files to write, as FILE.svg and FILE.png; default: KIND."
        ),
    ] = None,
    rounds: Annotated[
        str, typer.Option(help="Rounds whose models are drawn, e.g. 1,10; see run --keep.")
    ] = "",
    domain: Annotated[str | None, typer.Option(help="Only this domain.")] = None,
    by: Annotated[
        Literal["class", "domain"], typer.Option(help="What the colours of points mean.")
    ] = "class",
    rule: Annotated[
        Literal["last_five", "last"],
        typer.Option(help="Scores: mean of the last five evaluations, or the last round's."),
    ] = "last_five",
    images: Annotated[int, typer.Option(min=1, help="Example images of gradcam.")] = 4,
    seed: Annotated[int, typer.Option(min=0, help="Of what a figure draws by lot.")] = 0,
) -> None:
    """Draw a figure from run folders; without a kind, list the kinds."""
    from protofed.figures import KINDS, draw_figure
    from protofed.figures.style import FigureOptions, save_figure

    if kind is None:
        width = max(map(len, KINDS))
        for name, summary in KINDS.items():
            typer.echo(f"{name:<{width}}  {summary}")
        return
    options = FigureOptions(_numbers(rounds), domain, by, rule, images, seed)
    figure = draw_figure(kind, runs or [], options)
    for file in save_figure(figure, out or Path(kind)):
        typer.echo(f"wrote {file}")


def _numbers(words: str) -> tuple[int, ...]:
    """The round numbers of ``1,10``."""
    try:
        return tuple(int(word) for word in words.split(",") if word.strip())
    except ValueError:
        raise typer.BadParameter(f"--rounds {words}: write round numbers, as 1,10") from None
