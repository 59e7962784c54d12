"""``protofed data``: the benchmarks there are, what they hold, and how to download them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protofed.cli.options import (
    FormatOption,
    JsonOption,
    JsonRecordOption,
    PlainCommand,
    chosen_format,
)
from protofed.errors import count_noun

if TYPE_CHECKING:
    from rich.progress import Progress

    from protofed.analysis.suggestion_trial import SuggestionTrial
    from protofed.core.method import Condition
    from protofed.data.benchmark_info import BenchmarkInfo
    from protofed.data.diagnostics import Diagnosis, Finding
    from protofed.data.download import DataSource
    from protofed.data.http_download import RemoteFile, Watch

data_app = typer.Typer(
    help="List the benchmarks; show, check or download one; show or check a folder of your data.",
    rich_markup_mode=None,
    suggest_commands=False,
    no_args_is_help=True,
)


@data_app.command("list", cls=PlainCommand)
def list_data(form: FormatOption = "terminal", as_json: JsonOption = False) -> None:
    """List every benchmark with its domains, and where its images come from.

    Benchmarks without images are shown with the command that downloads them.
    """
    from protofed.cli.output import print_document
    from protofed.data.benchmarks import BENCHMARKS
    from protofed.runtime.text_tables import TableDocument, TextTable

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
    table = TextTable(["name", "domains", "classes", "pixels", "images from"], cells)
    print_document(TableDocument([table], rows), chosen_format(form, as_json))


@data_app.command("show", cls=PlainCommand)
def show_data(
    name: Annotated[str, typer.Argument(help="Benchmark, or folder of images or arrays.")],
    picture: Annotated[
        Path | None, typer.Option(help="Write a PNG with an image of each class and domain.")
    ] = None,
    as_json: JsonRecordOption = False,
) -> None:
    """Count a benchmark's images by domain and list what to know about them.

    A folder of images or arrays works too: name its path.
    """
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
    """Where a benchmark's images are, or how to get them."""
    from protofed.data.download import how_to_get

    if not entry.needs_data:
        return "built in"
    return how_to_get(entry.name) if _missing(entry) else "PROTOFED_DATA"


def get_command(
    name: Annotated[str, typer.Argument(help="A benchmark, or one of the digits' domains.")],
    to: Annotated[
        Path | None, typer.Option(help="Data folder; default: the one PROTOFED_DATA names.")
    ] = None,
    side: Annotated[
        int | None, typer.Option(min=8, max=512, help="Pixels of stored photographs; default 64.")
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Download again and replace what is there.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", help="Accept the licence without being asked.")
    ] = False,
    as_json: JsonRecordOption = False,
) -> None:
    """Download a public benchmark, verify it, and store it where protofed reads it.

    Repeat the command to resume an interrupted download.
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
        raise ProtofedError("no data folder: pass --to FOLDER, or set PROTOFED_DATA")
    return (to or Path(usual)).expanduser().absolute()


def _tell(name: str, source: DataSource) -> None:
    """Licence, source and size, on stderr."""
    from urllib.parse import urlsplit

    from protofed.data.download import source_files

    files = source_files(name, source)
    hosts = dict.fromkeys(urlsplit(url).netloc for file in files for url in file.urls)
    size = f"about {max(1, source.size // 10**6):,} MB" if source.size else "size unknown"
    lines = [
        f"{name}: {count_noun(len(files), 'file')}, {size}, from {', '.join(hosts)}",
        f"  licence: {source.licence}",
        f"  cite: {source.citation}",
    ]
    if any(not file.checksum for file in files):
        lines.append("  checksum: none is published; the first download's is kept to compare")
    typer.echo("\n".join(lines), err=True)


def _ask(yes: bool) -> None:
    """Ask for a yes, unless it was given."""
    from protofed.errors import ProtofedError

    if yes:
        return
    if not sys.stdin.isatty():
        raise ProtofedError("no terminal to confirm the licence; pass --yes to accept it")
    if not typer.confirm("Fetch under these terms?", err=True):
        raise typer.Exit(1)


def _get(name: str, root: Path, side: int | None, again: bool) -> bool:
    """Download one set with a bar on stderr, or one line per file where that is no terminal."""
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
            say("stopped; the same command resumes the download")
            raise typer.Exit(130) from None


def _watch(bar: Progress, remote: RemoteFile) -> Watch:
    task = bar.add_task(remote.name, total=remote.size or None)

    def watch(done: int, total: int | None) -> None:
        bar.update(task, completed=done, total=total or remote.size or None)

    return watch


MOST_DETAILS = 20  # of one finding; bad files are all named


def doctor_command(
    path: Annotated[str, typer.Argument(help="Folder of images or arrays, or a benchmark.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write a spec to start from, as TOML.")
    ] = None,
    trial: Annotated[
        bool,
        typer.Option(
            "--trial", help="Try the spec for about a minute on held-out training images."
        ),
    ] = False,
    as_json: JsonRecordOption = False,
) -> None:
    """Count images, find bad files and duplicates, measure the shift, and suggest a spec.

    Findings are sorted by severity, each with what to do. The exit code is 0. With --trial the
    suggestion is trained beside plain averaging, and plain averaging is suggested if it did better.
    """
    from protofed.data.diagnostics import diagnose_benchmark
    from protofed.errors import ProtofedError

    if out and not out.absolute().parent.is_dir():  # reported before the work
        raise ProtofedError(
            f"-o {out}: there is no folder {out.absolute().parent}; create it first"
        )
    found = diagnose_benchmark(path)
    tried = _try(found) if trial and found.spec else None
    if tried and tried.refuted:
        found = found.plainer()
    _print(found, as_json, tried)
    if out and found.spec:
        _write(out, found.spec)
    if as_json:
        return
    if out:
        said = f"protofed run --spec {out}" if found.spec else "no spec: see above"
        typer.echo(f"\n{said}")
    elif found.spec:
        typer.echo(f"\nsuggested spec (-o FILE writes it):\n\n{found.spec}", nl=False)
    if found.spec and found.conditions:
        names = " ".join(_methods_to_compare(found.conditions))
        typer.echo(f"\nprotofed compare {names} --seeds 3 --spec {out or 'FILE'}")


def _methods_to_compare(conditions: Sequence[Condition]) -> list[str]:
    """Plain averaging, then the methods that were made for what the data are like."""
    from protofed.methods import METHODS
    from protofed.spec.experiment_spec import Experiment
    from protofed.spec.method_lookup import method_name

    suited = [n for n, method in METHODS.items() if {*method.info.suits} & {*conditions}]
    return [method_name(Experiment().method), *suited]


def _write(out: Path, spec: str) -> None:
    """Write a spec, but not over another one, which somebody may have edited."""
    from protofed.errors import ProtofedError
    from protofed.runtime.atomic_io import atomic_write

    if out.exists() and out.read_bytes() != spec.encode():
        raise ProtofedError(
            f"{out} exists with other content and was not changed",
            hint="remove it, or choose another <out>",
        )
    atomic_write(out, spec.encode())


def _try(found: Diagnosis) -> SuggestionTrial:
    """Train the suggestion and plain averaging for about a minute together."""
    import tempfile
    import tomllib

    from protofed.analysis.suggestion_trial import try_suggestion

    typer.echo("trying the suggested spec for about a minute ...", err=True)
    with tempfile.TemporaryDirectory() as folder:
        specs = tomllib.loads(found.spec), tomllib.loads(found.plain_spec)
        return try_suggestion(*specs, Path(folder))


def _print(found: Diagnosis, as_json: bool, tried: SuggestionTrial | None) -> None:
    if as_json:
        trial = {"trial": tried.to_dict()} if tried else {}
        typer.echo(json.dumps({**found.to_dict(), **trial}, indent=2))
        return
    _print_counts(found)
    for number, finding in enumerate(found.findings, start=1):
        _print_finding(number, finding)
    if tried:
        from protofed.cli.output import print_document
        from protofed.runtime.text_tables import TableDocument

        typer.echo("")
        print_document(TableDocument([tried.table()], [], notes=[tried.summary()]), "terminal")


def _print_counts(found: Diagnosis) -> None:
    from protofed.cli.output import print_table

    typer.echo(f"{found.name}: {found.examples} to train + to test")
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
        sees = "edges and colours" if found.examples == "images" else "the numbers"
        typer.echo(f"\naccuracy in % of a linear probe on {sees}, each learnt from")
        many = f"{found.shift.images} {found.examples}"
        typer.echo(f"{many} of one domain (rows) and tested on all (columns)")
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


def embed_command(
    data: Annotated[str, typer.Argument(help="Benchmark, or folder of images.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the arrays.")],
    net: Annotated[
        str, typer.Option(help="Net whose encoder gives the features.")
    ] = "efficientnet-lite0",
    pretrained: Annotated[str, typer.Option(help="File of its weights, or imagenet.")] = "imagenet",
    side: Annotated[
        int | None, typer.Option(min=8, max=512, help="Pixels of a side; default: the data's.")
    ] = None,
    channels: Annotated[int, typer.Option(min=1, max=3, help="1 or 3, of the net's input.")] = 3,
) -> None:
    """Compute the features of all images once, and store them as data of their own.

    The folder is then the data of a run: `protofed run --data FOLDER`.
    """
    from protofed.federation.stored_features import embed_data
    from protofed.spec.spec_parser import parse_experiment

    seen = {"name": data, "channels": channels, **({"side": side} if side else {})}
    start = {"net": net, "pretrained": pretrained, "train": "head", "feature_views": 1}
    pack = embed_data(parse_experiment({"data": seen, **start}), out)
    for name, domain in pack.meta.domains.items():
        typer.echo(f"{name}: {domain.train} to train, {domain.test} to test")
    typer.echo(f"rows of {' x '.join(map(str, pack.meta.shape))} numbers in {pack.place}")


data_app.command("doctor", cls=PlainCommand)(doctor_command)
data_app.command("embed", cls=PlainCommand)(embed_command)
data_app.command("get", cls=PlainCommand)(get_command)
