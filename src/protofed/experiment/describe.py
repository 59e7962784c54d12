"""A method as plain data: what a spec prints of it, and what its digest stands on."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
from typing import Any

from pydantic_core import to_jsonable_python

from protofed.core.method import AnyMethod, Method
from protofed.methods import METHODS
from protofed.methods.fedavg import FedAvg


def method_name(method: AnyMethod) -> str:
    """The command-line name of a method; for one that is not ours, its full class name."""
    kind = FedAvg if type(method) is Method else type(method)  # whose defaults Method holds
    for name, known in METHODS.items():
        if kind is known:
            return name
    return f"{type(method).__module__}.{type(method).__qualname__}"


def describe_method(method: AnyMethod) -> dict[str, Any]:
    """A method as plain data: its name and its hyperparameters, methods among them likewise.

    A method that is not ours is told apart by its file's source too, so that an edited one is a new
    run; in a script, which says more than the method, by its class alone.
    """
    fields = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}
    name = method_name(method)
    plain = {
        key: describe_method(value) if isinstance(value, Method) else to_jsonable_python(value)
        for key, value in fields.items()
    }
    return (
        {"name": name, **plain} if name in METHODS else {"name": name, **_method_source(method), **plain}
    )


def _method_source(method: AnyMethod) -> dict[str, str]:
    kind = type(method)
    home = None if kind.__module__ == "__main__" else inspect.getmodule(kind)
    try:
        code = inspect.getsource(home or kind)
    except (OSError, TypeError):  # typed in at a prompt
        return {}
    return {"source": hashlib.sha256(code.encode()).hexdigest()[:12]}
