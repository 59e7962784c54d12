"""JSON from files that may be damaged or a stranger's: plain data, or an error that names them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from protofed.core.disk import read_file_bytes
from protofed.core.errors import ProtofedError, printable_text

DEEPEST = 40  # levels of lists and tables in one another; ours have fewer than ten


def parse_json(text: bytes | str, source: object) -> Any:
    """Plain data from JSON; whatever else the text is ends in an error that names its source."""
    try:
        content = json.loads(text)
    except RecursionError as fault:
        raise ProtofedError(f"{source}: nested too deeply to be read") from fault
    except ValueError as fault:  # also bytes that are no text, and numbers of thousands of digits
        raise ProtofedError(f"{source}: not JSON: {printable_text(str(fault), 200)}") from fault
    if not _is_shallow(content):
        raise ProtofedError(f"{source}: nested deeper than {DEEPEST} levels")
    if not _is_text(text, content):
        raise ProtofedError(f"{source}: it holds half a character, which nobody can print")
    return content


def read_json_table(path: Path) -> dict[str, Any]:
    """A JSON file that must hold a table."""
    content = read_json_file(path)
    if not isinstance(content, dict):
        raise ProtofedError(f"{path} is damaged: it must hold a JSON object")
    return content


def read_json_file(path: Path) -> Any:
    """The plain data in a JSON file."""
    try:
        return parse_json(read_file_bytes(path), path)
    except OSError as fault:
        raise ProtofedError(f"{path} cannot be read: {fault.strerror}") from fault


def _is_text(text: bytes | str, content: object) -> bool:
    """Whether all its texts can be written; JSON can tell of halves of characters, which cannot."""
    halves = "\\ud" if isinstance(text, str) else b"\\ud"
    try:
        if halves in text.lower():  # type: ignore[operator]
            json.dumps(content, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_shallow(content: object) -> bool:
    """Whether nothing lies deeper than is allowed; what does would exhaust the stack later on."""
    level = [content]
    for _ in range(DEEPEST):
        level = [child for one in level for child in _children(one)]
    return not level


def _children(content: object) -> Iterable[object]:
    if isinstance(content, dict):
        return content.values()
    return content if isinstance(content, list) else ()
