"""The spec: everything that decides a run's numbers, complete, frozen and named by its digest."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import (
    BeforeValidator,
    Field,
    InstanceOf,
    PlainSerializer,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError, to_jsonable_python

from protofed.core.method import AnyMethod, Method
from protofed.core.training import Training
from protofed.data.catalog import net_of, partition_of
from protofed.data.partition import Partition
from protofed.experiment.images import Data, Section, unknown
from protofed.methods import METHODS
from protofed.methods.fedavg import FedAvg
from protofed.nets import NETS

__all__ = ["Data", "Experiment", "Public", "describe_method", "method_name"]
ALTERNATIVES = ({"share", "samples"}, {"alpha", "beta"})  # two ways to say one thing


def method_name(method: AnyMethod) -> str:
    """The command-line name of a method; for one that is not ours, its full class name."""
    kind = FedAvg if type(method) is Method else type(method)  # whose defaults Method holds
    for name, known in METHODS.items():
        if kind is known:
            return name
    return f"{type(method).__module__}.{type(method).__qualname__}"


def describe_method(method: AnyMethod) -> dict[str, Any]:
    """A method as plain data: its name and its hyperparameters, methods among them likewise.

    A method that is not ours is told apart by its source too, so that an edited one is a new run.
    """
    fields = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}
    name = method_name(method)
    plain = {
        key: describe_method(value) if isinstance(value, Method) else to_jsonable_python(value)
        for key, value in fields.items()
    }
    return (
        {"name": name, **plain} if name in METHODS else {"name": name, **_code_of(method), **plain}
    )


def _code_of(method: AnyMethod) -> dict[str, str]:
    try:
        code = inspect.getsource(type(method))
    except (OSError, TypeError):  # typed in at a prompt
        return {}
    return {"source": hashlib.sha256(code.encode()).hexdigest()[:12]}


def _nets(given: object) -> object:
    """Check the name of a net, or a list of such names."""
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not names:
        raise PydanticCustomError("net", "write a name, or a list of names for the clients in turn")
    for name in names:
        if str(name) not in NETS:
            raise unknown(str(name), NETS)
    return given if isinstance(given, str) else tuple(names)


def _over(default: object, given: object) -> object:
    """A table over a default one keeps the entries that it does not name."""
    if isinstance(default, Mapping) and isinstance(given, Mapping):
        return {**default, **given}
    return given


def _without_none(section: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in section.items() if value is not None}


def _wants_public(method: AnyMethod) -> bool:
    return "public images" in method.needs


class Public(Section):
    """Images that everyone may see, for methods that need them: training images of no client."""

    samples: int = Field(default=1000, ge=1, strict=True)  # in all; the same from each domain


class Experiment(Section):
    """One run. Equal experiments have equal digests and give equal bits."""

    data: Data = Field(default_factory=Data)
    method: Annotated[InstanceOf[Method], PlainSerializer(describe_method)] = FedAvg()
    net: Annotated[str | tuple[str, ...], BeforeValidator(_nets)] = Field(
        default_factory=lambda done: net_of(done["data"].name)
    )  # of all clients; or a list, which the clients take in turn
    partition: Partition = Field(
        default_factory=lambda done: partition_of(done["data"].name, done["data"].domains)
    )
    public: Public | None = Field(
        default_factory=lambda done: Public() if _wants_public(done["method"]) else None
    )
    leave_out: str | None = None  # a domain whose images nobody trains on; it is scored as unseen
    validation: float | None = Field(
        default=None, gt=0, lt=1, strict=True
    )  # share of each client's images on which scores are taken, in place of the test images
    training: Training = Training()
    rounds: int = Field(default=20, ge=1, le=1_000_000, strict=True)
    participation: float = Field(
        default=1.0, gt=0, le=1, strict=True
    )  # share of the clients in each round
    evaluate_every: int = Field(
        default=1, ge=1, strict=True
    )  # rounds; the last round is always scored
    seed: int = Field(default=0, ge=0, lt=2**63, strict=True)
    threads: int = Field(
        default=1, ge=1, le=256, strict=True
    )  # of torch; part of the spec as it moves bits

    @field_validator("partition", mode="before")
    @classmethod
    def _over_the_default(cls, given: object, info: ValidationInfo) -> object:
        """Let ``partition.clients = 8`` alone keep the rest of the benchmark's rule."""
        if not isinstance(given, Mapping) or "data" not in info.data:
            return given
        data = info.data["data"]
        default = to_jsonable_python(partition_of(data.name, data.domains))
        if given.get("kind", default["kind"]) != default["kind"]:
            return {"clients": default["clients"], **given}
        for group in ALTERNATIVES:
            if group & given.keys():
                default = {key: value for key, value in default.items() if key not in group}
        return {**default, **{key: _over(default.get(key), value) for key, value in given.items()}}

    @field_validator("leave_out")
    @classmethod
    def _one_of_several(cls, name: str | None, info: ValidationInfo) -> str | None:
        domains = info.data["data"].domains if "data" in info.data else ()
        if name is not None and domains and name not in domains:
            raise unknown(name, domains)
        if name is not None and len(domains) == 1:
            raise ValueError("the only domain; somebody must train")
        return name

    @field_validator("public")
    @classmethod
    def _has_a_use(cls, public: Public | None, info: ValidationInfo) -> Public | None:
        method = info.data.get("method")
        if method and bool(public) != _wants_public(method):
            wrong = "not used by" if public else "needed by"
            raise ValueError(f"{wrong} {method.about.label}: leave it out")
        return public

    @property
    def nets(self) -> tuple[str, ...]:
        """The names of the nets, one for all clients or several that they take in turn."""
        return (self.net,) if isinstance(self.net, str) else self.net

    def plain(self) -> dict[str, Any]:
        """The resolved spec as plain data, ready for JSON, without sections that are not there."""
        sections = self.model_dump(mode="json")
        sections["data"] = _without_none(sections["data"])
        return _without_none(sections)

    @property
    def digest(self) -> str:
        """The name of this run: SHA-256 of the resolved spec, wherever a folder of images lies."""
        plain = self.plain()
        plain["data"]["name"] = self.data.label
        text = json.dumps(plain, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()
