"""The spec: everything that decides a run's numbers, complete, frozen and named by a digest."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    InstanceOf,
    ModelWrapValidatorHandler,
    PlainSerializer,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError, to_jsonable_python

from protofed.core.method import AnyMethod, Method
from protofed.core.training import Training
from protofed.data.benchmarks import (
    BENCHMARKS,
    benchmark_info,
    default_net,
    default_partition,
    looks_like_folder,
    source_label,
)
from protofed.data.folder_images import FolderInfo, one_client_per_domain
from protofed.data.partition import RULES, Partition
from protofed.errors import ProtofedError
from protofed.methods import METHODS
from protofed.methods.fedavg import FedAvg
from protofed.nets import NETS, Convolution
from protofed.spec.spec_faults import (
    KnownFields,
    explain_faults,
    fault_lines_error,
    field_names,
    spec_error,
    unknown_name,
    unknown_name_error,
)


def method_name(method: AnyMethod) -> str:
    """The command-line name of a method, as ``fedavg``.

    For a method that is not ours, the full name of its class.
    """
    kind = FedAvg if type(method) is Method else type(method)  # whose defaults Method holds
    for name, known in METHODS.items():
        if kind is known:
            return name
    return f"{type(method).__module__}.{type(method).__qualname__}"


def describe_method(method: AnyMethod) -> dict[str, Any]:
    """A method as plain data: its name and hyperparameters, with nested methods likewise.

    A method that is not ours also carries a digest of its file, so an edited method is a new run.
    In a script, which contains more than the method, only the class counts.
    """
    fields = {f.name: getattr(method, f.name) for f in dataclasses.fields(method)}
    name = method_name(method)
    plain = {
        key: describe_method(value) if isinstance(value, Method) else to_jsonable_python(value)
        for key, value in fields.items()
    }
    return (
        {"name": name, **plain}
        if name in METHODS
        else {"name": name, **_method_source(method), **plain}
    )


def _method_source(method: AnyMethod) -> dict[str, str]:
    kind = type(method)
    home = None if kind.__module__ == "__main__" else inspect.getmodule(kind)
    try:
        code = inspect.getsource(home or kind)
    except (OSError, TypeError):  # typed in at a prompt
        return {}
    return {"source": hashlib.sha256(code.encode()).hexdigest()[:12]}


def parse_method(given: object) -> AnyMethod:
    """A method from its name, or from a table with its name and hyperparameters.

    ``parse_method("fedavg")``, ``parse_method({"name": "fedprox", "mu": 0.1})``; a method is
    returned as it is. A field that holds a method, as PGCT's ``base``, takes the same forms.
    """
    if isinstance(given, Method):
        return given
    table = {"name": given} if isinstance(given, str) else given
    if not isinstance(table, Mapping):
        raise ProtofedError(f"method: give a name or a table with a name, got {given!r}")
    fields = dict(table)
    name = fields.pop("name", "fedavg")
    if not isinstance(name, str) or name not in METHODS:
        raise ProtofedError(f"method: {unknown_name(str(name), METHODS)}")
    for field in dataclasses.fields(METHODS[name]):
        if isinstance(field.default, Method) and isinstance(fields.get(field.name), str | Mapping):
            fields[field.name] = parse_method(fields[field.name])
    try:
        return METHODS[name](**{str(key): value for key, value in fields.items()})
    except ValidationError as fault:
        lines = explain_faults(fault, ("method",), {"": field_names(METHODS[name])})
        raise ProtofedError("\n".join(lines)) from fault


def _method(given: object) -> AnyMethod:
    try:
        return parse_method(given)
    except ProtofedError as fault:
        raise fault_lines_error(str(fault).splitlines()) from fault


def _known_source(name: str) -> str:
    """A benchmark's name, or the full path of a folder of images."""
    if looks_like_folder(name):
        return str(Path(name).expanduser().resolve())
    if name not in BENCHMARKS:
        raise unknown_name_error(name, [*BENCHMARKS, "or a folder, as path/to/images"])
    return name


def benchmark_of(field: str, ge: int | None = None, le: int | None = None) -> Any:
    """A field whose default comes from the chosen benchmark.

    `field` names the attribute of the benchmark; `ge` and `le` bound other values.
    """
    return Field(
        default_factory=lambda done: getattr(benchmark_info(done["name"]), field),
        ge=ge,
        le=le,
    )


class SpecSection(BaseModel):
    """A part of the spec: no unknown keys, no NaN, no change once made.

    A wrong value is a `ProtofedError` that names the field and what is allowed, in Python and on
    the command line alike.
    """

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, validate_default=True
    )

    @model_validator(mode="wrap")
    @classmethod
    def _explained(
        cls, given: Any, handler: ModelWrapValidatorHandler[Self], info: ValidationInfo
    ) -> Self:
        if info.field_name is not None:  # part of another section, which explains all faults
            return handler(given)
        try:
            return handler(given)
        except ValidationError as fault:
            raise spec_error(fault, cls._known_fields()) from fault

    @classmethod
    def _known_fields(cls) -> KnownFields:
        return {"": list(cls.model_fields)}


class Data(SpecSection):
    """Which images a run uses, and how a net sees them; defaults come from the benchmark.

    `name` is a benchmark or a folder of images. `revision` identifies the content: a version for a
    benchmark, a digest for a folder. ::

        Data(name="office-caltech", domains=("amazon", "dslr"))
    """

    name: Annotated[str, AfterValidator(_known_source)] = "digits-mini"  # or a folder of images
    domains: tuple[str, ...] = benchmark_of("domains")
    side: int = benchmark_of("side", ge=8, le=512)
    channels: Literal[1, 3] = benchmark_of("channels")
    pad: int = benchmark_of("pad", ge=0, le=64)  # pixels around the image before a random crop
    flip: bool = benchmark_of("flip")  # random mirror images
    strict: Literal[True] | None = None  # refuse a folder with files that cannot be used
    revision: int | str = Field(
        default_factory=lambda done: benchmark_info(
            done["name"], bool(done["strict"])
        ).data_version(done["side"])
    )  # of the images: only this version's can be had; of a folder, a digest of what it holds

    @model_validator(mode="after")
    def _of_this_benchmark(self) -> Self:
        if not self.domains or len(set(self.domains)) < len(self.domains):
            raise ValueError("domains: name at least one, and each once")
        if looks_like_folder(self.name) and "revision" in self.model_fields_set:
            return self  # a run on record, which stands even if its images are gone by now
        entry = benchmark_info(self.name)
        known = entry.domains + entry.on_request
        for domain in self.domains:
            if domain not in known:
                raise unknown_name_error(domain, known)
        if "revision" in self.model_fields_set and self.revision != entry.revision:
            raise ValueError(f"revision: this version of protofed has {entry.revision}")
        return self

    @property
    def label(self) -> str:
        """A short name without slashes, for folders and headings."""
        return source_label(self.name)

    @property
    def default_net(self) -> str:
        """The net that an experiment takes if it names none."""
        return default_net(self.name)

    @property
    def default_partition(self) -> Partition:
        """Which client holds what, if an experiment does not say it."""
        return default_partition(self.name, self.domains)


class SiteData(SpecSection):
    """Images that stay at the sites of a federation; each site is one domain and one client.

    `revision` is a digest of what the sites have declared. `remote_experiment` makes such an
    experiment, and ``protofed submit`` runs it; no single machine can.
    """

    at: Literal["sites"] = "sites"
    domains: tuple[str, ...] = Field(min_length=1)  # the names of the sites
    side: int = Field(default=FolderInfo.side, ge=8, le=512)
    channels: Literal[1, 3] = 3
    pad: int = Field(default=FolderInfo.pad, ge=0, le=64)
    flip: bool = FolderInfo.flip
    revision: str

    label: ClassVar[str] = "federation"  # for folders and headings
    default_net: ClassVar[str] = FolderInfo.net

    @property
    def default_partition(self) -> Partition:
        """Each site is a client."""
        return one_client_per_domain(self.domains)


def _where_images_are(given: object) -> str:
    remote = "at" in given if isinstance(given, Mapping) else isinstance(given, SiteData)
    return "sites" if remote else "here"


AnyData = Annotated[
    Annotated[Data, Tag("here")] | Annotated[SiteData, Tag("sites")],
    Discriminator(_where_images_are),
]

__all__ = ["Data", "Experiment", "PublicImages", "SiteData"]
ALTERNATIVES = ({"share", "samples"}, {"alpha", "beta"})  # two ways to say one thing


def _nets(given: object) -> object:
    """Check the name of a net, or a list of such names."""
    names = [given] if isinstance(given, str) else given
    if not isinstance(names, list | tuple) or not names:
        raise PydanticCustomError("net", "write a name, or a list of names for the clients in turn")
    for name in names:
        if str(name) not in NETS:
            raise unknown_name_error(str(name), NETS)
    return given if isinstance(given, str) else tuple(names)


def _device(name: str) -> str:
    """A device that this machine has; `auto` becomes the fastest one, so that a digest tells it."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return next((device for device, found in there.items() if found), "cpu")
    if name not in ("cpu", *there):
        raise unknown_name_error(name, ("auto", "cpu", *there))
    if not there.get(name, True):
        raise ValueError(f"this machine (or this torch) has no {name}: use auto or cpu")
    return name


def _over(default: object, given: object) -> object:
    """A table over a default one keeps the entries that it does not name."""
    if isinstance(default, Mapping) and isinstance(given, Mapping):
        return {**default, **given}
    return given


def _without_none(section: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in section.items() if value is not None}


def _wants_public(method: AnyMethod) -> bool:
    return "public images" in method.needs


class PublicImages(SpecSection):
    """Images that all participants may see, for methods that need them.

    They are training images that no client holds, the same number from each domain.
    """

    samples: int = Field(default=1000, ge=1, strict=True)  # in all; the same from each domain


class Experiment(SpecSection):
    """Everything that decides the numbers of a run; equal experiments give equal bits.

    All fields have defaults, and the resolved values are saved in the run folder. `digest` names
    the experiment; it is part of the default folder's name. ::

        Experiment(method=FedProx(mu=0.1), data=Data(name="digits"), rounds=40, seed=1)
    """

    data: AnyData = Field(default_factory=Data)
    method: Annotated[
        InstanceOf[Method], BeforeValidator(_method), PlainSerializer(describe_method)
    ] = FedAvg()  # or its name, or a table of its name and fields
    net: Annotated[str | tuple[str, ...], BeforeValidator(_nets)] = Field(
        default_factory=lambda done: done["data"].default_net
    )  # of all clients; or a list, which the clients take in turn
    conv: Convolution = "direct"  # how wide 3x3 convolutions are computed; moves bits, so stated
    partition: Partition = Field(default_factory=lambda done: done["data"].default_partition)
    public: PublicImages | None = Field(
        default_factory=lambda done: PublicImages() if _wants_public(done["method"]) else None
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
    min_clients: int = Field(
        default=1, ge=1, strict=True
    )  # replies that a round needs; with fewer it fails, and the server's state stays
    on_nonfinite: Literal["stop", "skip"] = "stop"  # where a client's training comes to NaN
    evaluate_every: int = Field(
        default=1, ge=1, strict=True
    )  # rounds; the last round is always scored
    seed: int = Field(default=0, ge=0, lt=2**63, strict=True)
    threads: int = Field(
        default=1, ge=1, le=256, strict=True
    )  # of torch; part of the spec as it moves bits
    device: Annotated[str, AfterValidator(_device)] = "auto"  # where clients train, likewise

    @classmethod
    def _known_fields(cls) -> KnownFields:
        rules = [name for rule in RULES.values() for name in field_names(rule)]
        return {
            "": list(cls.model_fields),
            "data": list(Data.model_fields),
            "training": field_names(Training),
            "partition": list(dict.fromkeys(rules)),
            "method": [name for method in METHODS.values() for name in field_names(method)],
        }

    @field_validator("data", mode="before")
    @classmethod
    def _by_name(cls, given: object) -> object:
        return {"name": given} if isinstance(given, str) else given

    @field_validator("partition", mode="before")
    @classmethod
    def _over_the_default(cls, given: object, info: ValidationInfo) -> object:
        """Let ``partition.clients = 8`` alone keep the rest of the benchmark's rule."""
        if not isinstance(given, Mapping) or "data" not in info.data:
            return given
        default = to_jsonable_python(info.data["data"].default_partition)
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
            raise unknown_name_error(name, domains)
        if name is not None and len(domains) == 1:
            raise ValueError("the only domain; somebody must train")
        return name

    @field_validator("public")
    @classmethod
    def _has_a_use(cls, public: PublicImages | None, info: ValidationInfo) -> PublicImages | None:
        method = info.data.get("method")
        if method and bool(public) != _wants_public(method):
            wrong = "not used by" if public else "needed by"
            raise ValueError(f"{wrong} {method.info.label}: leave it out")
        return public

    @property
    def nets(self) -> tuple[str, ...]:
        """The names of the nets, one for all clients or several that they take in turn."""
        return (self.net,) if isinstance(self.net, str) else self.net

    def to_dict(self) -> dict[str, Any]:
        """The resolved spec as plain data, ready for JSON; what is not set is left out.

        `parse_experiment` makes an equal experiment of it.
        """
        sections = self.model_dump(mode="json")
        return _without_none({**sections, "data": _without_none(sections["data"])})

    @property
    def digest(self) -> str:
        """The name of this run: SHA-256 of the resolved spec, wherever a folder of images lies."""
        plain = self.to_dict()
        if isinstance(self.data, Data):
            plain["data"]["name"] = self.data.label
        text = json.dumps(plain, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


def flatten_spec(spec: Mapping[str, object]) -> dict[str, object]:
    """Nested plain data as one level, by dotted path, in the same order.

    ``{"seed": 0, "training": {"lr": 0.1}}`` becomes ``{"seed": 0, "training.lr": 0.1}``; methods
    within methods are opened too (``method.base.name``). A table by domain, as
    ``partition.clients`` may be, is the value of one field and stays whole.
    """
    found: dict[str, object] = {}
    for path, value in spec.items():
        if isinstance(value, Mapping) and not path.startswith("partition."):
            found |= flatten_spec({f"{path}.{name}": inner for name, inner in value.items()})
        else:
            found[path] = value
    return found
