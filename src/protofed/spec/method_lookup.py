"""Methods by name: ours, those of installed packages, and classes in the user's own files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from inspect import get_annotations
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic.dataclasses import dataclass
from pydantic_core import to_jsonable_python

from protofed.core.method import AnyMethod, Method, MethodInfo
from protofed.core.model import InputShape, Net
from protofed.errors import ProtofedError
from protofed.methods import METHODS
from protofed.methods.fedavg import FedAvg
from protofed.runtime.code_reference import (
    ANY_CODE,
    CodeAccess,
    installed_plugins,
    is_reference,
    load_user_code,
    parse_reference,
    reference_to,
)
from protofed.spec.spec_faults import explain_faults, field_names, unknown_name

PLUGINS = "protofed.methods"  # the entry point group of installed methods
OWN = "or your own, as path/to/mine.py:Mine"


@dataclass(frozen=True)
class UnloadedMethod(Method[Any, Any]):
    """A method of which only the name and the fields are known: its code is not loaded.

    It stands in for the class where scores are read, so that tables, figures and reports work
    after the code is gone, and reading somebody's run folder executes nothing. It cannot train.
    """

    name: str
    settings: Mapping[str, Any]
    label: str = ""

    @property
    def info(self) -> MethodInfo:  # type: ignore[override]
        """The label that the run has recorded."""
        return MethodInfo(label=self.label or method_slug(self.name), title=self.name)

    def adapt(self, net: Net, image: InputShape) -> Net:
        raise ProtofedError(
            f"the code of {self.name} is not loaded, so nothing can be trained or predicted with it"
        )


def method_name(method: AnyMethod) -> str:
    """The name of a method in a spec: ``fedavg``, or ``/home/me/mine.py:Mine`` for one's own."""
    if isinstance(method, UnloadedMethod):
        return method.name
    kind = method_class(method)
    for name, known in METHODS.items():
        if kind is known:
            return name
    return str(reference_to(kind))


def method_class(method: AnyMethod) -> type[AnyMethod]:
    """The class that a method is named by: plain `Method` holds the defaults of averaging."""
    return FedAvg if type(method) is Method else type(method)


def method_slug(name: str) -> str:
    """A method's name for folders and columns: without the module, ``Mine``."""
    return name.rpartition(":")[2].rpartition(".")[2]


def without_folders(table: Mapping[str, Any]) -> dict[str, Any]:
    """A described method, with the methods inside it, named independently of where files lie."""
    plain = {
        key: without_folders(value) if isinstance(value, Mapping) and "name" in value else value
        for key, value in table.items()
    }
    name = str(table["name"])
    return {**plain, "name": parse_reference(name).label if is_reference(name) else name}


def code_names(spec: Mapping[str, Any]) -> list[str]:
    """The references in a spec to code that is not protofed's own: of methods and nets.

    ``{"method": {"name": "pgct", "base": "/home/me/mine.py:Mine"}}`` names one.
    """
    nets = spec.get("net")
    given = [*nets] if isinstance(nets, list | tuple) else [nets]
    names = [name for name in (*_texts(spec.get("method")), *given) if isinstance(name, str)]
    return [name for name in names if is_reference(name) and _names_code(name)]


def find_moved_code(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A spec whose files of code are looked for in the current folder, if they are gone.

    A run folder names them by their full path, which is another one after the project has moved.
    ``/old/nets/mine.py:Mine`` becomes ``nets/mine.py:Mine``, or ``mine.py:Mine``, if that file
    exists here; what it holds is compared with the record of the run's code elsewhere. Raises if a
    file is nowhere.
    """
    moved: dict[str, str] = {}
    for name in code_names(spec):
        given = parse_reference(name)
        if given.is_file and not Path(given.module).is_file():
            parts = Path(given.module).parts[1:]
            places = [Path.cwd().joinpath(*parts[first:]) for first in range(len(parts))]
            here = next((place for place in places if place.is_file()), None)
            if here is None:
                raise ProtofedError(
                    f"{name}: there is no file {given.module}, nor {parts[-1]} in the current "
                    "folder\nchange to the folder that the project is in now, or put the file back"
                )
            moved[name] = f"{here}:{given.name}"
    return {key: _renamed(value, moved) for key, value in spec.items()}


def _renamed(given: Any, names: Mapping[str, str]) -> Any:
    """A described method or net with other names of code in it."""
    if isinstance(given, Mapping):
        return {key: _renamed(value, names) for key, value in given.items()}
    if isinstance(given, list | tuple):
        return [_renamed(value, names) for value in given]
    return names.get(given, given) if isinstance(given, str) else given


def _names_code(text: str) -> bool:
    """Whether a text with a colon can mean code, rather than a value of a field."""
    try:
        return all(p.isidentifier() or "<" in p for p in parse_reference(text).name.split("."))
    except ProtofedError:
        return False


def _texts(given: object) -> list[str]:
    """All texts in a described method; among them its name, and those of methods in its fields."""
    if isinstance(given, Mapping):
        return [text for value in given.values() for text in _texts(value)]
    return [given] if isinstance(given, str) else []


def describe_method(method: AnyMethod) -> dict[str, Any]:
    """A method as plain data: its name and hyperparameters, with nested methods likewise."""
    if isinstance(method, UnloadedMethod):
        return {"name": method.name, **method.settings}
    fields = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}
    plain = {
        key: describe_method(value) if isinstance(value, Method) else _plain_value(key, value)
        for key, value in fields.items()
    }
    return {"name": method_name(method), **plain}


def _plain_value(field: str, value: object) -> object:
    """A field's value as plain data; what would lose its class is refused."""
    items = value if isinstance(value, list | tuple) else [value]
    if any(dataclasses.is_dataclass(item) for item in items):
        raise ProtofedError(
            f"method.{field}: a field holds numbers, texts, lists of them, or one method; anything "
            "else could not be told apart in a spec"
        )
    return to_jsonable_python(value)


def parse_method(given: object, access: CodeAccess = ANY_CODE) -> AnyMethod:
    """A method from its name, or from a table with its name and hyperparameters.

    ``parse_method("fedavg")``, ``parse_method({"name": "fedprox", "mu": 0.1})``,
    ``parse_method("path/to/mine.py:Mine")``; a method is returned as it is. A field that holds a
    method, as PGCT's ``base``, takes the same forms. `access` says which code may be loaded.
    """
    if isinstance(given, Method):
        return given
    table = {"name": given} if isinstance(given, str) else given
    if not isinstance(table, Mapping):
        raise ProtofedError(f"method: give a name or a table with a name, got {given!r}")
    fields = {str(key): value for key, value in table.items()}
    name = fields.pop("name", "fedavg")
    if not isinstance(name, str):
        raise ProtofedError(f"method: {unknown_name(str(name), METHODS)}")
    if access.load:
        return _make_method(find_method_class(name, access), fields, access)
    try:
        return _make_method(METHODS[name], fields, access)
    except (KeyError, ProtofedError):  # foreign, or of a version that had other fields
        label = METHODS[name].info.label if name in METHODS else ""
        return UnloadedMethod(name, fields, label)


def _make_method(kind: type[AnyMethod], fields: dict[str, Any], access: CodeAccess) -> AnyMethod:
    for field in dataclasses.fields(kind):
        if isinstance(field.default, Method) and isinstance(fields.get(field.name), str | Mapping):
            fields = {**fields, field.name: parse_method(fields[field.name], access)}
    try:
        return kind(**fields)
    except ValidationError as fault:
        lines = explain_faults(fault, ("method",), {"": field_names(kind)})
        raise ProtofedError("\n".join(lines)) from fault


def find_method_class(name: str, access: CodeAccess = ANY_CODE) -> type[AnyMethod]:
    """The class of a method: ours, an installed package's, or one in the user's own file.

    A reference such as ``path/to/mine.py:Mine`` or ``package.module:Mine`` is imported if `access`
    allows it; what is found must be a method.
    """
    if name in METHODS:
        return METHODS[name]
    found = load_user_code(name, PLUGINS, access)
    if found is None:
        known = [*METHODS, *installed_plugins(PLUGINS), OWN]
        raise ProtofedError(f"method: {unknown_name(name, known)}")
    return check_method_class(name, found)


def check_method_class(name: str, found: object) -> type[AnyMethod]:
    """Return what a reference led to if it is a method's class; else say what is missing."""
    if isinstance(found, type) and "<" in found.__qualname__:
        raise ProtofedError(
            f"method: {name} is defined inside a function\ndefine the class at the top level of "
            "its file, so that it can be found again"
        )
    if not (isinstance(found, type) and issubclass(found, Method)):
        raise ProtofedError(
            f"method: {name} is no method\na method is a class that subclasses Method, from "
            "protofed.api"
        )
    own = [n for n, kind in get_annotations(found).items() if "ClassVar" not in str(kind)]
    if own and "__dataclass_fields__" not in vars(found):
        raise ProtofedError(
            f"method: {name} has fields ({', '.join(own)}) but is no dataclass\n"
            "write @dataclass(frozen=True) above the class, with dataclass from protofed.api"
        )
    if not isinstance(getattr(found, "info", None), MethodInfo):
        raise ProtofedError(
            f"method: {name} has no info\n"
            'add: info: ClassVar[MethodInfo] = MethodInfo(label="...", title="...")'
        )
    return found
