"""Reading a stranger's JSON: each value of the type and size that was asked for, or an error."""

from __future__ import annotations

import json
from collections.abc import Iterable

from protofed.core.errors import ProtofedError, printable_text


def parse_json_object(text: str) -> dict[str, object]:
    """A JSON object in which no key comes twice; the functions below judge its values."""
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
    """An object; `what` is how an error calls it, here and below."""
    if not isinstance(value, dict):
        raise _refused(what, "an object", value)
    return value


def require_fields(told: dict[str, object], fields: Iterable[str]) -> None:
    """Refuse an object that has other fields than these."""
    for name in fields:
        if name not in told:
            raise ProtofedError(f"{name} is missing")
    for name in told:
        if name not in fields:
            raise ProtofedError(f"{printable_text(name, 40)} is no field that is known here")


def require_list(what: str, value: object, least: int, most: int) -> list[object]:
    """A list of `least` to `most` values."""
    if not isinstance(value, list):
        raise _refused(what, "a list", value)
    if not least <= len(value) <= most:
        raise ProtofedError(f"{what} must have {_span(least, most)} entries, not {len(value)}")
    return value


def require_int(what: str, value: object, least: int, most: int) -> int:
    """A whole number from `least` to `most`; True, 3.0 and "3" are none."""
    if type(value) is not int or not least <= value <= most:
        raise _refused(what, f"a whole number, {_span(least, most)}", value)
    return value


def require_text(what: str, value: object, least: int, most: int) -> str:
    """Text of `least` to `most` characters, all of which can be printed."""
    if not isinstance(value, str) or not value.isprintable():
        raise _refused(what, "printable text", value)
    if not least <= len(value) <= most:
        raise ProtofedError(f"{what} must have {_span(least, most)} characters, not {len(value)}")
    return value


def _span(least: int, most: int) -> str:
    return f"{least}" if least == most else f"{least} to {most}"


def _refused(what: str, wanted: str, value: object) -> ProtofedError:
    """What is wrong; of a list or object nothing is shown, as it may be of any depth."""
    nested = isinstance(value, (list, dict))
    shown = f"a {type(value).__name__}" if nested else printable_text(repr(value), 40)
    return ProtofedError(f"{what} must be {wanted}, not {shown}")
