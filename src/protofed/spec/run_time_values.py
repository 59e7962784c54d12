"""What a program has put into a user's module since it was imported: no file tells of it.

A constant that a loop sets, a function that is replaced: the code in the file is the same, and the
numbers are not. Found by comparing what the module holds with what its file says, without running
the file again.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import EnumMeta
from pathlib import Path
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from protofed.spec.source_files import SourceFile, is_main_block

PLAIN = (int, float, complex, bool, str, bytes, type(None), type(...))
BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try)
DEFINITIONS = (type, FunctionType)  # whose text counts, except in the main block
MISSING = object()


def digest_of_value(value: object) -> str | None:
    """A digest of plain data; None for anything else, such as a function."""
    return _digest(value) if _is_plain(value) else None


def changed_values(
    held: Mapping[str, Any], source: SourceFile, mentioned: Iterable[str] | None = None
) -> dict[str, str | None]:
    """The names in a module whose values are not those that its file gives, each with a digest.

    `held` is what the module holds now. A value that is no plain data, such as another function,
    has None in place of a digest. Told are constants, functions, attributes of classes, and names
    from other modules that the file binds once. Empty lists and dicts are there to be filled, and
    computed values are not known beforehand: they are not told. Of a script, which binds names
    while it runs, names in `mentioned` that it binds more than once or inside a block, such as a
    loop or the block for ``__main__``, count as well.
    """
    tree = ast.parse(source.content)
    bound = Counter(_bound_names(tree.body))
    found: dict[str, str | None] = {}
    for statement in tree.body:
        names = set(_bound_names([statement]))
        if all(bound[name] == 1 for name in names):
            found |= _compare(statement, held, source.path)
    return found | _rebound(tree, bound, held, mentioned or ())


def _rebound(
    tree: ast.Module, bound: Mapping[str, int], held: Mapping[str, Any], mentioned: Iterable[str]
) -> dict[str, str | None]:
    """What a script holds now under names that it binds while it runs."""
    blocks = [one for one in tree.body if isinstance(one, BLOCKS)]
    in_block = set(_bound_names(blocks))
    in_main = set(_bound_names(one for one in blocks if is_main_block(one)))
    found: dict[str, str | None] = {}
    for name in mentioned:
        value = held.get(name, MISSING)
        if _is_plain(value):
            if bound[name] > 1 or name in in_block:
                found[name] = _digest(value)
        elif value is MISSING or isinstance(value, ModuleType):
            continue
        elif name in in_main or (name in in_block and not isinstance(value, DEFINITIONS)):
            found[name] = None
    return found


def _compare(statement: ast.stmt, held: Mapping[str, Any], file: Path) -> dict[str, str | None]:
    """The names that a statement binds and that hold something else now."""
    if isinstance(statement, ast.ClassDef):
        return _compare_class(statement, held.get(statement.name), file)
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
        value = held.get(statement.name, MISSING)
        same = bool(statement.decorator_list) or _is_function_of(value, statement, file)
        return {} if same else {statement.name: None}
    if isinstance(statement, ast.ImportFrom) and not statement.level:
        return _compare_imported(statement, held)
    return _compare_constant(statement, held)


def _compare_constant(statement: ast.stmt, held: Mapping[str, Any]) -> dict[str, str | None]:
    target, given = _constant(statement)
    if target is None or not given:
        return {}
    value = held.get(target, MISSING)
    if repr(value) == repr(given[0]):
        return {}
    return {target: digest_of_value(value)}


def _constant(statement: ast.stmt) -> tuple[str | None, tuple[object, ...]]:
    """The name and the value of an assignment of a constant; no value for any other."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target, value = statement.targets[0], statement.value
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        target, value = statement.target, statement.value
    else:
        return None, ()
    if not isinstance(target, ast.Name):
        return None, ()
    try:
        given = ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, RecursionError):
        return target.id, ()
    empty = isinstance(given, list | dict | set) and not given
    return target.id, () if empty else (given,)


def _compare_class(statement: ast.ClassDef, kind: object, file: Path) -> dict[str, str | None]:
    """The constants and functions in the body of a class that are others now."""
    if not isinstance(kind, type):
        return {} if statement.decorator_list else {statement.name: None}
    if isinstance(kind, EnumMeta):  # which holds members in place of its constants
        return {}
    found: dict[str, str | None] = {}
    own = vars(kind)
    for part in statement.body:
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef):
            if not part.decorator_list and not _is_function_of(own.get(part.name), part, file):
                found[part.name] = None
        elif isinstance(part, ast.Assign) or _is_class_variable(part):
            found |= _compare_constant(part, own)
    return {f"{statement.name}.{name}": digest for name, digest in found.items()}


def names_in_class(source: SourceFile, qualname: str) -> set[str] | None:
    """The names that the body of a class binds; None if the file has no such class."""
    body: list[ast.stmt] = ast.parse(source.content).body
    for part in qualname.split("."):
        found = [one for one in body if isinstance(one, ast.ClassDef) and one.name == part]
        if not found:
            return None
        body = [inner for one in found for inner in one.body]
    return set(_bound_names(body))


def _is_class_variable(statement: ast.stmt) -> bool:
    """Whether it is no field, whose value is in the spec."""
    return isinstance(statement, ast.AnnAssign) and "ClassVar" in ast.unparse(statement.annotation)


def _compare_imported(statement: ast.ImportFrom, held: Mapping[str, Any]) -> dict[str, str | None]:
    home = sys.modules.get(statement.module or "")
    if home is None:
        return {}
    found: dict[str, str | None] = {}
    for alias in statement.names:
        given = vars(home).get(alias.name, MISSING)
        value = held.get(alias.asname or alias.name, MISSING)
        if MISSING not in (given, value) and value is not given:
            found[alias.asname or alias.name] = digest_of_value(value)
    return found


def _is_function_of(value: object, statement: ast.stmt, file: Path) -> bool:
    """Whether a value is the function that a statement of a file defines."""
    if not isinstance(value, FunctionType):
        return False
    code = value.__code__
    lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
    return Path(code.co_filename).resolve() == file and code.co_firstlineno in lines


def _bound_names(statements: Iterable[ast.AST]) -> Iterator[str]:
    """Every binding of a name at the level of the module, blocks included; a name may recur."""
    for node in statements:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
            yield from _globals_set_in(node)
        elif isinstance(node, ast.Lambda):
            continue
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.split(".")[0] for alias in node.names)
        else:
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                yield node.id
            yield from _bound_names(ast.iter_child_nodes(node))


def _globals_set_in(scope: ast.AST) -> Iterator[str]:
    for node in ast.walk(scope):
        if isinstance(node, ast.Global):
            yield from node.names


def _is_plain(value: object) -> bool:
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(_is_plain(key) and _is_plain(inner) for key, inner in value.items())
    if isinstance(value, Namespace | SimpleNamespace):  # as of a parsed command line
        return _is_plain(vars(value))
    return isinstance(value, PLAIN)


def _digest(value: object) -> str:
    ordered = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
    return hashlib.sha256(repr(ordered).encode()).hexdigest()[:16]
