"""What is wrong with a spec, in lines for people: the field, what was given, what is allowed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

from pydantic import ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from protofed.data.partition import RULES
from protofed.errors import ProtofedError, did_you_mean, printable_text

MOST_LINES = 5
WRONG_KIND = ("dict_type", "int_type", "float_type")
KnownFields = Mapping[str, Sequence[str]]  # by section; "" names the fields of the whole


def unknown_name_error(name: str, known: Iterable[str]) -> PydanticCustomError:
    """The fault of an unknown name, to raise inside a validator.

    It carries the known names, from which `explain_faults` makes the message.
    """
    return PydanticCustomError("unknown_name", "unknown name", {"name": name, "known": list(known)})


def fault_lines_error(lines: Iterable[str], hint: str = "") -> PydanticCustomError:
    """The fault of a part that explains itself: complete lines, each with its field's name.

    `hint` is that of a `ProtofedError`; its options are written for the reader only at the end.
    """
    return PydanticCustomError("explained", "explained", {"lines": list(lines), "hint": hint})


def spec_error(fault: ValidationError, known: KnownFields) -> ProtofedError:
    """The error to raise in place of pydantic's: at most five printable lines.

    `known` holds the fields that exist, for "did you mean".
    """
    lines = [printable_text(line) for line in explain_faults(fault, (), known)]
    if len(lines) > MOST_LINES:
        rest = len(lines) - MOST_LINES + 1
        lines = [*lines[: MOST_LINES - 1], f"... and {rest} more faults"]
    hints = [error["ctx"]["hint"] for error in fault.errors() if error["type"] == "explained"]
    return ProtofedError("\n".join(lines), "\n".join(dict.fromkeys(filter(None, hints))))


def explain_faults(fault: ValidationError, where: tuple[str, ...], known: KnownFields) -> list[str]:
    """One line for each fault, as ``training.lr: input should be greater than 0, got -1``.

    `where` is the path of what was validated, ``("method",)`` for a method's own fields; `known`
    holds the fields that a misspelt one may have meant.
    """
    lines: list[str] = []
    for error in _of_the_meant_branch(fault.errors()):
        path = [*where, *_fields_of(error["loc"])]
        kind, given, name = error["type"], error["input"], ".".join(path)
        if kind in ("extra_forbidden", "unexpected_keyword_argument"):
            lines.append(f"{name}: no such field{_meant_field(path[len(where) :], known)}")
        elif kind == "unknown_name":
            lines.append(f"{name}: {unknown_name(**error['ctx'])}")
        elif kind == "explained":
            lines += error["ctx"]["lines"]
        elif kind == "tuple_type":
            lines.append(f'{name}: write a list, ["first", "second"], got {_brief(given)}')
        elif kind in ("missing", "missing_argument"):
            lines.append(f"{name}: is required")
        elif kind != "default_factory_not_called":
            message = error["msg"].removeprefix("Value error, ")
            close = _meant_choice(error) if kind == "literal_error" else ""
            lines.append(f"{name}: {message[0].lower()}{message[1:]}, got {_brief(given)}{close}")
    return lines


def unknown_name(name: str, known: Iterable[str]) -> str:
    """The text for an unknown name: the nearest known one, and all of them."""
    names = list(known)
    return f"unknown name '{name}'{did_you_mean(name, names)} (known: {', '.join(names)})"


def _meant_choice(error: ErrorDetails) -> str:
    """The hint for a text that is none of a field's choices: the nearest of them."""
    choices = re.findall(r"'([^']*)'", error["ctx"]["expected"])
    return did_you_mean(str(error["input"]), choices)


def _fields_of(place: tuple[int | str, ...]) -> list[str]:
    """A fault's place without the branches of unions that pydantic puts into it."""
    branches = {"partition": list(RULES), "data": ["here", "rows", "sites"]}.get(str(place[0]), [])
    steps = (place[0], *place[2:]) if place[1:2] and place[1] in branches else place
    return [str(step) for step in steps if not _is_branch(step)] or [str(s) for s in place[-1:]]


def _is_branch(step: int | str) -> bool:
    """Whether a step names a branch of "a number or a table"."""
    return str(step).startswith(("constrained-", "dict["))


def _of_the_meant_branch(errors: Sequence[ErrorDetails]) -> list[ErrorDetails]:
    """Where a value may be a number or a table, only the faults of the kind that was given."""
    wrong = [e for e in errors if _is_branch("".join(map(str, e["loc"][-1:])))]
    wrong = [e for e in wrong if e["type"] in WRONG_KIND]
    kept = [e for e in errors if e not in wrong]
    for error in wrong:
        place = error["loc"][:-1]
        if not any(other["loc"][: len(place)] == place for other in kept):
            kept.append(error)
    return kept


def _meant_field(path: Sequence[str], known: KnownFields) -> str:
    """The hint for a field that does not exist: the nearest one, and all there are."""
    name = path[-1]
    fields = known.get(path[0] if len(path) > 1 else "", [])
    if path[0] == "partition" and name in fields:  # of a partition, but of one of another kind
        kinds = [kind for kind, rule in RULES.items() if name in field_names(rule)]
        return f" in a partition of this kind; it belongs to kind {' or '.join(kinds)}"
    homes = [section for section, names in known.items() if section and name in names]
    if len(path) == 1 and homes:
        return f"; did you mean '{homes[0]}.{name}'?"
    return f"{did_you_mean(name, fields)} (known: {', '.join(fields) or 'none'})"


def field_names(section: type) -> list[str]:
    """The names of a dataclass's fields."""
    return [field.name for field in dataclasses.fields(section)]


def _brief(given: object) -> str:
    text = repr(given)
    return text if len(text) <= 60 else f"{text[:57]}..."
