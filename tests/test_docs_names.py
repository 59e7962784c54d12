"""Every module, file and Python name that a page mentions exists.

The source is read with `ast`, not imported, so optional dependencies are not needed here.
"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "protofed"
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
CODE = re.compile(r"`([^`\n]+)`")
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
FILE = re.compile(r"[\w./-]+\.py")
COMMAND = re.compile(r"python -m ([a-z_.]+)")
FILE_ENDINGS = {"json", "jsonl", "toml", "md", "html", "npz", "onnx", "py", "png", "svg", "txt"}
SPEC_SECTIONS = {"data", "report", "spec"}  # packages whose names also begin fields and files
EXAMPLES = {"balanced", "test_balanced"}  # files that docs/add-a-method.md asks the reader to write


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of protofed, parsed, by its path below the package: ``core.tree``."""
    return {
        ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix("__init__").strip("."):
        ast.parse(file.read_text())
        for file in SOURCE.rglob("*.py")
    }  # fmt: skip


def members(body: list[ast.stmt]) -> dict[str, ast.stmt]:
    """What a module or a class defines or imports, by name."""
    found: dict[str, ast.stmt] = {}
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
        elif isinstance(node, ast.Assign):
            found |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom | ast.Import):
            found |= {alias.asname or alias.name: node for alias in node.names}
        elif isinstance(node, ast.If):
            found |= members(node.body)
    return found


@cache
def classes() -> dict[str, list[ast.ClassDef]]:
    """Every top-level class of protofed by its name."""
    found: dict[str, list[ast.ClassDef]] = {}
    for module in modules().values():
        for node in module.body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(node)
    return found


def has_member(node: ast.ClassDef, name: str) -> bool:
    """Whether a class, or a class of protofed that it derives from, has a member."""
    if name in members(node.body):
        return True
    bases = (ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases)
    return any(has_member(base, name) for word in bases for base in classes().get(word, []))


def exists(path: list[str]) -> bool:
    """Whether a path below protofed is a package, a module, a name in it or a class's member."""
    for cut in range(len(path), -1, -1):
        module = modules().get(".".join(path[:cut]))
        if module is not None:
            rest = path[cut:]
            found = members(module.body)
            if not rest:
                return True
            if len(rest) == 1:
                return rest[0] in found
            owner = found.get(rest[0])
            return isinstance(owner, ast.ClassDef) and has_member(owner, rest[1])
    return False


def unknown_names(text: str) -> list[str]:
    """The dotted names in a page's inline code that do not lead anywhere in protofed."""
    bad = []
    packages = {name.split(".")[0] for name in modules()} - {""}
    for code in CODE.findall(FENCE.sub("", text)):
        for name in DOTTED.findall(code):
            first, *rest = name.split(".")
            if rest[-1] in FILE_ENDINGS:
                continue
            if first == "protofed":
                bad += [] if exists(rest) else [name]
            elif first in packages and (
                first not in SPEC_SECTIONS or f"{first}.{rest[0]}" in modules()
            ):
                bad += [] if exists([first, *rest]) else [name]
            elif first in classes():
                bad += [] if any(has_member(c, rest[0]) for c in classes()[first]) else [name]
    return bad


def missing_files(text: str) -> list[str]:
    """The Python files in a page's inline code that are not in the repository."""
    bad = []
    for code in CODE.findall(FENCE.sub("", text)):
        for name in FILE.findall(code):
            example = name.startswith("path/to/") or Path(name).stem in EXAMPLES
            folders = () if example or "/" not in name else (ROOT, SOURCE)
            if folders and not any((folder / name).exists() for folder in folders):
                bad.append(name)
    return bad


def missing_commands(text: str) -> list[str]:
    """The modules that a page runs with ``python -m`` and that are not there."""
    return [
        name
        for name in COMMAND.findall(text)
        if (ROOT / name.split(".")[0]).is_dir()
        and not (ROOT / name.replace(".", "/")).with_suffix(".py").exists()
        and not (ROOT / name.replace(".", "/") / "__main__.py").exists()
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_only_what_exists(page: Path) -> None:
    text = page.read_text()
    assert unknown_names(text) + missing_files(text) + missing_commands(text) == []


def test_wrong_names_are_found() -> None:
    wrong = (
        "`protofed.core.nothing`",
        "`core.tree.nothing`",
        "`ops.nothing`",
        "`FedAvg.nothing`",
        "`Prototypes.dense`",
    )
    for text in wrong:
        assert unknown_names(text), text
    assert missing_files("`core/nothing.py`")
    assert missing_files("`tests/test_nothing.py`")
    assert missing_commands("python -m benchmarks.nothing")


def test_right_names_are_not() -> None:
    right = (
        "`protofed.testing.check_method`, `core.method.average_models`, `FedProx.loss`, "
        "`FedProx.train`, `data.side`, `spec.json`, `training.lr`, `protofed.Data`, `core/tree.py`"
    )
    assert unknown_names(right) + missing_files(right) == []
    assert missing_commands("python -m benchmarks.packing; python -m faults; python -m venv") == []
