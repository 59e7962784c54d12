"""Which code made a run's numbers: a digest of every source file that can change them.

Where a source cannot be read, as for a class typed into a notebook, nothing is known of it, and it
is never taken for the same code again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
import secrets
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from types import FunctionType

from protofed.core.method import AnyMethod, Method
from protofed.errors import ProtofedError
from protofed.nets import find_net_builder
from protofed.runtime.code_reference import is_reference, parse_reference, reference_to
from protofed.runtime.import_times import imported_at, may_be_older, reloaded_at
from protofed.runtime.module_files import MAIN, ModuleFile, find_module, is_installed
from protofed.spec.experiment_spec import Experiment, SiteData
from protofed.spec.method_lookup import method_class
from protofed.spec.run_time_values import changed_values, digest_of_value, names_in_class
from protofed.spec.source_files import (
    SourceFile,
    check_not_edited,
    mentioned_names,
    read_source,
    script_digest,
)

UNREADABLE = "unreadable"  # in place of a digest, with a number that never recurs
AT_RUN_TIME = "(set at run time)"  # ends the name of a value that is not what its file says
GIT_SECONDS = 5  # that git may take for an answer
HOME = Path(__file__).resolve().parents[1]
LIBRARIES = ("torch", "numpy")  # whose versions move bits
# What these modules import from these packages is the engine:
LOCAL_ENGINE = ("protofed.experiment.runner",)
REMOTE_ENGINE = ("protofed.engines.flower_engine", "protofed.federation.remote_sites")
ENGINE = ("core", "data", "engines", "federation")
METHOD = ("methods", "nets", "ops")  # what a method or net may build on beside it

Digests = Mapping[str, str]  # by file, or library
NamedCode = type | Callable[..., object]


def code_digests(experiment: Experiment) -> dict[str, str]:
    """The digests of the code behind an experiment's numbers, by file.

    That is the engine, the method with all that it imports, and the nets; of libraries, the
    versions of torch and numpy. Our files are named as ``protofed/core/tree.py``, the user's by
    their path from the folder that they are imported from. Code that was edited after this process
    has imported it is an error.
    """
    remote = REMOTE_ENGINE if isinstance(experiment.data, SiteData) else ()
    found = {f"library {name}": version(name) for name in LIBRARIES}
    found |= _our_files((*LOCAL_ENGINE, *remote), ENGINE) | _our_files(["protofed.nets"], ())
    for name, value in _put_into_classes(experiment.method):
        found[name] = digest_of_value(value) or _unreadable()
    for module, names in _named_code(experiment).items():
        if module.split(".")[0] == "protofed":
            found |= _our_files([module], METHOD)
        else:
            found |= _user_files(module, names)
    return dict(sorted(found.items()))


def code_fingerprint(digests: Digests) -> str:
    """One SHA-256 over all files: equal for runs that were made by the same code."""
    return hashlib.sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()


def changed_files(before: Digests, now: Digests) -> list[str]:
    """The files whose code differs; one that cannot be read always does."""
    return [
        name
        for name in sorted(before.keys() | now.keys())
        if before.get(name) != now.get(name) or is_unreadable(before.get(name, ""))
    ]


def is_unreadable(digest: str) -> bool:
    """Whether a digest stands for code that could not be read: then it is equal to no other."""
    return digest.startswith(UNREADABLE)


def set_at_run_time(digests: Digests) -> list[str]:
    """The names of what was put into modules since their import: other processes do not have it."""
    return [name.removesuffix(f" {AT_RUN_TIME}") for name in digests if name.endswith(AT_RUN_TIME)]


def _unreadable() -> str:
    return f"{UNREADABLE} {secrets.token_hex(6)}"


def git_commits(experiment: Experiment) -> dict[str, str]:
    """The git commits of protofed and of the method's file, ``1a2b3c4d`` or ``1a2b3c4d, edited``.

    Only for code that git keeps: an installed package has a version instead.
    """
    file = find_module(type(experiment.method).__module__)
    places = {"protofed_commit": HOME / "__init__.py", "method_commit": file and file.path}
    found = {name: _commit(place) for name, place in places.items() if place}
    return {name: commit for name, commit in found.items() if commit}


@cache
def _commit(file: Path) -> str:
    if not _git(file, "ls-files", "--error-unmatch", file.name):
        return ""
    commit = _git(file, "rev-parse", "--short=12", "HEAD")
    return f"{commit}, edited" if _git(file, "status", "--porcelain", "-uno") else commit


def _git(file: Path, *words: str) -> str:
    """What git answers about the folder of a file; nothing if it cannot."""
    command = ["git", "-C", str(file.parent), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=GIT_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _named_code(experiment: Experiment) -> dict[str, set[str]]:
    """The modules of the method and the nets, and the names of theirs that an experiment uses."""
    found: dict[str, set[str]] = {}
    for kind in _method_classes(experiment.method):
        _check_current(kind)
        found.setdefault(kind.__module__, set()).add(kind.__qualname__)
    for name in experiment.nets:
        builder = find_net_builder(name)
        inner = builder.func if isinstance(builder, partial) else builder
        found.setdefault(inner.__module__, set()).add(inner.__qualname__)
        if is_reference(name):  # which may be a name for something of another module
            given = parse_reference(name)
            found.setdefault(given.find_module_name(), set()).add(given.name)
    return found


def _method_classes(method: AnyMethod) -> Iterator[type]:
    """The class of a method, those that it inherits from, and those of methods in its fields."""
    yield from (kind for kind in method_class(method).__mro__ if issubclass(kind, Method))
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        if isinstance(value, Method):
            yield from _method_classes(value)


def _put_into_classes(method: AnyMethod) -> Iterator[tuple[str, object]]:
    """What was put into a method or its classes at run time: no file tells of it."""
    for kind in _method_classes(method):
        home = find_module(kind.__module__)
        if home is None or not home.readable:
            continue
        written = names_in_class(read_source(home.path), kind.__qualname__)
        for name, value in vars(kind).items():
            if name.startswith(("__", "_abc_")):
                continue
            added = written is not None and name not in written
            if added or _is_from_elsewhere(value, home.path):
                yield f"{kind.__module__}:{kind.__qualname__}.{name} {AT_RUN_TIME}", value
    own = {field.name for field in dataclasses.fields(method)}
    for name in sorted(vars(method).keys() - own):
        yield f"{type(method).__qualname__}(), {name} {AT_RUN_TIME}", vars(method)[name]


def _is_from_elsewhere(value: object, file: Path) -> bool:
    """Whether a value is a function, or a property with one, of another file."""
    inner = value.fget if isinstance(value, property) else value
    if not isinstance(inner, FunctionType):
        return False
    function = inspect.unwrap(inner)
    return Path(function.__code__.co_filename).resolve() != file


def _check_current(kind: type) -> None:
    """Raise if a class is of an earlier import of its module than what is there now."""
    found: object = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, kind)
    if found is not kind:
        raise ProtofedError(
            f"{kind.__name__} is not what {reference_to(kind)} is now: the module was reloaded, or "
            "the name was given to something else\nmake the method anew"
        )


def _our_files(roots: Sequence[str], packages: Sequence[str]) -> dict[str, str]:
    """The digests of modules of protofed, and of what they import from some of its packages."""
    found: dict[str, str] = {}
    waiting = [find_module(name) for name in roots]
    while waiting:
        module = waiting.pop()
        if module is None or HOME not in module.path.parents:
            continue
        name = f"protofed/{module.path.relative_to(HOME).as_posix()}"
        if name not in found:
            source = read_source(module.path)
            check_not_edited(module.name, source)
            found[name] = source.digest
            found |= {f"{name}, {part} {AT_RUN_TIME}": _unreadable() for part in _patches(module)}
            waiting += [find_module(n) for n in source.imports if _is_in(n, packages)]
    return found


def _patches(module: ModuleFile) -> Iterator[str]:
    """The names in a loaded module of ours that hold a function of somebody else's file.

    The runner only calls what computes, so what replaces its functions does not count.
    """
    if module.name in LOCAL_ENGINE:
        return
    for name, value in vars(sys.modules.get(module.name, object)).items():
        if _is_foreign(value):
            yield name
        elif isinstance(value, type) and value.__module__ == module.name:
            own = vars(value).items()
            yield from (f"{name}.{n}" for n, v in own if not n.startswith("__") and _is_foreign(v))


def _is_foreign(value: object) -> bool:
    """Whether a function, or one that it wraps, is neither of a file of ours nor of a library."""
    while isinstance(value, FunctionType):
        if _is_file_of_user(value.__code__.co_filename):
            return True
        value = getattr(value, "__wrapped__", None)
    return False


@cache
def _is_file_of_user(name: str) -> bool:
    file = Path(name).resolve()
    return not (name.startswith("<frozen ") or HOME in file.parents or is_installed(file))


def _is_in(name: str, packages: Sequence[str]) -> bool:
    """Whether a module is in one of some packages of ours; their lists of all do not count."""
    parts = name.split(".")
    return parts[0] == "protofed" and len(parts) > 2 and parts[1] in packages


def _user_files(root: str, names: Collection[str]) -> dict[str, str]:
    """The digests of the user's modules behind some names in one of them, and of ours they use."""
    first = find_module(root)
    if first is None or any("<" in name for name in names):
        return {f"{root}:{'+'.join(sorted(names))}": _unreadable()}
    found: dict[str, str] = {}
    waiting = [first, *first.parents()]
    while waiting:
        module = waiting.pop()
        if module.label in found:
            continue
        found[module.label] = _unreadable()
        if module.readable:
            source = read_source(module.path)
            found[module.label] = _module_digest(module.name, source, names)
            found |= _run_time_values(module, source, names)
            waiting += _user_imports(module, source.imports, root.split(".")[0])
            found |= _our_files([n for n in source.imports if _is_in(n, METHOD)], METHOD)
    return found


def _check_reloaded_together(importer: str, module: str) -> None:
    """Raise if a module was reloaded, but not the one that took names from it before."""
    if reloaded_at(module) > imported_at(importer):
        raise ProtofedError(
            f"{module} was reloaded, but {importer}, which imports from it, was not: it may still "
            f"hold the old code\nreload {importer} too and make the method anew, or start Python "
            "again"
        )


def _module_digest(module: str, source: SourceFile, names: Collection[str]) -> str:
    """The digest of a user's module; of the running script, as far as some names depend on it."""
    if may_be_older(module, source.changed):
        return _unreadable()
    check_not_edited(module, source)
    if module == MAIN:
        return script_digest(source, {name.split(".")[0] for name in names})
    return source.digest


def _run_time_values(
    module: ModuleFile, source: SourceFile, names: Collection[str]
) -> dict[str, str]:
    """What a loaded module holds besides what its file says, as entries beside its digest."""
    loaded = sys.modules.get(module.name)
    if loaded is None:
        return {}
    used = mentioned_names(source, names) if module.name == MAIN else None
    changed = changed_values(vars(loaded), source, used)
    return {
        f"{module.label}, {name} {AT_RUN_TIME}": digest or _unreadable()
        for name, digest in changed.items()
        if used is None or name.split(".")[0] in used
    }


def _user_imports(importer: ModuleFile, names: Sequence[str], package: str) -> Iterator[ModuleFile]:
    """The user's own modules among imports: those of the same package, or in no library.

    The packages around them are among them, as importing a module runs its packages too.
    """
    for name in names:
        module = find_module(name, importer.package)
        if module is None or HOME in module.path.parents:
            continue
        if not is_installed(module.path) or module.name.split(".")[0] == package:
            _check_reloaded_together(importer.name, module.name)
            yield from (module, *module.parents())
