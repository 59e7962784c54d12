"""``protofed keys``: a certificate for the server, and a key for each site."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from protofed.deploy.keys import MadeKeys


def keys_command(
    folder: Annotated[Path, typer.Argument(help="Where the keys are kept.", show_default=False)],
    server: Annotated[
        str, typer.Option(metavar="HOST[:PORT]", help="Where sites will reach the server.")
    ],
    sites: Annotated[
        list[str], typer.Option(metavar="NAME ...", help="Who takes part; known ones are kept.")
    ],
    days: Annotated[
        int, typer.Option(min=1, max=3650, help="How long the server's certificate holds.")
    ] = 365,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was made as JSON.")] = False,
) -> None:
    """Make the keys of a federation across machines; add sites to it later.

    No file that is there is ever overwritten. What is private can be read by its owner alone.
    """
    from protofed.deploy.keys import make_keys

    made = make_keys(folder, server, sites, days)
    if as_json:
        told = {"folder": str(made.folder), "server": str(made.server), "new": made.new}
        more = {"kept": made.kept, "new_certificate": made.certificate}
        typer.echo(json.dumps({**told, **more, "commands": _commands(made)}, indent=2))
        return
    for name in made.new:
        typer.echo(f"{name}: new key in {made.folder / name}: hand this folder to the site alone")
    for name in made.kept:
        typer.echo(f"{name}: keeps its key")
    if made.certificate:
        typer.echo(f"{made.server.host}: new certificate for {days} days in {made.folder}/server")
    typer.echo(f"keep {made.folder / 'ca'} to yourself: who has it can pass for the server")
    typer.echo("\nwhat to type:")
    for where, command in _commands(made).items():
        typer.echo(f"  {where:<{max(map(len, _commands(made)))}}  {command}")


def _commands(made: MadeKeys) -> dict[str, str]:
    """By place, the command to type there."""
    joins = {
        f"at {name}": f"protofed join {made.server} --name {name} --keys {made.folder / name} "
        f"--data IMAGES"
        for name in (*made.new, *made.kept)
    }
    return {
        "at the server": f"protofed serve --keys {made.folder} --port {made.server.port}",
        **joins,
        "then, at the server": "protofed submit SPEC.toml",
    }
