"""``protofed methods`` and ``protofed data``: what there is, and what it is like."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protofed.cli.doctor import doctor_command
from protofed.cli.get import get_command
from protofed.cli.plain import PlainCommand

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from protofed.core.method import AnyMethod
    from protofed.data.entry import BenchmarkInfo

methods_app = typer.Typer(
    help="List the methods, or show one.", rich_markup_mode=None, suggest_commands=False
)
data_app = typer.Typer(
    help="List the benchmarks, show one or a folder of images, examine it, or fetch one.",
    rich_markup_mode=None,
    suggest_commands=False,
    no_args_is_help=True,
)

data_app.command("doctor", cls=PlainCommand)(doctor_command)
data_app.command("get", cls=PlainCommand)(get_command)

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
    from protofed.cli.show import print_table
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
    from protofed.cli.show import print_table
    from protofed.core.errors import require_known_name
    from protofed.methods import METHODS

    method = METHODS[require_known_name("method", name, METHODS)]
    about = _about(name, method)
    if as_json:
        typer.echo(json.dumps(about, indent=2))
        return
    typer.echo(f"{about['label']}: {method.__doc__}")
    typer.echo(f"{about['title']}. {about['venue']} {about['year'] or ''} {about['link']}".rstrip())
    if about["star"]:
        typer.echo(f"* {about['star']}")
    typer.echo(f"sends up: {_join(about['up'])}; sends down: {_join(about['down'])}")
    typer.echo(f"needs: {_join(about['needs'])}")
    if about["fields"]:
        typer.echo()
        cells = [[f["name"], str(f["default"]), f["meaning"]] for f in about["fields"]]
        print_table(["--set method.", "default", "meaning"], cells)


@data_app.command("list", cls=PlainCommand)
def list_data(as_json: Json = False) -> None:
    """List every benchmark."""
    from protofed.cli.show import print_table
    from protofed.data.catalog import BENCHMARKS

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
    from protofed.cli.show import echo_line, print_table
    from protofed.data.catalog import benchmark_info

    entry = benchmark_info(name)
    benchmark = entry.load()
    if picture:
        from protofed.data.sheet import contact_sheet

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
    from protofed.data.sources import missing_sources

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
    from protofed.experiment.describe import method_name

    default = method_name(info.default) if isinstance(info.default, Method) else info.default
    return {"name": name, "default": default, "meaning": info.description or ""}


def _join(parts: list[str]) -> str:
    return ", ".join(parts) or "nothing"
