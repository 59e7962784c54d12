"""Options that several commands share: each has one name, one meaning and one help text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from protofed.runtime.text_tables import TableFormat

if TYPE_CHECKING:
    from protofed.experiment.runner import Workers

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
