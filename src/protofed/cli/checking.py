"""``protofed join --check``: look at everything, join nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import typer


def run_check(
    address: str, keys: Path | None, data: Path, home: Path, as_json: bool = False
) -> NoReturn:
    """Print what was found, a line each; the exit code is 1 if anything failed."""
    from protofed.deploy.check import check, show

    lines = check(address, keys, data, home)
    found = [line._asdict() for line in lines]
    typer.echo(json.dumps(found, indent=2) if as_json else show(lines))
    raise typer.Exit(1 if any(line.ok is False for line in lines) else 0)
