"""``protofed data get``: fetch a public benchmark."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protofed.core.errors import count_noun

if TYPE_CHECKING:
    from rich.progress import Progress

    from protofed.data.fetch import RemoteFile, Watch
    from protofed.data.sources import DataSource


def get_command(
    name: Annotated[str, typer.Argument(help="A benchmark, or one of the digits' domains.")],
    to: Annotated[
        Path | None, typer.Option(help="Data folder; default: the one PROTOFED_DATA names.")
    ] = None,
    side: Annotated[
        int | None, typer.Option(min=8, max=512, help="Pixels of stored photographs; default 64.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Fetch and replace what is there.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before fetching.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Fetch a public benchmark, check it, and store it where protofed reads it.

    An interrupted download goes on where it stopped when the command is repeated.
    """
    from protofed.data.sources import SOURCES, sources_for

    names = sources_for(name)
    root = _root(to)
    if side and not any(SOURCES[part].side for part in names):
        raise typer.BadParameter(f"the images of {name} keep their size; leave --side out")
    for part in names:
        _tell(part, SOURCES[part])
    _ask(yes)
    root.mkdir(parents=True, exist_ok=True)
    done = {part: _get(part, root, side, again) for part in names}
    if as_json:
        folders = {part: str(root / SOURCES[part].home.folder) for part in names}
        rows = [{"name": p, "folder": folders[p], "fetched": done[p]} for p in names]
        typer.echo(json.dumps({"to": str(root), "sets": rows}, indent=2))
    else:
        for part, fetched in done.items():
            where = root / SOURCES[part].home.folder
            typer.echo(f"{part}: {'stored in' if fetched else 'already in'} {where}")
    if os.environ.get("PROTOFED_DATA", "") != str(root):
        typer.echo(f"to use it: export PROTOFED_DATA={root}", err=True)


def _root(to: Path | None) -> Path:
    """The data folder that was asked for, or the usual one."""
    from protofed.core.errors import ProtofedError

    usual = os.environ.get("PROTOFED_DATA", "")
    if to is None and not usual:
        raise ProtofedError("where to? give --to FOLDER, or set PROTOFED_DATA to the data folder")
    return (to or Path(usual)).expanduser().absolute()


def _tell(name: str, source: DataSource) -> None:
    """Licence, source and size, on stderr."""
    from urllib.parse import urlsplit

    from protofed.data.sources import source_home

    files = source_home(name, source)
    hosts = dict.fromkeys(urlsplit(url).netloc for file in files for url in file.urls)
    size = f"about {max(1, source.size // 10**6):,} MB" if source.size else "size not told"
    lines = [
        f"{name}: {count_noun(len(files), 'file')}, {size}, from {', '.join(hosts)}",
        f"  licence: {source.licence}",
        f"  cite: {source.citation}",
    ]
    if any(not file.checksum for file in files):
        lines.append("  checksum: none is published; the first download's is kept to compare")
    typer.echo("\n".join(lines), err=True)


def _ask(yes: bool) -> None:
    """Go on only with a yes."""
    from protofed.core.errors import ProtofedError

    if yes:
        return
    if not sys.stdin.isatty():
        raise ProtofedError("nobody is there to ask whether the licence is fine: add --yes")
    if not typer.confirm("Fetch under these terms?", err=True):
        raise typer.Exit(1)


def _get(name: str, root: Path, side: int | None, again: bool) -> bool:
    """Fetch one set with a bar on stderr, or a line a file where that is no terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Bar

    from protofed.data.get import DownloadProgress
    from protofed.data.get import download_benchmark as get_set

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    more = (TransferSpeedColumn(), TimeRemainingColumn())
    with Bar(*columns, *more, console=console, disable=not console.is_terminal) as bar:

        def say(line: str) -> None:
            console.print(line, highlight=False, markup=False, soft_wrap=True)

        def begin(remote: RemoteFile) -> Watch:
            say(f"{name}: fetching {remote.name}")
            return _watch(bar, remote)

        try:
            return get_set(name, root, DownloadProgress(say, begin), side, again)
        except KeyboardInterrupt:
            say("stopped; the same command goes on from here")
            raise typer.Exit(130) from None


def _watch(bar: Progress, remote: RemoteFile) -> Watch:
    task = bar.add_task(remote.name, total=remote.size or None)

    def watch(done: int, total: int | None) -> None:
        bar.update(task, completed=done, total=total or remote.size or None)

    return watch
