"""``protofed methods`` and ``protofed data``: what there is, what it is like, and how to get it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protofed.cli.typer_fixes import PlainCommand
from protofed.errors import count_noun

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo
    from rich.progress import Progress

    from protofed.core.method import AnyMethod
    from protofed.data.benchmark_info import BenchmarkInfo
    from protofed.data.diagnostics import Diagnosis, Finding
    from protofed.data.download import DataSource
    from protofed.data.http_download import RemoteFile, Watch

methods_app = typer.Typer(
    help="List the methods, or show one.", rich_markup_mode=None, suggest_commands=False
)
data_app = typer.Typer(
    help="List the benchmarks, show one or a folder of images, examine it, or fetch one.",
    rich_markup_mode=None,
    suggest_commands=False,
    no_args_is_help=True,
)

Json = Annotated[bool, typer.Option("--json", help="Print as JSON.")]


@methods_app.callback(invoke_without_command=True)
def methods_command(context: typer.Context, as_json: Json = False) -> None:
    """List every method with its paper and what it sends."""
    if context.invoked_subcommand:
        if as_json:
            raise typer.BadParameter(f"write --json after {context.invoked_subcommand}")
        return
    _print_methods(as_json)


def _print_methods(as_json: bool) -> None:
    from protofed.cli.output import print_table
    from protofed.methods import METHODS

    rows = [_about(name, method) for name, method in METHODS.items()]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    columns = ["name", "method", "family", "venue", "year", "sends up", "sends down", "needs"]
    cells = [
        [
            *(str(r[key] or "") for key in ("name", "label", "family", "venue", "year")),
            _join(r["up"]),
            _join(r["down"]),
            ", ".join(r["needs"]),
        ]
        for r in rows
    ]
    print_table(columns, cells)


@methods_app.command("list", cls=PlainCommand)
def list_methods(as_json: Json = False) -> None:
    """List every method with its paper and what it sends, as `protofed methods` does."""
    _print_methods(as_json)


@methods_app.command("show", cls=PlainCommand)
def show_method(
    name: Annotated[str, typer.Argument(help="Its name, see `protofed methods`.")],
    as_json: Json = False,
) -> None:
    """Print a method's paper, its hyperparameters and their defaults."""
    from protofed.cli.output import print_table
    from protofed.errors import require_known_name
    from protofed.methods import METHODS

    method = METHODS[require_known_name("method", name, METHODS)]
    about = _about(name, method)
    if as_json:
        typer.echo(json.dumps(about, indent=2))
        return
    typer.echo(f"{about['label']}: {method.__doc__}")
    typer.echo(f"{about['title']}. {about['venue']} {about['year'] or ''} {about['link']}".rstrip())
    if about["caveat"]:
        typer.echo(f"* {about['caveat']}")
    typer.echo(f"sends up: {_join(about['up'])}; sends down: {_join(about['down'])}")
    typer.echo(f"needs: {_join(about['needs'])}")
    if about["fields"]:
        typer.echo()
        cells = [[f["name"], str(f["default"]), f["meaning"]] for f in about["fields"]]
        print_table(["--set method.", "default", "meaning"], cells)


@data_app.command("list", cls=PlainCommand)
def list_data(as_json: Json = False) -> None:
    """List every benchmark."""
    from protofed.cli.output import print_table
    from protofed.data.benchmarks import BENCHMARKS

    rows = [
        {
            "name": entry.name,
            "domains": list(entry.domains),
            "on_request": list(entry.on_request),
            "classes": len(entry.classes),
            "side": entry.side,
            "needs_data": entry.needs_data,
            "missing": _missing(entry),
            "summary": entry.summary,
        }
        for entry in BENCHMARKS.values()
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    cells = [
        [
            str(r["name"]),
            ", ".join([*entry.domains, *(f"{name} (on request)" for name in entry.on_request)]),
            str(r["classes"]),
            str(r["side"]),
            _whence(entry),
        ]
        for r, entry in zip(rows, BENCHMARKS.values(), strict=True)
    ]
    print_table(["name", "domains", "classes", "pixels", "images from"], cells)


@data_app.command("show", cls=PlainCommand)
def show_data(
    name: Annotated[str, typer.Argument(help="Benchmark, or folder of images.")],
    picture: Annotated[
        Path | None, typer.Option(help="Write a PNG with an image of each class and domain.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Count a benchmark's images by domain, and say what to know about them."""
    from protofed.cli.output import echo_line, print_table
    from protofed.data.benchmarks import benchmark_info

    entry = benchmark_info(name)
    benchmark = entry.load()
    if picture:
        from protofed.data.diagnostics import contact_sheet

        contact_sheet(benchmark, picture)
        typer.echo(f"wrote {picture}", err=True)
    counts = {d.name: {"train": len(d.train), "test": len(d.test)} for d in benchmark.domains}
    notes = [*entry.general_notes, *(f"{d.name}: {d.note}" for d in benchmark.domains if d.note)]
    if as_json:
        content = {"name": name, "classes": list(benchmark.classes), "domains": counts}
        typer.echo(json.dumps({**content, "notes": notes}, indent=2))
        return
    typer.echo(f"{name}: {entry.summary}")
    cells = [[domain, str(c["train"]), str(c["test"])] for domain, c in counts.items()]
    print_table(["domain", "train", "test"], cells)
    echo_line(f"classes: {', '.join(benchmark.classes)}")
    typer.echo(f"default net: {entry.net}; default partition: {entry.default_partition()}")
    for note in notes:
        echo_line(f"note: {note}")


def _missing(entry: BenchmarkInfo) -> list[str]:
    """The domains or sets that `protofed data get` would fetch; none on request only."""
    from protofed.data.download import missing_sources

    return [name for name in missing_sources(entry.name) if name not in entry.on_request]


def _whence(entry: BenchmarkInfo) -> str:
    """Where a benchmark's images are, or the command that fetches them."""
    if not entry.needs_data:
        return "built in"
    return f"protofed data get {entry.name}" if _missing(entry) else "PROTOFED_DATA"


def _about(name: str, method: type[AnyMethod]) -> dict[str, Any]:
    """All that is known of a method without running it."""
    about = {"name": name, **method.info._asdict(), "summary": method.__doc__}
    made = method()
    about |= {**made.payload._asdict(), "needs": list(made.needs)}
    known: dict[str, FieldInfo] = vars(method)["__pydantic_fields__"]
    return {**about, "fields": [_field(name, info) for name, info in known.items()]}


def _field(name: str, info: FieldInfo) -> dict[str, Any]:
    """A hyperparameter: its name, default and meaning."""
    from protofed.core.method import Method
    from protofed.spec.experiment_spec import method_name

    default = method_name(info.default) if isinstance(info.default, Method) else info.default
    return {"name": name, "default": default, "meaning": info.description or ""}


def _join(parts: list[str]) -> str:
    return ", ".join(parts) or "nothing"


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
    from protofed.data.download import SOURCES, sources_for

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
    from protofed.errors import ProtofedError

    usual = os.environ.get("PROTOFED_DATA", "")
    if to is None and not usual:
        raise ProtofedError("where to? give --to FOLDER, or set PROTOFED_DATA to the data folder")
    return (to or Path(usual)).expanduser().absolute()


def _tell(name: str, source: DataSource) -> None:
    """Licence, source and size, on stderr."""
    from urllib.parse import urlsplit

    from protofed.data.download import source_files

    files = source_files(name, source)
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
    from protofed.errors import ProtofedError

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

    from protofed.data.download import DownloadProgress
    from protofed.data.download import download_benchmark as get_set

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


MOST_DETAILS = 20  # of one finding; bad files are all named


def doctor_command(
    path: Annotated[str, typer.Argument(help="Folder of images, or a benchmark.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Write a spec to begin with, as TOML.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all findings as JSON.")] = False,
) -> None:
    """Count images, find bad files and duplicates, measure the shift, and suggest a spec.

    Findings stand in the order of how bad they are, each with what to do. The exit code is 0.
    """
    from protofed.data.diagnostics import diagnose_benchmark
    from protofed.errors import ProtofedError

    if out and not out.absolute().parent.is_dir():  # told before the work
        raise ProtofedError(f"-o {out}: there is no folder {out.absolute().parent}; make it first")
    found = diagnose_benchmark(path)
    _print(found, as_json)
    if out and found.spec:
        _write(out, found.spec)
    if as_json:
        return
    if out:
        said = f"protofed run --spec {out}" if found.spec else "no spec: see above"
        typer.echo(f"\n{said}")
    elif found.spec:
        typer.echo(f"\nsuggested spec (-o FILE writes it):\n\n{found.spec}", nl=False)


def _write(out: Path, spec: str) -> None:
    """Write a spec, but not over another one, which somebody may have edited."""
    from protofed.errors import ProtofedError
    from protofed.runtime.atomic_io import atomic_write

    if out.exists() and out.read_bytes() != spec.encode():
        raise ProtofedError(
            f"{out} is there, says something else, and was left as it is\n"
            f"remove it, or give -o another file"
        )
    atomic_write(out, spec.encode())


def _print(found: Diagnosis, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2))
        return
    _print_counts(found)
    for number, finding in enumerate(found.findings, start=1):
        _print_finding(number, finding)


def _print_counts(found: Diagnosis) -> None:
    from protofed.cli.output import print_table

    typer.echo(f"{found.name}: images to train + to test")
    if found.counts:
        domains = list(found.counts)
        classes = list(found.counts[domains[0]])
        rows = [[n, *("{}+{}".format(*found.counts[d][n]) for d in domains)] for n in classes]
        totals = [
            "+".join(str(sum(pair[part] for pair in found.counts[d].values())) for part in (0, 1))
            for d in domains
        ]
        print_table(["class", *domains], [*rows, ["all", *totals]], line_before=len(rows))
    if found.shift:
        typer.echo("\naccuracy in % of a linear probe on edges and colours, each learnt from")
        typer.echo(f"{found.shift.images} images of one domain (rows) and tested on all (columns)")
        domains = list(found.shift.accuracy)
        rows = [
            [learnt, *(f"{row[tested]:.1f}" for tested in domains)]
            for learnt, row in found.shift.accuracy.items()
        ]
        print_table(["learnt on", *domains], rows)


def _print_finding(number: int, finding: Finding) -> None:
    typer.echo(f"\n{number}. {finding.grade}: {finding.title}")
    shown = finding.details if finding.grade in ("stop", "bad") else finding.details[:MOST_DETAILS]
    for detail in shown:
        typer.echo(f"   {detail}")
    if len(shown) < len(finding.details):
        typer.echo(f"   ... and {len(finding.details) - len(shown)} more: --json lists them")
    typer.echo(f"   -> {finding.advice}")


data_app.command("doctor", cls=PlainCommand)(doctor_command)
data_app.command("get", cls=PlainCommand)(get_command)
