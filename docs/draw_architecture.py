"""Draw docs/architecture.svg from the imports in src/protofed.

    python docs/draw_architecture.py            # write the picture
    python docs/draw_architecture.py --check    # exit with 1 if it is out of date

A box is a package. An arrow points from a package to one that it imports. A package stands one
layer above the highest package it imports. Arrows that follow from others are left out: `cli`
imports `core` too, but that can be seen by following the arrows.
"""

from __future__ import annotations

import argparse
import ast
import sys
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "protofed"
PICTURE = ROOT / "docs" / "architecture.svg"


class Place(NamedTuple):
    """What a box says, and the column it stands in; its layer follows from the imports."""

    column: float
    text: str


PLACES = {
    "cli": Place(1, "commands and flags"),
    "export": Place(1, "model files, predictions"),
    "paper_figures": Place(0, "the papers' figures, redrawn"),
    "paper_tables": Place(0, "the papers' tables, run again"),
    "figures": Place(1, "plots of runs and models"),
    "report": Place(2, "one HTML page"),
    "tracking": Place(3, "logs in other programs"),
    "analysis": Place(1, "grids, statistics, tables"),
    "deploy": Place(3, "server and sites on Flower"),
    "api": Place(4, "imports for method authors"),
    "datasets": Place(0, "a user's own arrays"),
    "experiment": Place(2, "the loop and the run folder"),
    "testing": Place(4, "check_method"),
    "federation": Place(2, "sites, one round, scores"),
    "spec": Place(1, "what decides a run"),
    "methods": Place(2, "one file per paper"),
    "nets": Place(0, "the papers' networks"),
    "data": Place(1, "benchmarks and partitions"),
    "ops": Place(2, "parts that methods share"),
    "engines": Place(3, "where clients train"),
    "core": Place(2, "the method contract, tensors"),
    "runtime": Place(2, "files, processes, memory"),
    "errors": Place(2, "messages for people"),
}
FRONT = {"__init__", "__main__"}  # re-exports and entry points: they are not drawn

WIDTH, HEIGHT = 176, 42  # of a box
GAP_X, GAP_Y, MARGIN = 18, 30, 14

Imports = dict[str, set[str]]


def read_imports(source: Path = SOURCE) -> Imports:
    """The packages that each package imports, wherever in a file the import stands."""
    found: Imports = {name: set() for name in packages(source)}
    for file in sorted(source.rglob("*.py")):
        home = file.relative_to(source).with_suffix("").parts[0]
        if home in found:
            found[home] |= imported_packages(file, set(found)) - {home}
    return found


def packages(source: Path = SOURCE) -> list[str]:
    """The packages of protofed, and its single modules that are drawn as one."""
    folders = [path.parent.name for path in source.glob("*/__init__.py")]
    files = [path.stem for path in source.glob("*.py") if path.stem not in FRONT]
    return sorted(folders + files)


def imported_packages(file: Path, known: set[str]) -> set[str]:
    """The packages of protofed that one file imports."""
    names: list[str] = []
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    parts = [name.split(".") for name in names if name.startswith("protofed.")]
    return {part[1] for part in parts} & known


def layers(imports: Imports) -> dict[str, int]:
    """The layer of each package, 0 at the bottom; an import cycle is an error."""
    found: dict[str, int] = {}
    while len(found) < len(imports):
        ready = [name for name in imports if name not in found and imports[name] <= set(found)]
        if not ready:
            raise SystemExit(f"import cycle among {sorted(set(imports) - set(found))}")
        for name in ready:
            found[name] = 1 + max((found[other] for other in imports[name]), default=-1)
    return found


def reachable(imports: Imports, start: str) -> set[str]:
    """Every package that `start` imports, directly or not."""
    found: set[str] = set()
    waiting = list(imports[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += imports[name]
    return found


def needed_arrows(imports: Imports) -> list[tuple[str, str]]:
    """The imports that do not follow from others, sorted."""
    return sorted(
        (home, other)
        for home, others in imports.items()
        for other in others
        if not any(other in reachable(imports, third) for third in others - {other})
    )


def draw(imports: Imports) -> str:
    """The picture as SVG text; equal imports give equal bytes."""
    if unplaced := set(imports) ^ set(PLACES):
        raise SystemExit(f"PLACES in {Path(__file__).name} does not fit: {sorted(unplaced)}")
    level = layers(imports)
    top = max(level.values())
    corner = {name: _corner(name, top - level[name]) for name in imports}
    columns = max(place.column for place in PLACES.values())
    width = int(2 * MARGIN + (columns + 1) * WIDTH + columns * GAP_X)
    height = 2 * MARGIN + (top + 1) * HEIGHT + top * GAP_Y
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="Helvetica, Arial, sans-serif">',
        "<title>The packages of protofed; an arrow points to what is imported</title>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0 8 4 0 8z" fill="#5b6770"/></marker></defs>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        *(_arrow(corner[home], corner[other]) for home, other in needed_arrows(imports)),
        *(_box(name, *corner[name]) for name in PLACES),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _corner(name: str, row: int) -> tuple[int, int]:
    """The upper left corner of a box."""
    x = MARGIN + PLACES[name].column * (WIDTH + GAP_X)
    return round(x), MARGIN + row * (HEIGHT + GAP_Y)


def _box(name: str, x: int, y: int) -> str:
    middle = x + WIDTH // 2
    return (
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="5" fill="#eef4f8" '
        f'stroke="#33607f"/><text x="{middle}" y="{y + 18}" text-anchor="middle" font-size="14" '
        f'font-weight="bold" fill="#12293a">{name}</text>'
        f'<text x="{middle}" y="{y + 34}" text-anchor="middle" font-size="11" '
        f'fill="#3b4a55">{escape(PLACES[name].text, quote=False)}</text>'
    )


def _arrow(start: tuple[int, int], end: tuple[int, int]) -> str:
    """Down from one box, across below it, and down in the other box's column."""
    x, y = start[0] + WIDTH // 2, start[1] + HEIGHT
    to_x, to_y = end[0] + WIDTH // 2, end[1]
    path = f"M{x} {y}V{to_y}" if x == to_x else f"M{x} {y}V{y + GAP_Y // 2}H{to_x}V{to_y}"
    return f'<path d="{path}" fill="none" stroke="#5b6770" marker-end="url(#head)"/>'


def main(arguments: list[str] | None = None) -> int:
    """Write the picture, or with ``--check`` compare it with what is there."""
    parser = argparse.ArgumentParser(description="Draw docs/architecture.svg from the imports.")
    parser.add_argument("--check", action="store_true", help="only compare; 1 if out of date")
    drawn = draw(read_imports())
    if not parser.parse_args(arguments).check:
        PICTURE.write_text(drawn)
        return 0
    if PICTURE.exists() and PICTURE.read_text() == drawn:
        return 0
    print(f"{PICTURE.name} is out of date: python docs/draw_architecture.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
