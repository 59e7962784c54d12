"""Python files as evidence: a digest of what their code means, and what they import."""

from __future__ import annotations

import ast
import hashlib
import symtable
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from protofed.errors import ProtofedError
from protofed.runtime.import_times import imported_at
from protofed.runtime.module_files import imported_names

Defined = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | Defined
NO_MEANING = {"type_comment", "type_ignores", "kind", "ctx"}  # fields of a syntax tree


class SourceFile(NamedTuple):
    """A Python file as it is on disk now.

    `digest` is a SHA-256 of its syntax tree without docstrings: comments and formatting do not
    count. `imports` are the full names of all that it imports, wherever in it; relative ones begin
    with dots.
    """

    path: Path
    content: bytes
    changed: float  # when its content or its place did, in seconds
    digest: str
    imports: tuple[str, ...]


def read_source(file: Path) -> SourceFile:
    """Read a Python file; one that has not changed since is read once."""
    found = file.stat()
    # An older file moved over it keeps the time of its content, but not the time of its inode.
    return _read_source(file, max(found.st_mtime_ns, found.st_ctime_ns), found.st_size)


@lru_cache(maxsize=1024)
def _read_source(file: Path, changed: int, size: int) -> SourceFile:
    content = file.read_bytes()
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError) as fault:
        raise ProtofedError(f"{file} is not valid Python: {fault}") from fault
    return SourceFile(
        file, content, changed / 1e9, tree_digest([tree]), tuple(imported_names(tree))
    )


def tree_digest(nodes: Iterable[ast.AST]) -> str:
    """SHA-256 of what some pieces of code mean, 16 digits of it."""
    parts: list[str] = []
    for node in nodes:
        _write(node, parts.append)
    return hashlib.sha256("".join(parts).encode()).hexdigest()[:16]


def _write(node: object, put: Callable[[str], None]) -> None:
    """Write a syntax tree as text: all that has a meaning."""
    if isinstance(node, ast.AST):
        put(f"{type(node).__name__}(")
        for name, value in ast.iter_fields(node):
            if value is not None and value != [] and name not in NO_MEANING:
                put(f"{name}=")
                _write(_meant(node, name, value), put)
        put(")")
    elif isinstance(node, list):
        for item in node:
            _write(item, put)
            put(",")
    else:
        put(repr(node))


def _meant(node: ast.AST, name: str, value: object) -> object:
    """A field without docstrings, and without the empty texts of some Pythons' f-strings."""
    if name == "body" and isinstance(node, Documented) and node.body and _is_text(node.body[0]):
        return node.body[1:]
    if isinstance(node, ast.JoinedStr) and isinstance(value, list):
        return [part for part in value if not (isinstance(part, ast.Constant) and part.value == "")]
    return value


def _is_text(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def script_digest(source: SourceFile, names: Collection[str]) -> str:
    """The digest of a script as far as some of its classes or functions may depend on it.

    A script also does what has nothing to do with them, such as calling them and plotting. Only
    classes, functions and plain assignments whose names are not mentioned, directly or through
    others, are left out, and so are calls of print and the block for ``__main__``.
    """
    return tree_digest(_dependencies(source, names))


def mentioned_names(source: SourceFile, names: Collection[str]) -> set[str]:
    """The globals of the classes and functions of a script on which some of its classes depend.

    Statements that only have an effect, such as a loop that runs experiments, do not count.
    """
    kept = _dependencies(source, {name.split(".")[0] for name in names})
    defined = [one for one in kept if isinstance(one, Defined)]
    code = ast.unparse(ast.Module(list(defined), []))
    return set(_globals(symtable.symtable(code, str(source.path), "exec")))


def _globals(scope: symtable.SymbolTable) -> Iterator[str]:
    """The names of a scope, and of those in it, that mean something in the module."""
    outermost = scope.get_type() == "module"
    yield from (s.get_name() for s in scope.get_symbols() if outermost or s.is_global())
    for inner in scope.get_children():
        yield from _globals(inner)


def _dependencies(source: SourceFile, names: Collection[str]) -> list[ast.stmt]:
    """The statements of a script on which some of its names may depend."""
    body = [one for one in ast.parse(source.content).body if not is_main_block(one)]
    wanted, kept = set(names), set[int]()
    growing = True
    while growing:
        growing = False
        for number, statement in enumerate(body):
            if number not in kept and _counts(statement, wanted):
                kept.add(number)
                wanted |= {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}
                growing = True
    return [body[number] for number in sorted(kept)]


def _counts(statement: ast.stmt, wanted: set[str]) -> bool:
    if isinstance(statement, ast.Expr):
        return not _is_text(statement) and not _is_print(statement.value)
    if isinstance(statement, Defined):
        return statement.name in wanted
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        plain = [target.id for target in targets if isinstance(target, ast.Name)]
        return len(plain) < len(targets) or bool(wanted.intersection(plain))
    return True


def _is_print(call: ast.expr) -> bool:
    return (
        isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "print"
    )


def is_main_block(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.If)
        and not statement.orelse
        and ast.unparse(statement.test) in ("__name__ == '__main__'", "'__main__' == __name__")
    )


_seen: dict[tuple[str, float], str] = {}  # digests of modules, by when they were imported


def check_not_edited(module: str, source: SourceFile) -> None:
    """Raise if a file was edited after this process has imported it as a module.

    Otherwise old code would run, and its numbers would be taken for those of the new code.
    """
    began = imported_at(module)
    if source.changed <= began:
        _seen[module, began] = source.digest
    elif _seen.get((module, began)) != source.digest:  # equal after an edit of comments alone
        raise ProtofedError(
            f"{source.path} was edited after it was imported, so the code in memory is not the "
            "code in the file\nstart Python again, or reload the module and make the method anew"
        )
