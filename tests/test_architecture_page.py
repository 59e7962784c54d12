"""docs/architecture.md and its picture say what the code says."""

from __future__ import annotations

import inspect
import itertools
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest

from protofed.core.method import Method

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "protofed"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
DRAWING = runpy.run_path(str(ROOT / "docs" / "draw_architecture.py"))
PACKAGES = sorted(path.parent.name for path in SOURCE.glob("*/__init__.py"))
HOP = re.compile(r"^\| (\d+) \| `([\w.]+)` \|", re.MULTILINE)

TRACE = """
import json, os, sys
from pathlib import Path
import protofed
from protofed.cli import main

source = os.path.dirname(protofed.__file__) + os.sep
order = {}

def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(source):
        module = code.co_filename[len(source):].removesuffix(".py").removesuffix("__init__")
        order.setdefault((module.strip(os.sep).replace(os.sep, ".") + "." + code.co_qualname))

sys.setprofile(note)
try:
    main()
finally:
    sys.setprofile(None)
    Path("trace.json").write_text(json.dumps(list(order)))
"""


def section(title: str, level: str = "##") -> str:
    """The text below a heading, up to the next heading of its level or above."""
    start = PAGE.index(f"{level} {title}\n") + len(level) + len(title) + 2
    end = re.search(rf"^#{{2,{len(level)}}} ", PAGE[start:], re.MULTILINE)
    return PAGE[start : start + end.start()] if end else PAGE[start:]


def test_the_picture_is_what_the_command_draws() -> None:
    assert DRAWING["main"](["--check"]) == 0, "run python docs/draw_architecture.py"


def test_the_picture_has_room_for_its_words() -> None:
    for name, place in DRAWING["PLACES"].items():
        assert len(place.text) <= 30, f"{name}: {place.text}"


def test_no_arrow_runs_through_a_box() -> None:
    imports = DRAWING["read_imports"]()
    level, places = DRAWING["layers"](imports), DRAWING["PLACES"]
    for home, other in DRAWING["needed_arrows"](imports):
        between = [name for name in imports if level[other] < level[name] < level[home]]
        hit = [name for name in between if places[name].column == places[other].column]
        assert hit == [], f"the arrow from {home} to {other} crosses {hit}"


def test_an_out_of_date_picture_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    main = DRAWING["main"]
    monkeypatch.setitem(main.__globals__, "PICTURE", tmp_path / "architecture.svg")
    assert main(["--check"]) == 1
    assert "out of date" in capsys.readouterr().err
    assert main([]) == 0
    assert main(["--check"]) == 0


def test_import_cycles_are_found() -> None:
    with pytest.raises(SystemExit, match="cycle"):
        DRAWING["layers"]({"a": {"b"}, "b": {"a"}})


def test_arrows_that_follow_from_others_are_left_out() -> None:
    imports = {"c": {"a", "b"}, "b": {"a"}, "a": set()}
    assert DRAWING["needed_arrows"](imports) == [("b", "a"), ("c", "b")]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_of_a_package_is_named(package: str) -> None:
    modules = {file.stem for file in (SOURCE / package).glob("*.py")} - {"__init__"}
    text = section(f"`{package}`", "###")
    listed = set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
    if not listed:
        listed = set(re.findall(r"`(\w+)`", text))
    assert listed == modules


def test_the_modules_outside_packages_are_named() -> None:
    text = section("The packages").split("### ")[0]
    for file in SOURCE.glob("*.py"):
        assert file.stem == "__init__" or f"`{file.stem}`" in text, file.name


def contract() -> tuple[dict[str, list[str]], set[str]]:
    """The hooks of `Method` with their positional arguments, and its properties and constants."""
    own = {name: value for name, value in vars(Method).items() if not name.startswith("_")}
    hooks = {
        name: [
            parameter.name
            for parameter in inspect.signature(value).parameters.values()
            if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.name != "self"
        ]
        for name, value in own.items()
        if isinstance(value, FunctionType)
    }
    values = {name for name, value in own.items() if isinstance(value, property)}
    return hooks, values | {"info", "ablations"}


def test_the_tables_of_hooks_are_the_contract() -> None:
    text = section("The contract")
    found = re.findall(r"^\| `(\w+)\(([^)]*)\)` \|", text, re.MULTILINE)
    listed = {name: arguments.removesuffix(", ...").split(", ") for name, arguments in found}
    hooks, values = contract()
    assert listed == hooks
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == values


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The functions of protofed in the order in which a small run first calls them."""
    folder = tmp_path_factory.mktemp("walk")
    command = ["run", "--method", "fedprox", "--data", "digits-mini", "--rounds", "1"]
    small = ["training.epochs=1", "partition.kind=shares", "partition.samples=20"]
    sets = [word for field in small for word in ("--set", field)]
    subprocess.run(
        [sys.executable, "-c", TRACE, *command, *sets, "--workers", "0", "--out", "run"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        check=True,
        capture_output=True,
        timeout=240,
    )
    assert (folder / "run" / "scores.jsonl").exists()
    names: list[str] = json.loads((folder / "trace.json").read_text())
    return names


def test_the_walk_is_walked_in_this_order(trace: list[str]) -> None:
    hops = [name for _, name in HOP.findall(section("The walk of one image"))]
    missing = [name for name in hops if name not in trace]
    assert missing == []
    # Helpers such as RunDir.append serve earlier steps too: their place is not their first call.
    reused = {"experiment.run_folder.RunDir.append", "runtime.atomic_io.append_durably"}
    places = [trace.index(name) for name in hops if name not in reused]
    assert places == sorted(places)


def test_the_walk_is_counted() -> None:
    text = section("The walk of one image")
    numbers = [int(number) for number, _ in HOP.findall(text)]
    homes = [name.split(".")[0] for _, name in HOP.findall(text)]
    assert numbers == list(range(1, len(numbers) + 1))
    changes = sum(here != there for here, there in itertools.pairwise(homes))
    assert f"That is {len(homes)} hops and {changes} changes of package." in text
