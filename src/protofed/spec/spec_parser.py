"""From TOML, a dict or flags to an Experiment, or to lines that say what is wrong."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protofed.errors import ProtofedError
from protofed.runtime.code_reference import ANY_CODE, CodeAccess
from protofed.runtime.json_files import parse_json
from protofed.spec.experiment_spec import Experiment

RECORDED = ("digest", "method_label")  # what a run folder's spec.json says beside the spec
MOST_BYTES = 1 << 20  # no honest spec is larger
# tomllib takes minutes for a name of many parts: its time grows with their square.
DEEP_KEY = re.compile(r"(?<![\w\"'-])(?:[\w\"'-]++\s*+\.\s*+){20}")

Raw = dict[str, Any]


def read_spec(path: Path) -> Raw:
    """Read a TOML file, or the ``spec.json`` of a run folder, as plain data.

    Nothing is checked but the syntax and the size; `parse_experiment` checks the content.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ProtofedError(f"{path}: larger than 1 MiB, so hardly a spec")
        text = path.read_text(encoding="utf-8-sig")
        if DEEP_KEY.search(text):
            raise ProtofedError(f"{path}: a name with more than 20 dots, so hardly a spec")
        if path.suffix == ".json":
            saved = dict(parse_json(text, path))
            return {key: value for key, value in saved.items() if key not in RECORDED}
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as fault:
        raise ProtofedError(f"{path}: not valid TOML: {fault}") from fault
    except (TypeError, UnicodeDecodeError, RecursionError) as fault:
        raise ProtofedError(f"{path}: not readable as a spec: {fault}") from fault
    except ValueError as fault:  # a number of thousands of digits
        raise ProtofedError(f"{path}: {fault}") from fault
    except OSError as fault:
        raise ProtofedError(f"{path}: {fault.strerror}") from fault


def set_field(raw: Raw, assignment: str) -> Raw:
    """Apply one assignment ``section.field=value`` to plain data; return a copy.

    The value is parsed as TOML (``0.1``, ``true``, ``["a", "b"]``), or taken as text if it is none.
    """
    path, equals, text = assignment.partition("=")
    if not equals or not all(key.strip() for key in path.split(".")):
        raise ProtofedError(f"{assignment}: write section.field=value")
    return set_value(raw, path, parse_value(text))


def parse_value(text: str) -> object:
    """A value as it is typed: TOML (``0.1``, ``true``, ``["a", "b"]``), or text if it is none."""
    try:
        value: object = tomllib.loads(f"value = {text.strip()}")["value"]
    except (ValueError, RecursionError):  # no TOML, a number too long, brackets too deep
        return text.strip()
    return value


def format_assignment(path: str, value: object) -> str:
    """The assignment that gives a field a value: ``set_field`` reads it back.

    ``format_assignment("training.lr", 0.1)`` is ``training.lr=0.1``; text has quotes only if it
    would be read as something else without.
    """
    plain = isinstance(value, str) and parse_value(value) == value
    return f"{path}={value if plain else _toml(value)}"


def _toml(value: object) -> str:
    """Plain data as a TOML value."""
    if isinstance(value, Mapping):
        entries = (f"{_toml(str(key))} = {_toml(inner)}" for key, inner in value.items())
        return f"{{{', '.join(entries)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str | bool):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)


def set_value(raw: Raw, path: str, value: object) -> Raw:
    """A copy of `raw` with a value at a dotted path such as ``training.epochs``."""
    return _put(raw, [key.strip() for key in path.split(".")], value)


def _put(raw: Raw, keys: list[str], value: object) -> Raw:
    """A copy of `raw` with a value at a path; a bare name on the way becomes a section."""
    first, *rest = keys
    if not rest:
        return {**raw, first: value}
    inner = raw.get(first, {})
    section = {"name": inner} if isinstance(inner, str) else inner
    if not isinstance(section, dict):
        raise ProtofedError(f"{first} is a value, not a section: '{'.'.join(keys)}' has no meaning")
    return {**raw, first: _put(section, rest, value)}


def choose_named(raw: Raw, section: str, name: str) -> Raw:
    """Choose the method or the data set by name, and drop settings of another one.

    ``choose_named({"method": {"name": "fedprox", "mu": 1}}, "method", "fpl")`` loses ``mu``.
    """
    given = raw.get(section)
    fields = given if isinstance(given, dict) and given.get("name", name) == name else {}
    return {**raw, section: {**fields, "name": name}}


def parse_experiment(
    raw: Mapping[str, Any], source: str = "", access: CodeAccess = ANY_CODE
) -> Experiment:
    """Check plain data and complete it with defaults; every fault found is reported at once.

    `source` names the file that the data came from; it stands before each line of an error.
    `access` says which code of a user's own it may bring in. ::

        parse_experiment({"method": "fedprox", "data": "digits", "rounds": 40})
    """
    try:
        return Experiment.model_validate(dict(raw), context=access)
    except ProtofedError as fault:
        if not source:
            raise
        lines = [f"{source}: {line}" for line in str(fault.args[0]).splitlines()]
        raise ProtofedError("\n".join(lines), fault.hint) from fault
