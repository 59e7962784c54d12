"""Many runs from one command: side by side, with their progress, and told how to go on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from protofed.study.variants import GridCell


def run_grid(grid: Sequence[GridCell], workers: int) -> dict[Path, str]:
    """Run what is not finished, `workers` at a time (0: all cores); faults of some, by folder."""
    from protofed.cli.show import GridWatcher
    from protofed.core.errors import ProtofedError
    from protofed.core.machine import usable_cores
    from protofed.study.pool import run_all

    with GridWatcher() as watch:
        try:
            faults = run_all(grid, workers or usable_cores(), watch)
        except KeyboardInterrupt:
            watch.say("stopped; the same command goes on")
            raise typer.Exit(130) from None
    if all(cell.folder in faults for cell in grid):
        raise ProtofedError("every run failed:\n" + "\n".join(dict.fromkeys(faults.values())))
    return faults
