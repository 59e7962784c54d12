"""The command line; torch is imported inside commands, so that help and typos answer at once."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

from protofed import __version__
from protofed.cli.card import card
from protofed.cli.compare import ablate, compare, sweep, track
from protofed.cli.export import export
from protofed.cli.fleet import join, serve, submit
from protofed.cli.keys import keys
from protofed.cli.listing import data_app, methods_app
from protofed.cli.outlet import guard_streams
from protofed.cli.plain import HELP, Plain, Several
from protofed.cli.plot import plot
from protofed.cli.predict import predict
from protofed.cli.report import report
from protofed.cli.reproduce import reproduce
from protofed.cli.resume import resume
from protofed.cli.run import run
from protofed.cli.telling import tell
from protofed.core.errors import ProtofedError, printable
from protofed.core.memory import memory_for
from protofed.core.progress import telling

app = typer.Typer(
    name="protofed",
    help="Federated learning under domain shift, with prototypes and semantic anchors.",
    no_args_is_help=True,
    context_settings=HELP,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    suggest_commands=False,  # click suggests already
)
COMMANDS: list[Callable[..., None]] = [
    *(run, resume, compare, ablate, sweep, reproduce, plot, report, track),
    *(export, predict, card, serve, join, submit),
]
for command in COMMANDS:
    app.command(cls=Plain)(command)
app.command(cls=Several)(keys)
app.add_typer(methods_app, name="methods")
app.add_typer(data_app, name="data")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"protofed {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and stop."
    ),
) -> None:
    """Federated learning under domain shift, with prototypes and semantic anchors."""


def _call() -> None:
    """The command, and all that it printed really printed."""
    try:
        app()
    finally:
        sys.stdout.flush()


def main() -> None:
    """Run the command line; what the user can mend ends as a few lines and exit code 2."""
    guard_streams()
    telling.set(tell)
    try:
        with memory_for("protofed", "use fewer or smaller images, or end other programs"):
            _call()
    except (ProtofedError, OSError) as fault:  # OSError: a full disk, a folder that is not ours
        for line in f"error: {fault}".split("\n"):  # names in it may come from anywhere
            print(printable(line), file=sys.stderr)
        sys.exit(2)
