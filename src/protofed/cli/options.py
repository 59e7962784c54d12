"""Options that several commands share, and how our commands differ from typer's."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_type_hints

import click
import typer
from typer.core import TyperArgument, TyperCommand

from protofed.errors import ProtofedError, printable_text
from protofed.runtime.text_tables import TableFormat

if TYPE_CHECKING:
    from protofed.analysis.run_process import RunOptions
    from protofed.experiment.runner import Workers
    from protofed.experiment.stale_code import StaleRule

HELP = {"help_option_names": ["-h", "--help"]}  # of every command


class PlainCommand(TyperCommand):
    """A command whose help says what its arguments are, and has no backslashes.

    Click 8.5 forgets what typer 0.20 tells it of arguments, and typer escapes brackets for rich,
    which is off.
    """

    def get_help(self, ctx: click.Context) -> str:
        made_of = inspect.unwrap(self.callback) if self.callback else None
        hints = get_type_hints(made_of, include_extras=True) if made_of else {}
        for given in self.params:
            if isinstance(given, TyperArgument) and not given.help and given.name:
                given.help = next((told.help for told in hints[given.name].__metadata__), None)
        return super().get_help(ctx).replace("\\[", "[")

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Nothing: click 8.5 lists arguments here, and typer does so beside the options."""


class SeveralValues(PlainCommand):
    """A command whose ``--sites a b c`` means ``--sites a --sites b --sites c``.

    Click options take one value each, so the words are rewritten before click parses them.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words, taking = [], False
        for word in args:
            if word.startswith("-"):
                taking = word == "--sites"
            elif taking:
                words.append("--sites")
            if word != "--sites" or args[-1] == word:
                words.append(word)
        return super().parse_args(ctx, words)


# Fields of the spec without a section and without a flag of their own.
SET_ONLY = {
    *("initial_weights", "validation", "participation", "min_clients", "on_nonfinite"),
    *("evaluate_every", "threads", "device", "precision", "weights", "pooled"),
    *("pretrained", "pretrained_sha256", "train", "feature_views"),
}


def option_flag(name: str, value: str = "") -> str:
    """An option of an error's hint as the user types it.

    ``out`` becomes ``--out``; ``training.epochs`` with the value 1 becomes ``--set
    training.epochs=1``.
    """
    if "." in name or name in SET_ONLY:
        return f"--set {name}={value}" if value else f"--set {name}=..."
    flag = f"--{name.replace('_', '-')}"
    return f"{flag} {value}" if value else flag


MOST_WORKERS = 256

FormatOption = Annotated[TableFormat, typer.Option("--format", help="How to print tables.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Short for --format json.")]
JsonRecordOption = Annotated[bool, typer.Option("--json", help="Print as JSON.")]
WorkersOption = Annotated[
    str,
    typer.Option(
        "--workers",
        help="Processes that share the work: auto, a number, or 0 for none. Scores do not change.",
    ),
]
ScoreOption = Annotated[
    Literal["last_five", "last"] | None,  # ScoreRule, whose module would load torch
    typer.Option(
        "--score",
        help="last_five: mean of the last five evaluations, the default from ten evaluations on; "
        "last: the last round.",
    ),
]
Metric = Literal[  # MetricName, whose module would load torch
    "accuracy", "balanced_accuracy", "macro_f1", "kappa", "auroc", "calibration_error"
]
MetricOption = Annotated[Metric, typer.Option("--metric", help="Score that is shown.")]
LeaveOutOption = Annotated[
    str | None,
    typer.Option(
        "--leave-out",
        help="Domain to exclude from training; `each` runs one experiment per domain.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="section.field=value, e.g. training.epochs=1; repeatable."),
]
StaleOption = Annotated[
    Literal["refuse", "repeat", "accept"],  # StaleRule, whose module would load torch
    typer.Option(
        "--stale",
        help="A run made by other code: refuse it, repeat it, or accept its numbers if finished.",
    ),
]
StaleModelOption = Annotated[
    Literal["refuse", "accept"],
    typer.Option(
        "--stale", help="A run whose model other code has changed since: refuse or accept it."
    ),
]
TrackOption = Annotated[
    list[str] | None,
    typer.Option("--track", help="Log every round to tensorboard, wandb or mlflow; repeatable."),
]
TrackToOption = Annotated[
    Path | None,
    typer.Option("--track-to", help="Folder for these logs; default: see docs/tracking.md."),
]
WhereOption = Annotated[
    list[str] | None,
    typer.Option(
        "--where",
        help="Only runs with field=value, e.g. training.epochs=5; also != < <= > >=; repeatable.",
    ),
]
AllowCodeOption = Annotated[
    bool,
    typer.Option(
        "--allow-code", help="Load the code of methods and nets that a file or run folder names."
    ),
]
RunsOption = Annotated[Path, typer.Option("--runs", help="Folder that holds the run folders.")]


def tell_line(line: str) -> None:
    """Print one line on stderr; control characters in it are escaped."""
    typer.echo(printable_text(line), err=True)


def chosen_format(form: TableFormat, as_json: bool) -> TableFormat:
    """The format that ``--format`` and ``--json`` ask for together.

    ``--json`` beside another format than JSON is refused: one of them would be ignored.
    """
    if as_json and form not in ("terminal", "json"):
        raise typer.BadParameter(f"--json means --format json: leave it out, or --format {form}")
    return "json" if as_json else form


def run_options(stale: StaleRule, track: list[str] | None, to: Path | None) -> RunOptions:
    """How runs are made, from ``--stale``, ``--track`` and ``--track-to``.

    A tracker that is not installed is an error at once; a folder without a tracker is refused.
    """
    from protofed.analysis.run_process import RunOptions
    from protofed.tracking import TrackerChoice

    if to and not track:
        raise typer.BadParameter("--track-to needs --track: name what is to write there")
    choice = TrackerChoice(tuple(track or ()), to)
    choice.create()
    return RunOptions(stale, choice)


@contextmanager
def stopped_by_user(say: Callable[[str], None]) -> Iterator[None]:
    """Turn Ctrl-C in this block into a line on how to go on, and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        say("stopped; the same command resumes")
        raise typer.Exit(130) from None


def confirm_or_stop(question: str, yes: bool, refusal: ProtofedError) -> None:
    """Ask on the terminal, unless `yes` was given; a no ends with exit code 1.

    Without a terminal there is nobody to ask: then `refusal` is raised.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise refusal
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)


def tell_left_out(lines: Iterable[str]) -> None:
    """Say on stderr which folders are not shown, and why."""
    for line in lines:
        tell_line(f"note: left out: {line}")


def parse_workers(words: str) -> Workers:
    """The value of ``--workers``: a number of processes, or ``auto``.

    0 means no other process: clients, or the runs of a grid, take turns in this one.
    """
    if words.isdecimal() and int(words) <= MOST_WORKERS:
        return int(words)
    if words != "auto":
        raise typer.BadParameter(f"--workers {words}: write auto, or a number up to {MOST_WORKERS}")
    return "auto"


def parse_rounds(flag: str, words: str) -> tuple[int, ...]:
    """The round numbers of ``1,10,40``; an empty text gives none.

    `flag` names the option in the error.
    """
    try:
        return tuple(int(word) for word in words.split(",") if word.strip())
    except ValueError:
        raise typer.BadParameter(f"{flag} {words}: write round numbers, as 1,10,40") from None
