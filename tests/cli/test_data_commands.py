from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from protofed import __version__
from protofed.core.method import Method
from protofed.data.benchmarks import BENCHMARKS, load_benchmark
from protofed.data.diagnostics import GAP, SCALE
from protofed.methods import METHODS
from protofed.spec.method_lookup import method_name
from tests.cli.conftest import Cli


def first_words(table: str) -> list[str]:
    """The first column of a printed table, without its head and rule."""
    return [row.split()[0] for row in table.splitlines()[2:]]


def test_the_version_is_the_package_s(cli: Cli) -> None:
    assert cli("--version") == (0, f"protofed {__version__}\n", "")


def test_the_commands_are_known_before_pydantic_is() -> None:
    code = "import sys, protofed.cli; print('pydantic' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("", ["run", "methods", "data", "--version"]),
        ("run", ["--method", "--data", "--spec", "--set", "--out", "--again", "--json"]),
        ("methods", ["show", "--json"]),
        ("methods show", ["NAME", "--json"]),
        ("data", ["list", "show", "get"]),
        ("data list", ["--json"]),
        ("data show", ["NAME", "--picture", "--json"]),
        ("data get", ["NAME", "--to", "--side", "--again", "--yes", "--json"]),
    ],
)
def test_every_command_explains_itself(cli: Cli, words: str, told: list[str]) -> None:
    ended = cli(*words.split(), "--help")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"Usage: {' '.join(['protofed', *words.split()])} ")
    for part in told:
        assert part in ended.out
    assert max(map(len, ended.out.splitlines())) <= 80


@pytest.mark.parametrize("words", ["data show", "compare", "keys", "join", "predict"])
def test_arguments_are_described(cli: Cli, words: str) -> None:
    ended = cli(*words.split(), "-h")
    told = ended.out.partition("Arguments:\n")[2].partition("\n\n")[0].splitlines()
    assert told
    assert ended.out.count("rguments:") == 1
    assert all(len(line.split("[required]")[0].split()) > 2 for line in told)
    assert "\\" not in ended.out


@pytest.mark.parametrize("words", ["", "data"])
def test_a_group_without_a_command_shows_its_help(cli: Cli, words: str) -> None:
    ended = cli(*words.split())
    assert ended.code == 2
    assert "Commands:" in ended.out + ended.err


def test_methods_lists_every_method(cli: Cli) -> None:
    ended = cli("methods")
    assert (ended.code, ended.err) == (0, "")
    assert first_words(ended.out) == list(METHODS)
    rows = dict(zip(METHODS, ended.out.splitlines()[2:], strict=True))
    fedavg = "fedavg FedAvg baseline AISTATS 2017 model model equal nets"
    assert " ".join(rows["fedavg"].split()) == fedavg
    assert " ".join(rows["local"].split()) == "local Local baseline nothing nothing"


def test_methods_as_json_hold_the_same(cli: Cli) -> None:
    rows = json.loads(cli("methods", "--json").out)
    assert cli("methods", "list", "--format", "csv").out.startswith("name,method,family,")
    assert cli("methods", "--format", "markdown").out.startswith("| name | method | family |")
    assert [row["name"] for row in rows] == list(METHODS)
    assert [row["label"] for row in rows] == [m.info.label for m in METHODS.values()]
    for row, method in zip(rows, METHODS.values(), strict=True):
        assert [f["name"] for f in row["fields"]] == [f.name for f in dataclasses.fields(method)]


@pytest.mark.parametrize("name", METHODS)
def test_show_prints_the_fields_with_the_defaults_that_a_run_takes(cli: Cli, name: str) -> None:
    method, about = METHODS[name](), METHODS[name].info
    shown = cli("methods", "show", name)
    assert (shown.code, shown.err) == (0, "")
    assert shown.out.startswith(f"{about.label}: ")
    assert about.title in shown.out
    described = json.loads(cli("methods", "show", name, "--json").out)
    assert described["name"] == name
    taken = {field.name: getattr(method, field.name) for field in dataclasses.fields(method)}
    taken = {k: method_name(v) if isinstance(v, Method) else v for k, v in taken.items()}
    assert {field["name"]: field["default"] for field in described["fields"]} == taken
    rows = [row.split()[:2] for row in shown.out.splitlines()]
    for field, default in taken.items():
        assert [field, str(default)] in rows


def test_data_list_names_every_benchmark_and_where_it_comes_from(cli: Cli) -> None:
    ended = cli("data", "list")
    assert (ended.code, ended.err) == (0, "")
    assert first_words(ended.out) == list(BENCHMARKS)
    rows = dict(zip(BENCHMARKS, ended.out.splitlines()[2:], strict=True))
    assert "optical, print, syn, street" in rows["digits-mini"]
    assert rows["digits-mini"].split()[-4:] == ["10", "32", "built", "in"]
    assert rows["pacs"].split()[-6:] == ["7", "64", "protofed", "data", "get", "pacs"]
    assert "syn, mnistm (on request)" in rows["digits"]


def test_data_list_as_json_holds_the_same(cli: Cli) -> None:
    rows = {row["name"]: row for row in json.loads(cli("data", "list", "--json").out)}
    assert list(rows) == list(BENCHMARKS)
    assert rows["pacs"]["domains"] == ["photo", "art", "cartoon", "sketch"]
    assert (rows["pacs"]["classes"], rows["pacs"]["side"]) == (7, 64)
    assert [name for name, row in rows.items() if not row["needs_data"]] == ["digits-mini"]
    assert rows["digits"]["on_request"] == ["mnistm"]


def test_data_show_counts_images(cli: Cli) -> None:
    counts = {d.name: [len(d.train), len(d.test)] for d in load_benchmark("digits-mini").domains}
    ended = cli("data", "show", "digits-mini")
    assert (ended.code, ended.err) == (0, "")
    rows = [row.split() for row in ended.out.splitlines()]
    for domain, (train, test) in counts.items():
        assert [domain, str(train), str(test)] in rows
    assert "classes: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9" in ended.out
    assert "note: made by protofed for quick runs; no paper reports it" in ended.out
    shown = json.loads(cli("data", "show", "digits-mini", "--json").out)
    assert {d: [c["train"], c["test"]] for d, c in shown["domains"].items()} == counts
    assert shown["classes"] == list("0123456789")
    assert shown["notes"] == list(BENCHMARKS["digits-mini"].notes)


def test_the_picture_has_a_cell_for_every_class_and_domain(cli: Cli) -> None:
    assert cli("data", "show", "digits-mini", "--picture", "sheet.png").code == 0
    with Image.open(Path("sheet.png")) as picture:
        assert picture.format == "PNG"
        assert picture.size == (10 * (32 + GAP) * SCALE, 4 * (32 + GAP) * SCALE)
        colours = picture.convert("RGB").getcolors(picture.width * picture.height)
    assert colours is not None
    assert len(colours) > 100  # images, not an empty sheet


def test_a_listing_for_another_program_has_no_escape_codes(cli: Cli) -> None:
    for words in (["methods"], ["methods", "show", "fedprox"], ["data", "list"]):
        assert "\x1b" not in cli(*words).out
