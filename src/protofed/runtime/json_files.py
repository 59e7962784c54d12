"""JSON from files and from strangers: plain data of the expected shape, or an error."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from protofed.errors import ProtofedError, printable_text
from protofed.runtime.atomic_io import read_file_bytes

DEEPEST = 40  # levels of nested lists and objects; ours have fewer than ten


def parse_json(text: bytes | str, source: object) -> Any:
    """Plain data from JSON text; anything else raises a `ProtofedError` that names `source`.

    Refused are text that is not JSON, nesting deeper than `DEEPEST`, and halves of characters
    (lone surrogates), which cannot be printed.
    """
    try:
        content = json.loads(text)
    except RecursionError as fault:
        raise ProtofedError(f"{source}: nested too deeply to be read") from fault
    except (
        ValueError
    ) as fault:  # also bytes that are not text, and numbers with thousands of digits
        raise ProtofedError(f"{source}: not JSON: {printable_text(str(fault), 200)}") from fault
    if not _is_shallow(content):
        raise ProtofedError(f"{source}: nested deeper than {DEEPEST} levels")
    if not _is_text(text, content):
        raise ProtofedError(f"{source}: it holds half a character, which nobody can print")
    return content


def read_json_table(path: Path) -> dict[str, Any]:
    """The content of a JSON file that must hold an object."""
    content = read_json_file(path)
    if not isinstance(content, dict):
        raise ProtofedError(f"{path} is damaged: it must hold a JSON object")
    return content


def read_json_file(path: Path) -> Any:
    """The plain data in a JSON file; a `ProtofedError` if it cannot be read or is not JSON."""
    try:
        return parse_json(read_file_bytes(path), path)
    except OSError as fault:
        raise ProtofedError(f"{path} cannot be read: {fault.strerror}") from fault


def _is_text(text: bytes | str, content: object) -> bool:
    """Whether all its texts can be encoded; JSON can hold halves of characters, which cannot."""
    halves = "\\ud" if isinstance(text, str) else b"\\ud"
    try:
        if halves in text.lower():  # type: ignore[operator]
            json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_shallow(content: object) -> bool:
    """Whether nothing is nested deeper than allowed; that would exhaust the stack later."""
    level = [content]
    for _ in range(DEEPEST):
        level = [child for one in level for child in _children(one)]
    return not level


def _children(content: object) -> Iterable[object]:
    if isinstance(content, dict):
        return content.values()
    return content if isinstance(content, list) else ()


def parse_json_object(text: str) -> dict[str, object]:
    """A JSON object in which no key occurs twice; check its values with the functions below.

    The input may come from a stranger. Errors say "it", so the caller should add what "it" is.
    """
    try:
        found = json.loads(text, object_pairs_hook=_distinct)
    except RecursionError as fault:
        raise ProtofedError("it is nested too deeply") from fault
    except ValueError as fault:
        raise ProtofedError(f"it cannot be read: {printable_text(str(fault), 100)}") from fault
    return require_object("it", found)


def _distinct(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("it has a key twice")
    return found


def require_object(what: str, value: object) -> dict[str, object]:
    """Return `value` if it is an object; `what` names it in an error, here and below."""
    if not isinstance(value, dict):
        raise _refused(what, "an object", value)
    return value


def require_fields(found: dict[str, object], fields: Iterable[str]) -> None:
    """Refuse an object whose fields are not exactly these."""
    for name in fields:
        if name not in found:
            raise ProtofedError(f"{name} is missing")
    for name in found:
        if name not in fields:
            raise ProtofedError(f"{printable_text(name, 40)} is no field that is known here")


def require_list(what: str, value: object, least: int, most: int) -> list[object]:
    """Return `value` if it is a list of `least` to `most` entries."""
    if not isinstance(value, list):
        raise _refused(what, "a list", value)
    if not least <= len(value) <= most:
        raise ProtofedError(f"{what} must have {_span(least, most)} entries, not {len(value)}")
    return value


def require_int(what: str, value: object, least: int, most: int) -> int:
    """Return `value` if it is a whole number from `least` to `most`; True, 3.0 and "3" are not."""
    if type(value) is not int or not least <= value <= most:
        raise _refused(what, f"a whole number, {_span(least, most)}", value)
    return value


def require_text(what: str, value: object, least: int, most: int) -> str:
    """Return `value` if it is text of `least` to `most` characters, all of them printable."""
    if not isinstance(value, str) or not value.isprintable():
        raise _refused(what, "printable text", value)
    if not least <= len(value) <= most:
        raise ProtofedError(f"{what} must have {_span(least, most)} characters, not {len(value)}")
    return value


def _span(least: int, most: int) -> str:
    return f"{least}" if least == most else f"{least} to {most}"


def _refused(what: str, wanted: str, value: object) -> ProtofedError:
    """The error for a wrong value; of a list or object only the type is shown."""
    nested = isinstance(value, (list, dict))
    shown = f"a {type(value).__name__}" if nested else printable_text(repr(value), 40)
    return ProtofedError(f"{what} must be {wanted}, not {shown}")
