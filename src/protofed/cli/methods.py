"""``protofed methods``: the methods there are, and the paper and hyperparameters of one."""

from __future__ import annotations

import inspect
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protofed.cli.options import (
    FormatOption,
    JsonOption,
    JsonRecordOption,
    PlainCommand,
    chosen_format,
)

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from protofed.core.method import AnyMethod
    from protofed.runtime.text_tables import TableFormat

methods_app = typer.Typer(
    help="List the methods, or show one.", rich_markup_mode=None, suggest_commands=False
)
HEAD = ["name", "method", "family", "venue", "year", "sends up", "sends down", "needs"]


@methods_app.callback(invoke_without_command=True)
def methods_command(
    context: typer.Context, form: FormatOption = "terminal", as_json: JsonOption = False
) -> None:
    """List every method with its paper and what it sends.

    `protofed methods show NAME` prints one method with its hyperparameters.
    """
    if context.invoked_subcommand:
        if as_json or form != "terminal":
            word = "--json" if as_json else "--format"
            raise typer.BadParameter(f"write {word} after {context.invoked_subcommand}")
        return
    _print_methods(chosen_format(form, as_json))


@methods_app.command("list", cls=PlainCommand)
def list_methods(form: FormatOption = "terminal", as_json: JsonOption = False) -> None:
    """List every method with its paper and what it sends, as `protofed methods` does."""
    _print_methods(chosen_format(form, as_json))


def _print_methods(form: TableFormat) -> None:
    from protofed.cli.output import print_document
    from protofed.methods import METHODS
    from protofed.runtime.text_tables import TableDocument, TextTable

    rows = [method_record(name, method) for name, method in METHODS.items()]
    cells = [
        [
            *(str(r[key] or "") for key in ("name", "label", "family", "venue", "year")),
            _join(r["up"]),
            _join(r["down"]),
            ", ".join(r["needs"]),
        ]
        for r in rows
    ]
    print_document(TableDocument([TextTable(HEAD, cells)], rows), form)


@methods_app.command("show", cls=PlainCommand)
def show_method(
    name: Annotated[str, typer.Argument(help="Its name, see `protofed methods`.")],
    as_json: JsonRecordOption = False,
) -> None:
    """Print a method's paper, its hyperparameters and their defaults.

    Set a hyperparameter of a run with --set method.FIELD=VALUE.
    """
    from protofed.cli.output import print_table
    from protofed.core.method import FIELDS
    from protofed.spec.method_lookup import find_method_class

    method = find_method_class(name)
    about = method_record(name, method)
    if as_json:
        typer.echo(json.dumps(about, indent=2))
        return
    text = (inspect.getdoc(method) or "").partition(f"\n\n{FIELDS}")[0]  # they are in the table
    typer.echo(f"{about['label']}: {text}\n")
    typer.echo(f"{about['title']}. {about['venue']} {about['year'] or ''} {about['link']}".rstrip())
    if about["caveat"]:
        typer.echo(f"* {about['caveat']}")
    typer.echo(f"sends up: {_join(about['up'])}; sends down: {_join(about['down'])}")
    typer.echo(f"needs: {_join(about['needs'])}")
    if about["fields"]:
        typer.echo()
        cells = [[f["name"], str(f["default"]), f["meaning"]] for f in about["fields"]]
        print_table(["--set method.", "default", "meaning"], cells)


def method_record(name: str, method: type[AnyMethod]) -> dict[str, Any]:
    """What is known of a method without running it, as plain data.

    Its paper, what it sends and needs, and the name, default and meaning of each hyperparameter.
    """
    summary = (inspect.getdoc(method) or "").partition("\n")[0]
    about = {"name": name, **method.info._asdict(), "summary": summary}
    made = method()
    about |= {**made.payload._asdict(), "needs": list(made.needs)}
    known: dict[str, FieldInfo] = vars(method)["__pydantic_fields__"]
    return {**about, "fields": [_describe_field(name, info) for name, info in known.items()]}


def _describe_field(name: str, info: FieldInfo) -> dict[str, Any]:
    from protofed.core.method import Method
    from protofed.spec.method_lookup import method_name

    default = method_name(info.default) if isinstance(info.default, Method) else info.default
    return {"name": name, "default": default, "meaning": info.description or ""}


def _join(parts: list[str]) -> str:
    return ", ".join(parts) or "nothing"
