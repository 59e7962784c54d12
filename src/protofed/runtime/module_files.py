"""The files of modules and what they import, found without importing anything."""

from __future__ import annotations

import ast
import site
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import resolve_name
from pathlib import Path
from typing import NamedTuple

MAIN = "__main__"  # the running script, prompt or notebook


def _library_folders() -> list[Path]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    found = {Path(sysconfig.get_path(name)).resolve() for name in names}
    found |= {Path(name).resolve() for name in site.getsitepackages()}
    return sorted({*found, Path(site.getusersitepackages()).resolve()})


LIBRARIES = _library_folders()


def is_installed(file: Path) -> bool:
    """Whether a file belongs to Python or to an installed library, rather than to the user."""
    packages = {"site-packages", "dist-packages"}
    inside = any(file.is_relative_to(place) for place in LIBRARIES)
    return inside or bool(packages.intersection(file.parts))


def imported_names(tree: ast.Module) -> Iterator[str]:
    """The full names of all that a file imports, wherever in it; relative ones begin with dots.

    ``from a import b`` gives ``a`` and ``a.b``, as either may be a module; ``import_module("a")``,
    with a constant name, gives ``a``.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _imported_by_call(node)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            yield base
            dot = "" if base.endswith(".") else "."
            yield from (f"{base}{dot}{alias.name}" for alias in node.names if alias.name != "*")


def _imported_by_call(call: ast.Call) -> Iterator[str]:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in ("import_module", "__import__") and call.args:
        first = call.args[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            yield first.value


class ModuleFile(NamedTuple):
    """A module by its full name and the place that it is loaded from; it need not be loaded yet."""

    name: str
    path: Path  # in a zip archive, a place inside it

    @property
    def readable(self) -> bool:
        """Whether its source can be read: not for compiled modules and archives."""
        return self.path.suffix == ".py" and self.path.is_file()

    @property
    def package(self) -> str:
        """The package that its relative imports start from."""
        if self.name == MAIN:
            spec: ModuleSpec | None = getattr(sys.modules[MAIN], "__spec__", None)
            return (spec.parent or "") if spec else ""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    @property
    def label(self) -> str:
        """Its path from the folder that it is imported from, as ``package/module.py``."""
        if self.name == MAIN:
            return self.path.name
        inside = self.name.replace(".", "/")
        return f"{inside}/__init__.py" if self.path.stem == "__init__" else f"{inside}.py"

    def parents(self) -> Iterator[ModuleFile]:
        """The packages that it lies in, as far as they have a file: importing it runs them too."""
        package = "" if self.name == MAIN else self.name.rpartition(".")[0]
        while package:
            if found := find_module(package):
                yield found
            package = package.rpartition(".")[0]


def find_module(name: str, package: str = "", more_path: Sequence[str] = ()) -> ModuleFile | None:
    """The file of the module that a name means in an import; None if there is none.

    `package` is where relative names start. Folders of `more_path` are searched after Python's own.
    Nothing is imported, so a name inside a module is not taken for a module.
    """
    try:
        full = resolve_name(name, package or None)
    except (ImportError, ValueError):
        return None
    loaded = sys.modules.get(full)
    if loaded is not None:
        origin = getattr(loaded, "__file__", None)
    else:
        spec = _find_spec(full, more_path)
        origin = spec.origin if spec and spec.has_location else None
    return ModuleFile(full, Path(origin).resolve()) if isinstance(origin, str) else None


def _find_spec(name: str, more_path: Sequence[str]) -> ModuleSpec | None:
    """Find a module by the folders of its package, without importing the package."""
    above = name.rpartition(".")[0]
    if not above:
        return PathFinder.find_spec(name, [*sys.path, *more_path])
    loaded = sys.modules.get(above)
    if loaded is not None:
        places = getattr(loaded, "__path__", None)
    else:
        spec = _find_spec(above, more_path)
        places = spec.submodule_search_locations if spec else None
    return PathFinder.find_spec(name, list(places)) if places is not None else None
