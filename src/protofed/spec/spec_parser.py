"""From a stranger's TOML, dict or flags to an Experiment, or to lines that say what is wrong."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from protofed.core.method import AnyMethod, Method
from protofed.core.training import Training
from protofed.data.partition import RULES
from protofed.errors import ProtofedError, did_you_mean, printable_text
from protofed.methods import METHODS
from protofed.methods.fedavg import FedAvg
from protofed.runtime.json_files import parse_json
from protofed.spec.experiment_spec import Data, Experiment

MOST_BYTES = 1 << 20  # no honest spec is larger
MOST_LINES = 5
# tomllib takes minutes for a name of many parts: its time grows with their square.
DEEP_KEY = re.compile(r"(?<![\w\"'-])(?:[\w\"'-]++\s*+\.\s*+){20}")
WRONG_KIND = ("dict_type", "int_type", "float_type")

Raw = dict[str, Any]


def read_spec(path: Path) -> Raw:
    """The tables of a TOML file, or of a run folder's spec.json, as plain data."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise ProtofedError(f"{path}: larger than 1 MiB, so hardly a spec")
        text = path.read_text(encoding="utf-8-sig")
        if DEEP_KEY.search(text):
            raise ProtofedError(f"{path}: a name with more than 20 dots, so hardly a spec")
        if path.suffix == ".json":
            saved = dict(parse_json(text, path))
            return {key: value for key, value in saved.items() if key != "digest"}
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
    """Apply one ``section.field=value``; the value is read as TOML, or as text if it is none."""
    path, equals, text = assignment.partition("=")
    if not equals or not all(key.strip() for key in path.split(".")):
        raise ProtofedError(f"{assignment}: write section.field=value")
    try:
        value = tomllib.loads(f"value = {text.strip()}")["value"]
    except (ValueError, RecursionError):  # no TOML, a number too long, brackets too deep
        value = text.strip()
    return set_value(raw, path, value)


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
    """Name the method or the data set, dropping what was said about another one."""
    given = raw.get(section)
    fields = given if isinstance(given, dict) and given.get("name", name) == name else {}
    return {**raw, section: {**fields, "name": name}}


def parse_experiment(raw: Mapping[str, Any], source: str = "") -> Experiment:
    """Check plain data and complete it; every fault found is told at once."""
    given, faults = dict(raw), []
    method: AnyMethod = FedAvg()
    try:
        method = parse_method(given.get("method", "fedavg"))
    except ProtofedError as fault:
        faults += str(fault).splitlines()
    if isinstance(given.get("data"), str):
        given["data"] = {"name": given["data"]}
    try:
        made = Experiment.model_validate({**given, "method": method})
    except ValidationError as fault:
        faults += explain_faults(fault)
    except ProtofedError as fault:  # of a folder of images
        told = str(fault).splitlines()
        if not faults:  # not cut short: it names every file that cannot be used
            raise ProtofedError("\n".join(_from(source, told))) from fault
        faults += [f"data: {line}" for line in told]
    if faults:
        raise ProtofedError(_short(_from(source, faults)))
    return made


def parse_method(given: object) -> AnyMethod:
    """A method from its name, or from a table with a name and hyperparameters."""
    table = {"name": given} if isinstance(given, str) else given
    if not isinstance(table, Mapping):
        raise ProtofedError(f"method: give a name or a table with a name, got {given!r}")
    fields = dict(table)
    name = fields.pop("name", "fedavg")
    if not isinstance(name, str) or name not in METHODS:
        raise ProtofedError(f"method: {_unknown(str(name), METHODS)}")
    for field in dataclasses.fields(METHODS[name]):
        if isinstance(field.default, Method) and isinstance(fields.get(field.name), str | Mapping):
            fields[field.name] = parse_method(fields[field.name])
    try:
        return METHODS[name](**{str(key): value for key, value in fields.items()})
    except ValidationError as fault:
        known = [field.name for field in dataclasses.fields(METHODS[name])]
        raise ProtofedError("\n".join(explain_faults(fault, ("method",), known))) from fault


def explain_faults(
    fault: ValidationError, where: tuple[str, ...] = (), known: list[str] | None = None
) -> list[str]:
    """One line for each fault: field, what was given, what is allowed."""
    lines = []
    for error in _of_the_meant_branch(fault.errors()):
        path = [*where, *_fields_of(error["loc"])]
        kind, given, name = error["type"], error["input"], ".".join(path)
        if kind in ("extra_forbidden", "unexpected_keyword_argument"):
            lines.append(f"{name}: no such field{_known_fields(path, known)}")
        elif kind == "unknown_name":
            lines.append(f"{name}: {_unknown(**error['ctx'])}")
        elif kind == "tuple_type":
            lines.append(f'{name}: write a list, ["first", "second"], got {_brief(given)}')
        elif kind in ("missing", "missing_argument"):
            lines.append(f"{name}: is required")
        elif kind != "default_factory_not_called":
            message = error["msg"].removeprefix("Value error, ")
            lines.append(f"{name}: {message[0].lower()}{message[1:]}, got {_brief(given)}")
    return lines


def _fields_of(place: tuple[int | str, ...]) -> list[str]:
    """A fault's place without the branches of unions that pydantic puts into it."""
    rule = place[:1] == ("partition",) and place[1:2] and place[1] in RULES
    steps = (place[0], *place[2:]) if rule else place
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


def _unknown(name: str, known: Iterable[str]) -> str:
    names = list(known)
    return f"unknown name '{name}'{did_you_mean(name, names)} (known: {', '.join(names)})"


def _known_fields(path: list[str], known: list[str] | None) -> str:
    """The hint for a field that does not exist: the nearest one, and all there are."""
    name, sections = path[-1], _sections()
    if known is None:
        known = sections.get(path[0], []) if len(path) > 1 else list(Experiment.model_fields)
    if path[0] == "partition" and name in known:  # of a partition, but of one of another kind
        kinds = [kind for kind, rule in RULES.items() if name in _names(rule)]
        return f" in a partition of this kind; it belongs to kind {' or '.join(kinds)}"
    homes = [section for section, fields in sections.items() if name in fields]
    if len(path) == 1 and homes:
        return f"; did you mean '{homes[0]}.{name}'?"
    return f"{did_you_mean(name, known)} (known: {', '.join(known) or 'none'})"


def _sections() -> dict[str, list[str]]:
    """The fields of each section of a spec; of the partition, those of every kind."""
    rules = [name for rule in RULES.values() for name in _names(rule)]
    return {
        "data": list(Data.model_fields),
        "training": _names(Training),
        "partition": list(dict.fromkeys(rules)),
        "method": [name for method in METHODS.values() for name in _names(method)],
    }


def _names(section: type) -> list[str]:
    return [field.name for field in dataclasses.fields(section)]


def _brief(given: object) -> str:
    text = repr(given)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _from(source: str, lines: Iterable[str]) -> list[str]:
    return [f"{source}: {line}" if source else line for line in lines]


def _short(lines: Iterable[str]) -> str:
    """At most five lines; what is not printable is escaped, as it came from a stranger."""
    shown = [printable_text(line) for line in lines]
    if len(shown) > MOST_LINES:
        rest = len(shown) - MOST_LINES + 1
        shown = [*shown[: MOST_LINES - 1], f"... and {rest} more faults"]
    return "\n".join(shown)
