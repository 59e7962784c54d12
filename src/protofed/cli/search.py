"""``protofed sweep --search``: trials on held-out images, printed as they end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

LOOK = 0.3  # seconds between two looks at a run that another process is busy with

if TYPE_CHECKING:
    from protofed.experiment.result import RunResult
    from protofed.study.variants import GridCell


def _patiently(cell: GridCell) -> RunResult:
    """A trial's result; one that another process is running is waited for."""
    from protofed.core.errors import BusyError
    from protofed.core.lock import is_locked
    from protofed.experiment.runner import run

    told = False
    while True:
        try:
            return run(cell.experiment, cell.folder)
        except BusyError:
            if not told:
                typer.echo(f"waiting for {cell.folder}, which another process is running", err=True)
            told = True
            while is_locked(cell.folder):
                time.sleep(LOOK)


def search_with_progress(
    method: str,
    ranges: Sequence[str],
    trials: int,
    shared: dict[str, Any],
    score: Literal["last_five", "last"],
    runs: Path,
) -> None:
    """Print each trial as it ends, then the best one as flags."""
    from protofed.study.search import parse_axis, run_search

    def play(cell: GridCell) -> float:
        found = getattr(_patiently(cell), score)
        # a domain that is left out must not be tuned on either
        return found.without(cell.experiment.leave_out).mean or 0.0

    best: tuple[float, str] = (-1.0, "")
    axes = [parse_axis(text) for text in ranges]
    try:
        for cell, found in run_search(method, axes, trials, shared, runs, play):
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
