"""``protofed sweep --search``: trials on held-out images, printed as they end."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

if TYPE_CHECKING:
    from protofed.study.variants import Cell


def search_and_tell(
    method: str,
    ranges: Sequence[str],
    trials: int,
    shared: dict[str, Any],
    score: Literal["last_five", "last"],
    runs: Path,
) -> None:
    """Print each trial as it ends, then the best one as flags."""
    from protofed.study.search import axis, search

    def play(cell: Cell) -> float:
        from protofed.experiment.runner import run

        found = getattr(run(cell.experiment, cell.folder), score)
        # a domain that is left out must not be tuned on either
        return found.without(cell.experiment.leave_out).mean or 0.0

    best: tuple[float, str] = (-1.0, "")
    axes = [axis(text) for text in ranges]
    try:
        for cell, found in search(method, axes, trials, shared, runs, play):
            if isinstance(found, str):
                typer.echo(f"failed  {cell.label}: {found.splitlines()[0]}")
            else:
                typer.echo(f"{found:6.2f}  {cell.label}  {cell.experiment.digest[:12]}")
                best = max(best, (found, cell.label))
    except KeyboardInterrupt:
        typer.echo("stopped; the same command goes on", err=True)
        raise typer.Exit(130) from None
    flags = " ".join(f"--set {word}" for word in best[1].split())
    typer.echo(f"best on held-out images: {best[0]:.2f} with {flags or 'nothing: all failed'}")
