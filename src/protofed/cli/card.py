"""``protofed card``: a finished run's model card."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def card_command(run: Annotated[Path, typer.Argument(help="Run folder.")]) -> None:
    """Print the model card of a finished run, as it lies in its folder as card.md."""
    from protofed.cli.show import echo_line
    from protofed.experiment.card import model_card as card_of
    from protofed.experiment.rundir import RunDir

    for line in card_of(RunDir(run)).splitlines():  # the file may be a stranger's
        echo_line(line)
