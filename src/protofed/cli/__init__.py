"""The command line; torch is imported inside commands, so that help and typos answer at once."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

import typer

from protofed import __version__
from protofed.cli.compare import ablate_command, compare_command, track_command
from protofed.cli.data import data_app
from protofed.cli.export import card_command, export_command, predict_command
from protofed.cli.federation import join_command, keys_command, serve_command, submit_command
from protofed.cli.methods import methods_app
from protofed.cli.options import HELP, PlainCommand, SeveralValues, option_flag
from protofed.cli.output import guard_streams, show_count_progress
from protofed.cli.report import plot_command, report_command
from protofed.cli.reproduce import reproduce_command
from protofed.cli.run import resume_command, run_command
from protofed.cli.runs import runs_app
from protofed.cli.sweep import sweep_command
from protofed.cli.tune import tune_command
from protofed.errors import ProtofedError, printable_text
from protofed.runtime.code_reference import describe_fault, user_frame
from protofed.runtime.console import telling
from protofed.runtime.resources import explain_oom

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
COMMANDS: dict[str, Callable[..., None]] = {
    "run": run_command,
    "resume": resume_command,
    "compare": compare_command,
    "ablate": ablate_command,
    "sweep": sweep_command,
    "tune": tune_command,
    "reproduce": reproduce_command,
    "plot": plot_command,
    "report": report_command,
    "track": track_command,
    "export": export_command,
    "predict": predict_command,
    "card": card_command,
    "serve": serve_command,
    "join": join_command,
    "submit": submit_command,
}
for name, command in COMMANDS.items():
    app.command(name, cls=PlainCommand)(command)
app.command("keys", cls=SeveralValues)(keys_command)
app.add_typer(runs_app, name="runs")
app.add_typer(methods_app, name="methods")
app.add_typer(data_app, name="data")


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"protofed {__version__}")
        raise typer.Exit


@app.callback()
def root_command(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    """Federated learning under domain shift, with prototypes and semantic anchors."""


def _call() -> None:
    """The command, and all that it printed really printed."""
    try:
        app(prog_name="protofed")  # also where another program runs it, as `python -m`
    finally:
        sys.stdout.flush()


def main() -> None:
    """Run the command line, as the console script ``protofed`` does.

    An error that the user can fix ends as a few lines on stderr and exit code 2, without a
    traceback. Its hint names options as flags.
    """
    guard_streams()
    telling.set(show_count_progress)
    try:
        with explain_oom("protofed", "use fewer or smaller images, or end other programs"):
            _call()
    except (ProtofedError, OSError) as fault:  # OSError: a full disk, a folder that is not ours
        told = fault.render(option_flag) if isinstance(fault, ProtofedError) else str(fault)
        for line in f"error: {told}".split("\n"):  # names in it may come from anywhere
            print(printable_text(line), file=sys.stderr)
        sys.exit(2)
    except Exception as fault:
        if user_frame(fault) is None:
            raise  # ours: all of it is needed
        traceback.print_exception(fault)
        print(f"\nerror: your code failed: {describe_fault(fault)}", file=sys.stderr)
        sys.exit(1)
