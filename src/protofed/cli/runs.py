"""``protofed runs``: what lies in the folder of runs, small copies, and freeing checkpoints."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click
import typer
from typer.core import TyperGroup

from protofed.cli.options import (
    HELP,
    FormatOption,
    JsonOption,
    PlainCommand,
    WhereOption,
    chosen_format,
    confirm_or_stop,
    tell_line,
)

if TYPE_CHECKING:
    from protofed.analysis.prune_runs import PrunePlan
    from protofed.analysis.run_index import RunEntry
    from protofed.runtime.text_tables import TableDocument, TextTable


class DefaultList(TyperGroup):
    """A group whose command `list` need not be named: ``runs FOLDER`` is ``runs list FOLDER``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `list` before words that name no command."""
        named = bool(args) and args[0] in (*self.commands, *HELP["help_option_names"])
        return super().parse_args(ctx, args if named else ["list", *args])


runs_app = typer.Typer(
    cls=DefaultList,
    help="List runs with their scores (`protofed runs list --help`), copy or free them.",
    context_settings=HELP,
    rich_markup_mode=None,
    suggest_commands=False,
)
DEFAULT = Path("runs")
LONGEST_STATE = 60  # letters
HEAD = [
    *("method", "data", "settings", "rounds", "state", "score", "last"),
    *("age", "size", "code", "folder"),
]
Folders = Annotated[
    list[Path] | None,
    typer.Argument(
        help="Run folders, or folders that hold them; default: runs.", show_default=False
    ),
]
Order = Literal["age", "score", "size", "method"]


@runs_app.command("list", cls=PlainCommand)
def list_runs(
    folders: Folders = None,
    where: WhereOption = None,
    order: Annotated[
        Order, typer.Option("--sort", help="Newest, best or largest first, or by method.")
    ] = "age",
    form: FormatOption = "terminal",
    as_json: JsonOption = False,
) -> None:
    """List runs, newest first: their settings, progress, scores, age and size.

    `list` can be left out. Settings are those in which the listed runs differ. A damaged run is
    listed with the reason. `protofed runs prune` frees checkpoints.
    """
    from protofed.analysis.run_index import filter_runs
    from protofed.cli.output import print_document

    form = chosen_format(form, as_json)
    found = _entries(folders)
    chosen = sort_entries(filter_runs(found, where or []), order)
    if not chosen:
        tell_line(_nothing(folders, len(found)))
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    if chosen or form == "json":
        print_document(_runs_document(chosen, width), form)


def _entries(folders: list[Path] | None) -> list[RunEntry]:
    """All runs in the folders; a folder without any is told, one that does not exist is refused."""
    from protofed.analysis.run_index import find_runs, looks_like_run, read_entry
    from protofed.errors import ProtofedError

    found = []
    for folder in find_runs(folders or [DEFAULT]):
        if folders and not folder.exists():
            raise ProtofedError(f"{folder}: no such folder")
        if looks_like_run(folder):
            found.append(read_entry(folder))
        elif folders and len(folders) > 1:
            tell_line(f"note: {folder} holds no run")
    return found


def _nothing(folders: list[Path] | None, found: int) -> str:
    from protofed.errors import count_noun

    if found:
        return f"none of {count_noun(found, 'run')} fulfils all of --where"
    where = ", ".join(map(str, folders or [DEFAULT]))
    return f"no runs in {where}; `protofed run --rounds 5` makes the first one, in runs/"


def sort_entries(entries: Sequence[RunEntry], order: Order) -> list[RunEntry]:
    """The entries newest first, best first, largest first, or by method; ties are newest first.

    Runs without a score come last.
    """
    newest = sorted(entries, key=lambda entry: -entry.changed)
    if order == "score":
        return sorted(newest, key=lambda e: (e.score is None, -(e.score or 0.0)))
    if order == "size":
        return sorted(newest, key=lambda entry: -entry.size)
    return sorted(newest, key=lambda entry: entry.method) if order == "method" else newest


def _runs_document(entries: Sequence[RunEntry], width: int | None) -> TableDocument:
    """The table of the runs, in a terminal's width; CSV and JSON have bytes, moments and faults."""
    from protofed.analysis.run_index import differing_settings, format_differing
    from protofed.errors import count_noun
    from protofed.runtime.atomic_io import format_bytes
    from protofed.runtime.text_tables import TableDocument, TextTable

    settings, now = differing_settings(entries), time.time()
    rows = [
        _cells(entry, format_differing(own), now)
        for entry, own in zip(entries, settings, strict=True)
    ]
    records = [_record(entry, own) for entry, own in zip(entries, settings, strict=True)]
    lines = [_csv_line(record) for record in records]
    total = format_bytes(sum(entry.size for entry in entries))
    return TableDocument(
        [TextTable(HEAD, rows) if width is None else fit_columns(HEAD, rows, width)],
        records,
        notes=[f"{count_noun(len(entries), 'run')}, {total}; {SCORES}"],
        records=TextTable(list(records[0]) if records else [], lines),
    )


WHEN_NARROW = ("code", "last", "size", "data", "age")  # what goes first
GAP = 3  # letters between two columns


def fit_columns(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> TextTable:
    """A table without the columns that a narrow terminal has no room for, and a note on these.

    The columns that matter least go first; if that is not enough, long cells are broken.
    """
    from protofed.runtime.text_tables import TextTable

    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    need, gone = sum(widths) + GAP * (len(head) - 1), []
    for name in WHEN_NARROW:
        if need > width:
            need -= widths[list(head).index(name)] + GAP
            gone.append(name)
    kept = [place for place, name in enumerate(head) if name not in gone]
    note = f"too narrow for {', '.join(gone)}: widen the terminal, or use --format csv"
    cells = [[row[place] for place in kept] for row in rows]
    return TextTable([head[place] for place in kept], cells, notes=[note] if gone else [])


SCORES = "score: mean over domains and the last five evaluations; last: after the last round"


def _cells(entry: RunEntry, settings: str, now: float) -> list[str]:
    from protofed.errors import display_path, printable_text
    from protofed.runtime.atomic_io import format_bytes
    from protofed.runtime.console import format_percent

    planned = "-" if entry.planned is None else str(entry.planned)
    return [
        entry.method or "-",
        entry.data or "-",
        settings,
        f"{entry.rounds}/{planned}",
        printable_text(entry.describe_state(), LONGEST_STATE),
        format_percent(entry.score),
        format_percent(entry.last),
        format_age(now - entry.changed),
        format_bytes(entry.size),
        entry.fingerprint[:8] or "-",
        display_path(entry.folder),
    ]


def format_age(seconds: float) -> str:
    """A time since something for people, in its largest unit: ``40 s``, ``3 h``, ``12 d``."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _record(entry: RunEntry, settings: dict[str, object]) -> dict[str, Any]:
    """A run as plain data, ready for JSON."""
    changed = datetime.fromtimestamp(entry.changed, UTC).isoformat(timespec="seconds")
    return {
        "folder": str(entry.folder),
        "digest": entry.digest,
        "method": entry.fields.get("method.name"),
        "data": entry.data or None,
        "settings": settings,
        "rounds": entry.rounds,
        "planned": entry.planned,
        "state": entry.state,
        "fault": entry.fault,
        "score": entry.score,
        "last": entry.last,
        "rule": entry.rule,
        "changed": changed,
        "size": entry.size,
        "fingerprint": entry.fingerprint or None,
    }


def _csv_line(record: dict[str, Any]) -> list[str]:
    from protofed.analysis.run_index import format_differing
    from protofed.errors import display_path, printable_text

    folder, settings = display_path(record["folder"]), format_differing(record["settings"])
    plain = {**record, "folder": folder, "settings": settings}
    return ["" if value is None else printable_text(str(value)) for value in plain.values()]


@runs_app.command("archive", cls=PlainCommand)
def archive_command(
    folders: Folders = None,
    to: Annotated[
        Path, typer.Option("--to", help="Folder for the copies, one in it for each run.")
    ] = Path("results"),
    where: WhereOption = None,
) -> None:
    """Copy what tables, curves and reports need of finished runs: small text files, no model.

    Runs that are in the folder already stay as they are, so the command can be repeated while more
    runs finish. The copies are run folders: `protofed compare --runs`, `reproduce --from`, `plot
    curves` and `report` read them. Runs that are not finished are left out.
    """
    from protofed.analysis.archive_runs import archive_runs
    from protofed.analysis.run_index import filter_runs
    from protofed.errors import count_noun
    from protofed.runtime.atomic_io import format_bytes

    found = _entries(folders)
    chosen = filter_runs(found, where or [])
    if not chosen:
        return tell_line(_nothing(folders, len(found)))
    to.mkdir(parents=True, exist_ok=True)
    made, left_out = archive_runs([entry.folder for entry in chosen], to)
    for line in left_out:
        tell_line(f"left out: {line}")
    new, size = sum(not one.known for one in made), format_bytes(sum(one.size for one in made))
    typer.echo(f"{count_noun(len(made), 'run')} in {to} ({new} new), {size}")
    return None


@runs_app.command("prune", cls=PlainCommand)
def prune_command(
    folders: Folders = None,
    where: WhereOption = None,
    everything: Annotated[
        bool,
        typer.Option("--all", help="Also the newest checkpoint and those of `run --keep`."),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list what would be removed.")
    ] = False,
) -> None:
    """Remove checkpoints of finished runs; scores, tables, reports and curves do not need them.

    The newest one stays, for export and predict, and so do those of `run --keep`. Runs that are
    not finished are left alone.
    """
    from protofed.analysis.prune_runs import plan_pruning
    from protofed.analysis.run_index import filter_runs
    from protofed.errors import ProtofedError
    from protofed.runtime.atomic_io import format_bytes

    if yes and dry_run:
        raise typer.BadParameter("--dry-run removes nothing: leave --yes out")
    found = _entries(folders)
    entries = filter_runs(found, where or [])
    if not entries:
        return tell_line(_nothing(folders, len(found)))
    plans, spared = plan_pruning(entries, everything)
    for line in spared:
        tell_line(f"left alone: {line}")
    if not plans:
        return typer.echo("nothing to remove")
    _show_plans(plans)
    if dry_run:
        return None
    size = format_bytes(sum(plan.size for plan in plans))
    refusal = ProtofedError("nothing was removed: there is no terminal to ask", hint="give <yes>")
    confirm_or_stop(f"remove these {size}?", yes, refusal)
    return _prune(plans)


def _show_plans(plans: Sequence[PrunePlan]) -> None:
    from protofed.cli.output import print_table
    from protofed.errors import count_noun, display_path
    from protofed.runtime.atomic_io import format_bytes

    rows = [
        [display_path(p.folder), ", ".join(map(str, p.rounds)) or "-", format_bytes(p.size)]
        for p in plans
    ]
    print_table(["run", "checkpoints of rounds", "size"], rows)
    total = format_bytes(sum(plan.size for plan in plans))
    typer.echo(f"\n{count_noun(len(plans), 'run')}, {total}")


def _prune(plans: Sequence[PrunePlan]) -> None:
    """Prune each run; one that cannot be pruned is told, and the exit code is 1."""
    from protofed.analysis.prune_runs import prune_run
    from protofed.analysis.run_index import shorten_fault
    from protofed.errors import ProtofedError, count_noun
    from protofed.runtime.atomic_io import format_bytes

    freed, failed = [], 0
    for plan in plans:
        try:
            prune_run(plan)
            freed.append(plan.size)
        except (ProtofedError, OSError) as fault:
            tell_line(f"left alone: {plan.folder}: {shorten_fault(plan.folder, fault)}")
            failed = 1
    typer.echo(f"removed {format_bytes(sum(freed))} from {count_noun(len(freed), 'run')}")
    if failed:
        raise typer.Exit(1)
