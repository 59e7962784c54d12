"""The shape of the code: who may import whom, how long things are, how they are named."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from protofed.core.method import Method
from protofed.methods import METHODS

MOST_FUNCTION_LINES = 30
ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "protofed"
ROOMS = (  # each may import those before it that it names
    ("errors", ()),
    ("runtime", ("errors",)),
    ("core", ("errors", "runtime")),
    ("ops", ("errors", "core")),
    ("methods", ("core", "ops")),
    ("nets", ("errors", "runtime", "core")),
    ("data", ("errors", "runtime", "core")),
    ("engines", ("errors", "runtime", "core")),
    ("spec", ("errors", "runtime", "core", "methods", "nets", "data")),
    ("federation", ("errors", "runtime", "core", "methods", "nets", "data", "engines", "spec")),
    ("testing", ("core", "engines", "federation")),
    (
        "experiment",
        ("errors", "runtime", "core", "methods", "data", "engines", "spec", "federation"),
    ),
    ("tracking", ("errors", "runtime", "spec", "federation", "experiment")),
    (
        "analysis",
        ("errors", "runtime", "core", "methods", "spec", "federation", "experiment", "tracking"),
    ),
    (
        "paper_tables",
        (
            *("errors", "runtime", "core", "methods", "data", "spec", "federation"),
            *("experiment", "analysis"),
        ),
    ),
    (
        "figures",
        (
            *("errors", "runtime", "core", "ops", "methods", "data", "spec"),
            *("federation", "experiment", "analysis"),
        ),
    ),
    (
        "paper_figures",
        (
            *("errors", "runtime", "core", "data", "spec", "experiment", "analysis"),
            *("paper_tables", "figures"),
        ),
    ),
    ("report", ("errors", "runtime", "spec", "federation", "experiment", "analysis")),
    (
        "export",
        ("errors", "runtime", "core", "data", "spec", "federation", "experiment", "figures"),
    ),
    (
        "deploy",
        (
            *("errors", "runtime", "core", "nets", "data", "engines", "spec", "federation"),
            "experiment",
        ),
    ),
    (
        "cli",
        (
            *("", "errors", "runtime", "core", "methods", "data", "spec", "federation"),
            *("experiment", "tracking", "analysis", "paper_tables", "figures", "paper_figures"),
            *("report", "export", "deploy"),
        ),
    ),
    (
        "",
        (
            *("errors", "runtime", "core", "methods", "data", "testing", "spec", "experiment"),
            *("analysis", "cli"),
        ),
    ),
)
MAY_IMPORT = {
    room: {room, *others} - ({"methods"} if room == "methods" else set()) for room, others in ROOMS
}


def imported(file: Path) -> set[str]:
    """The modules of protofed that a file imports, wherever in it."""
    return {name for name in every_import(file) if name.split(".")[0] == "protofed"}


def every_import(file: Path) -> set[str]:
    """The full names of all that a file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: write imports in full"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return names


def package_of(module: str) -> str:
    """The package that a full name lies in: ``protofed.core.tree`` is in ``core``."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in MAY_IMPORT else ""


def relative(file: Path) -> str:
    return str(file.relative_to(SOURCE))


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=relative)
def test_imports_go_one_way(file: Path) -> None:
    home = package_of(".".join(("protofed", *file.relative_to(SOURCE).with_suffix("").parts)))
    allowed = set(MAY_IMPORT[home])
    if file == SOURCE / "methods" / "__init__.py":
        allowed.add("methods")  # the list of all; no method imports another
    for name in imported(file):
        assert package_of(name) in allowed, f"{home or 'protofed'} must not import {name}"


def test_every_room_has_a_rule_and_imports_go_down_only() -> None:
    packages = {folder.name for folder in SOURCE.iterdir() if (folder / "__init__.py").exists()}
    assert packages | {"errors", ""} == set(MAY_IMPORT)
    known = {""}
    for room, others in ROOMS:
        assert set(others) <= known, f"{room} imports what stands above it"
        known.add(room)


def body_lines(function: ast.FunctionDef) -> int:
    """The lines of a function without its signature and docstring."""
    return sum((s.end_lineno or 0) - s.lineno + 1 for s in function.body if not is_text(s))


def is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def test_no_function_is_too_long() -> None:
    long = [
        f"{file.name}:{node.name}"
        for file in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.FunctionDef) and body_lines(node) > MOST_FUNCTION_LINES
    ]
    assert long == []


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_found_by_its_name(name: str) -> None:
    method = METHODS[name]
    assert method.__name__.lower() == name
    assert method.__module__ == f"protofed.methods.{name}"
    assert method.__bases__ == (Method,), "subclass Method alone; take another method as a field"
    assert (ROOT / "tests" / "methods" / f"test_{name}.py").exists()
    page = ROOT / "docs" / "methods" / f"{name}.md"
    assert method.info.label in page.read_text().splitlines()[0]


def test_methods_are_listed_in_order_and_all() -> None:
    files = {file.stem for file in (SOURCE / "methods").glob("*.py")} - {"__init__"}
    assert list(METHODS) == sorted(files)


def texts(file: Path) -> list[str]:
    """The strings of a file, without its docstrings."""
    found = ast.parse(file.read_text())
    docs = {
        id(node.body[0].value)
        for node in ast.walk(found)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    nodes = [node for node in ast.walk(found) if isinstance(node, ast.Constant)]
    return [n.value for n in nodes if isinstance(n.value, str) and id(n) not in docs]


ORDINARY_WORDS = {"local", "moon"}  # method names that are English words or names of nets, too
MAY_NAME_METHODS = {  # file: why
    "cli/compare.py": "examples in its help",
    "spec/experiment_spec.py": "the default method of a spec",
    "spec/method_lookup.py": "the default method of a spec",
    "spec/spec_parser.py": "the default method of a spec",
}


def test_no_module_outside_methods_names_a_method() -> None:
    names = METHODS.keys() - ORDINARY_WORDS
    for file in SOURCE.rglob("*.py"):
        if file.parent.name == "methods" or relative(file) in MAY_NAME_METHODS:
            continue
        words = {word for text in texts(file) for word in re.findall(r"[\w-]+", text.lower())}
        words |= {name.rpartition(".methods.")[2].split(".")[0] for name in imported(file)}
        assert not words & names, f"{relative(file)}: fix the contract, or choose by a property"


STARTS_PROCESSES = {
    "code_fingerprint",
    "join",
    "serve",
    "gate",
    "confine",
    "flower_server",
    "child_process",
}


def test_no_flag_is_named_outside_the_command_line() -> None:
    flag = re.compile(r"(?<![\w-])--[a-z]")
    for file in SOURCE.rglob("*.py"):
        if file.parent.name != "cli" and file.stem not in STARTS_PROCESSES:
            named = [text for text in texts(file) if flag.search(text)]
            assert named == [], f"{relative(file)}: give the error a hint with <option>"


TWO_HOMES = {"main": "the command line, and a module that is started by itself"}


def test_a_public_name_has_one_home() -> None:
    homes: dict[str, list[str]] = {}
    for file in SOURCE.rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name[0] != "_":
                homes.setdefault(node.name, []).append(relative(file))
    twice = {name: files for name, files in homes.items() if len(files) > 1}
    assert twice.keys() <= TWO_HOMES.keys(), twice


def test_nothing_is_pickled() -> None:
    own_processes = SOURCE / "engines" / "multiprocess.py"  # reads only what its parent wrote
    for file in SOURCE.rglob("*.py"):
        pickles = "pickle" in {name.split(".")[0] for name in every_import(file)}
        assert pickles == (file == own_processes), file
        code = ast.parse(file.read_text())
        for node in ast.walk(code):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                assert "weights_only=True" in map(ast.unparse, node.keywords), file
        assert "allow_pickle=True" not in ast.unparse(code), file


def test_flower_is_imported_in_one_place() -> None:
    """Flower's internals change from release to release; one file has to follow them."""
    users = {
        relative(file)
        for file in SOURCE.rglob("*.py")
        if "flwr" in {name.split(".")[0] for name in every_import(file)}
    }
    assert users == {"deploy/flower_compat.py"}
