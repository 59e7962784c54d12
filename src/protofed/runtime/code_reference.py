"""Code that a user names: ``path/to/mine.py:Mine``, ``package.module:Mine``, or an entry point."""

from __future__ import annotations

import ast
import importlib
import sys
import traceback
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from protofed.errors import ProtofedError, did_you_mean, printable_text
from protofed.runtime.module_files import MAIN, find_module, imported_names, is_installed


class CodeAccess(NamedTuple):
    """Which code a spec may bring in, by where the spec comes from.

    `load` is False for readers of scores, which keep names and load nothing. `allowed` holds the
    references that may be loaded, None for any: a spec from somebody else may name none.
    """

    load: bool = True
    allowed: frozenset[str] | None = None

    def check(self, reference: str) -> None:
        """Raise if this code must not be loaded."""
        if self.allowed is not None and reference not in self.allowed:
            raise ProtofedError(
                f"'{printable_text(reference, 200)}' is code of its author, and this place does "
                "not allow it"
            )


ANY_CODE, NO_CODE, OUR_CODE = CodeAccess(), CodeAccess(load=False), CodeAccess(allowed=frozenset())


class CodeReference(NamedTuple):
    """A class or function by name: the module's file or dotted name, and the name inside it."""

    module: str  # "/home/me/mine.py" or "package.module"
    name: str  # "Mine", or "Outer.Mine"

    @property
    def is_file(self) -> bool:
        """Whether the module is given by its file."""
        return self.module.endswith(".py")

    @property
    def label(self) -> str:
        """The reference without folders, ``mine:Mine``: the same wherever the file lies."""
        module = Path(self.module).stem if self.is_file else self.module
        return f"{module}:{self.name}"

    def __str__(self) -> str:
        return f"{self.module}:{self.name}"

    def find_module_name(self) -> str:
        """The name under which Python imports the module."""
        if not self.is_file:
            return self.module
        file = Path(self.module)
        return MAIN if _is_from(sys.modules[MAIN], file) else _module_name(file)[0]

    def find_file(self) -> Path | None:
        """The file of the module, found without importing it; None if there is none."""
        if self.is_file:
            return Path(self.module)
        found = find_module(self.module, more_path=[str(Path.cwd())])
        return found.path if found else None


def is_reference(name: str) -> bool:
    """Whether a name means code of the user's rather than something of ours: it has a colon."""
    return ":" in name


def parse_reference(text: str) -> CodeReference:
    """Read ``path/to/mine.py:Mine`` or ``package.module:Mine``; paths become absolute."""
    module, _, name = text.rpartition(":")
    if "=" in name:
        settings = [setting.strip() for setting in printable_text(name, 200).split(",")]
        raise ProtofedError(
            f"'{printable_text(text, 200)}' has settings, which do not belong to a name here",
            hint="give them as fields of their own, as "
            + " ".join(f"<method.{setting}>" for setting in settings),
        )
    if module.endswith(".py"):
        module = str(Path(module).expanduser().resolve())
    elif not all(part.isidentifier() for part in module.split(".")):
        module = ""
    if not module or not name:
        raise ProtofedError(
            f"'{printable_text(text, 200)}' names no code\n"
            "write path/to/mine.py:Mine or package.module:Mine"
        )
    return CodeReference(module, name)


def reference_to(thing: type | Callable[..., object]) -> CodeReference:
    """The reference by which a class or function can be found again.

    A module of its own is given by its file, one that is installed or part of a package by its
    name. What was typed at a prompt or in a notebook has the module ``__main__``.
    """
    found = getattr(sys.modules.get(thing.__module__), "__file__", None)
    file = Path(found).resolve() if found else None
    if file is None or file.suffix != ".py" or "." in thing.__module__ or is_installed(file):
        return CodeReference(thing.__module__, thing.__qualname__)
    return CodeReference(str(file), thing.__qualname__)


def load_reference(reference: CodeReference) -> Any:
    """Import the module and return what is named in it; every fault is told with its place.

    The folder of a file is appended to ``sys.path``, so that the file's own imports work and worker
    processes, which get the same path, find it too.
    """
    module = _module_of_file(reference) if reference.is_file else _module_by_name(reference)
    found: Any = module
    for part in reference.name.split("."):
        if part not in vars(found):
            public = [name for name in vars(found) if not name.startswith("_")]
            raise ProtofedError(
                f"{reference.module} has no '{reference.name}'{did_you_mean(part, public)}"
            )
        found = vars(found)[part]
    return found


def _module_of_file(reference: CodeReference) -> ModuleType:
    file = Path(reference.module)
    if not file.is_file():
        raise ProtofedError(f"{reference}: there is no file {file}")
    main = sys.modules[MAIN]
    if _is_from(main, file):
        return main  # the script that is running now
    name, root = _module_name(file)
    if not all(part.isidentifier() for part in name.split(".")):
        raise ProtofedError(f"{file}: rename it; Python cannot import a module called '{name}'")
    module = _imported(name, root, file)
    _check_neighbours(file, root)
    if not _is_from(module, file):
        other = getattr(module, "__file__", None) or "Python itself"
        raise ProtofedError(
            f"{file}: rename it; the module '{name}' that Python imports is {other}"
        )
    return module


def _check_neighbours(file: Path, root: Path) -> None:
    """Raise if a file imports a neighbour, but the module of that name came from elsewhere.

    Python keeps one module for each name, so two files would share one of their helpers.
    """
    names = {name.split(".")[0] for name in imported_names(ast.parse(file.read_bytes()))}
    for name in sorted(names - {""}):  # relative imports cannot be mixed up
        beside = [root / f"{name}.py", root / name / "__init__.py"]
        own = next((place for place in beside if place.is_file()), None)
        found = find_module(name)
        if own and found and found.path != own.resolve() and not is_installed(found.path):
            raise ProtofedError(
                f"{file} imports '{name}' and means {own}, but Python has loaded {found.path} "
                "under that name\nrename one of the two files"
            )


def _module_name(file: Path) -> tuple[str, Path]:
    """The full name of the module in a file, and the folder above its outermost package."""
    root, parts = file.parent, [file.stem]
    while (root / "__init__.py").exists():
        root, parts = root.parent, [root.name, *parts]
    return ".".join(parts), root


def _module_by_name(reference: CodeReference) -> ModuleType:
    if reference.module == MAIN:
        main = sys.modules[MAIN]
        if reference.name.split(".")[0] in vars(main):
            return main
        raise ProtofedError(
            f"{reference.name} was defined at a prompt or in a notebook that has ended"
            "\nput it into a file, so that it can be loaded again"
        )
    return _imported(reference.module, Path.cwd(), None)


def _imported(name: str, root: Path, file: Path | None) -> ModuleType:
    """Import a module with `root` on the path; a fault inside it is told with its line."""
    if str(root) not in sys.path:
        sys.path.append(str(root))  # at the end: a file called random.py must not replace Python's
        importlib.invalidate_caches()
    writes = sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # Python takes old bytecode for an edit within the same second
    try:
        return importlib.import_module(name)
    except ProtofedError:
        raise
    except ModuleNotFoundError as fault:
        if fault.name and (fault.name == name or name.startswith(f"{fault.name}.")):
            raise ProtofedError(f"there is no module '{name}' in {root} or installed") from fault
        raise _import_error(name, file, fault) from fault
    except Exception as fault:  # anything that the user's own code may raise
        raise _import_error(name, file, fault) from fault
    finally:
        sys.dont_write_bytecode = writes


def _import_error(name: str, file: Path | None, fault: Exception) -> ProtofedError:
    where = str(file or name)
    if isinstance(fault, SyntaxError):
        where = f"{fault.filename or where}, line {fault.lineno}"
    else:
        lines = [frame for frame in traceback.extract_tb(fault.__traceback__) if file]
        mine = [frame.lineno for frame in lines if frame.filename == str(file)]
        where += f", line {mine[-1]}" if mine else ""
    return ProtofedError(f"{where}: cannot be imported: {type(fault).__name__}: {fault}")


def describe_fault(fault: Exception) -> str:
    """A fault as text: our own as it is, any other with its type and its place in user's code."""
    if isinstance(fault, ProtofedError):
        return str(fault)
    place = user_frame(fault)
    where = f" ({Path(place.filename).name}, line {place.lineno}, in {place.name})" if place else ""
    return f"{type(fault).__name__}: {fault}{where}"


def user_frame(fault: BaseException) -> traceback.FrameSummary | None:
    """The innermost place of a fault in code that is neither ours nor a library's; None if none."""
    ours = Path(__file__).resolve().parents[1]
    frames = traceback.extract_tb(fault.__traceback__)
    for frame in reversed(frames):
        file = Path(frame.filename)
        if file.is_file() and ours not in file.resolve().parents and not is_installed(file):
            return frame
    return None


def _is_from(module: ModuleType, file: Path) -> bool:
    found = getattr(module, "__file__", None)
    return bool(found) and Path(str(found)).resolve() == file


def load_user_code(name: str, group: str, access: CodeAccess) -> Any:
    """Load what a name means if it is a reference or an installed plugin; None if it is neither.

    `group` is the entry point group of the plugins; `access` says which code may be loaded.
    """
    if name.endswith(".py"):
        parse_reference(name)  # raises: it does not say what in the file is meant
    if is_reference(name):
        access.check(name)
        return load_reference(parse_reference(name))
    if name in installed_plugins(group):
        access.check(name)
        return load_plugin(group, name)
    return None


@cache
def installed_plugins(group: str) -> dict[str, EntryPoint]:
    """What installed packages offer under an entry point group such as ``protofed.methods``."""
    return {point.name: point for point in entry_points(group=group)}


def load_plugin(group: str, name: str) -> Any:
    """Load what an installed package offers under a name; a fault names the package."""
    point = installed_plugins(group)[name]
    try:
        return point.load()
    except Exception as fault:
        package = point.dist.name if point.dist else point.value
        raise ProtofedError(
            f"{name}: the package {package} offers it, but it cannot be loaded: {fault}"
        ) from fault
