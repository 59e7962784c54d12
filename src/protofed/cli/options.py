"""Options that several commands share, and how our commands differ from typer's."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, get_type_hints

import click
import typer
from typer.core import TyperArgument, TyperCommand

from protofed.runtime.text_tables import TableFormat

if TYPE_CHECKING:
    from protofed.experiment.runner import Workers

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


def option_flag(name: str, value: str = "") -> str:
    """An option of an error's hint as the user types it.

    ``out`` becomes ``--out``; ``training.epochs`` with the value 1 becomes ``--set
    training.epochs=1``.
    """
    if "." in name:
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
    Literal["last_five", "last"],  # ScoreRule, whose module would load torch
    typer.Option(
        "--score", help="last_five: mean of the last five evaluations; last: the last round."
    ),
]
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
RunsOption = Annotated[Path, typer.Option("--runs", help="Folder that holds the run folders.")]


def chosen_format(form: TableFormat, as_json: bool) -> TableFormat:
    """The format that ``--format`` and ``--json`` ask for together.

    ``--json`` beside another format than JSON is refused: one of them would be ignored.
    """
    if as_json and form not in ("terminal", "json"):
        raise typer.BadParameter(f"--json means --format json: leave it out, or --format {form}")
    return "json" if as_json else form


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
