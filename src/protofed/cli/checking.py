"""``protofed join --check``: look at everything, join nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NoReturn

import typer

if TYPE_CHECKING:
    from protofed.deploy.own import JoiningSite


def run_join_check(site: JoiningSite, as_json: bool = False) -> NoReturn:
    """Print what was found, a line each; the exit code is 1 if anything failed."""
    from protofed.deploy.check import format_check_lines, run_preflight

    lines = run_preflight(site)
    found = [{**line._asdict(), "fix": "" if line.ok else line.fix} for line in lines]
    typer.echo(json.dumps(found, indent=2) if as_json else format_check_lines(lines))
    raise typer.Exit(1 if any(line.ok is False for line in lines) else 0)
