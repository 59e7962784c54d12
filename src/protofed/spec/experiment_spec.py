"""The spec: everything that decides a run's numbers, complete, frozen and named by a digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import FunctionType
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    ModelWrapValidatorHandler,
    PlainSerializer,
    SkipValidation,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError, to_jsonable_python

from protofed.core.freezing import HEAD, freezes_encoder, is_train_rule
from protofed.core.method import AnyMethod
from protofed.core.model import ArrayShape, ImageShape, Precision
from protofed.core.site import ClientWeights
from protofed.core.training import Training
from protofed.data.array_folder import ROW_NET, array_info, is_array_folder
from protofed.data.augmentation import Augmentation
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
from protofed.nets import NETS, InitialWeights, find_net_builder, known_nets, net_label
from protofed.nets import PLUGINS as NET_PLUGINS
from protofed.nets.pretrained import IMAGENET, weights_sha256
from protofed.runtime.code_reference import (
    ANY_CODE,
    CodeAccess,
    installed_plugins,
    is_reference,
    load_reference,
    parse_reference,
    reference_to,
)
from protofed.spec.method_lookup import (
    UnloadedMethod,
    describe_method,
    parse_method,
    without_folders,
)
from protofed.spec.spec_faults import (
    KnownFields,
    fault_lines_error,
    field_names,
    spec_error,
    unknown_name_error,
)


def _method(given: object, info: ValidationInfo) -> AnyMethod:
    try:
        return parse_method(given, code_access(info))
    except ProtofedError as fault:
        raise fault_lines_error(str(fault.args[0]).splitlines(), fault.hint) from fault


def code_access(info: ValidationInfo) -> CodeAccess:
    """Which code this spec may bring in; the user's own spec may bring any."""
    return info.context if isinstance(info.context, CodeAccess) else ANY_CODE


def _known_source(name: str) -> str:
    """A benchmark's name, or the full path of a folder of images or arrays."""
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

    `name` is a benchmark, a folder of images, or one of image arrays. `revision` identifies the
    content: a version for a benchmark, a digest for a folder. ::

        Data(name="office-caltech", domains=("amazon", "dslr"))

    Fields:
        name: a benchmark, or a folder of images
        domains: those to use, in this order; default: the benchmark's
        side: pixels along a side, to which images are resized
        channels: 1 or 3, of the net's input
        pad: pixels around the image before a random crop; 0 for no crop
        flip: whether training images are mirrored at random
        strict: True refuses a folder with files that cannot be used
        revision: which version of the images, set by protofed
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
    def _of_this_benchmark(self, info: ValidationInfo) -> Self:
        if not self.domains or len(set(self.domains)) < len(self.domains):
            raise ValueError("domains: name at least one, and each once")
        on_record = looks_like_folder(self.name) or not code_access(info).load
        if on_record and "revision" in self.model_fields_set:
            return self  # a run on record, which stands even if its images are gone by now
        entry = benchmark_info(self.name)
        if row_shape(self.name):
            raise ValueError("name: these arrays are no images, so ArrayData describes them")
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

    @property
    def input_shape(self) -> ImageShape:
        """The shape of one input of a net."""
        return ImageShape(self.channels, self.side)


def row_shape(name: str) -> tuple[int, ...] | None:
    """The shape of one row, if a name means a folder of arrays that are no images; else None."""
    there = looks_like_folder(name) and is_array_folder(Path(name))
    return array_info(Path(name)).row_shape if there else None


IMAGE_FIELDS = ("side", "channels", "pad", "flip", "strict")


class ArrayData(SpecSection):
    """Rows of numbers that are no images, from a folder of arrays; a net gets [B, *shape].

    `protofed.datasets` writes such folders; ``data = "path/to/one"`` in a spec is enough to name
    one. `revision` is a digest of the content.
    """

    name: Annotated[str, AfterValidator(_known_source)]  # the path of the folder
    domains: tuple[str, ...] = benchmark_of("domains")
    shape: tuple[int, ...] = Field(
        default_factory=lambda done: row_shape(done["name"]) or (), min_length=1
    )  # of one row
    revision: str = Field(
        default_factory=lambda done: str(benchmark_info(done["name"]).data_version(0))
    )

    default_net: ClassVar[str] = ROW_NET

    @model_validator(mode="before")
    @classmethod
    def _fields_of_rows(cls, given: object) -> object:
        strange = (
            [f for f in given if f not in cls.model_fields] if isinstance(given, Mapping) else []
        )
        if strange:
            known = f"no such field (known: {', '.join(cls.model_fields)})"
            images = "is for images, and these data are rows"
            raise fault_lines_error(
                [f"data.{field}: {images if field in IMAGE_FIELDS else known}" for field in strange]
            )
        return given

    @model_validator(mode="after")
    def _of_this_folder(self) -> Self:
        if not self.domains or len(set(self.domains)) < len(self.domains):
            raise ValueError("domains: name at least one, and each once")
        if "revision" in self.model_fields_set:
            return self  # a run on record, which stands even if its arrays are gone by now
        if self.shape != row_shape(self.name):
            raise ValueError(f"shape: the rows there have shape {row_shape(self.name)}")
        known = benchmark_info(self.name).domains
        for domain in self.domains:
            if domain not in known:
                raise unknown_name_error(domain, known)
        return self

    @property
    def label(self) -> str:
        """A short name without slashes, for folders and headings."""
        return source_label(self.name)

    @property
    def default_partition(self) -> Partition:
        """Each domain is a client."""
        return one_client_per_domain(self.domains)

    @property
    def input_shape(self) -> ArrayShape:
        """The shape of one input of a net."""
        return ArrayShape(self.shape)


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

    @property
    def input_shape(self) -> ImageShape:
        """The shape of one input of a net."""
        return ImageShape(self.channels, self.side)


def _kind_of_data(given: object) -> str:
    """Which section a table is; one on record says it itself, whatever its folder holds by now."""
    if not isinstance(given, Mapping):
        rows = isinstance(given, ArrayData)
        return "sites" if isinstance(given, SiteData) else "rows" if rows else "here"
    if "at" in given:
        return "sites"
    if "shape" in given:
        return "rows"
    name, recorded = given.get("name"), "revision" in given and "side" in given
    return "rows" if isinstance(name, str) and not recorded and row_shape(name) else "here"


AnyData = Annotated[
    Annotated[Data, Tag("here")]
    | Annotated[ArrayData, Tag("rows")]
    | Annotated[SiteData, Tag("sites")],
    Discriminator(_kind_of_data),
]

__all__ = ["ArrayData", "Data", "Experiment", "PublicImages", "SiteData"]
# Fields that are younger than runs on record, with what their absence means. `to_dict` leaves them
# out at these values, so that the digest of an older spec stays what it was.
LATER_FIELDS: Mapping[str, object] = {
    "precision": "float32",
    "training.optimizer": "sgd",
    "training.clip_norm": 0.0,
    "training.warmup": 0,
    "training.schedule": "constant",
    "training.final_lr_share": 0.0,
    "training.step_every": 0,
    "training.step_factor": 0.1,
    "initial_weights": "net",
    "weights": "size",
    "pooled": False,
    "training.sampling": "shuffle",
    "training.class_weights": "none",
    **{f"augment.{name}": value for name, value in asdict(Augmentation()).items()},
    "train": "all",
    "feature_views": 0,
}
FORMER_FIELDS = {"conv": "direct"}  # with the only value that is left; still part of digests
ALTERNATIVES = ({"share", "samples"}, {"alpha", "beta"})  # two ways to say one thing


def _nets(given: object, info: ValidationInfo) -> object:
    """Check the name of a net, or a list of such names; a builder is named by where it is."""
    if not isinstance(given, list | tuple):
        return _net(given, code_access(info))
    if not given:
        raise PydanticCustomError("net", "write a name, or a list of names for the clients in turn")
    return tuple(_net(name, code_access(info)) for name in given)


def _net(given: object, access: CodeAccess) -> str:
    name = _builder_name(given) if callable(given) else given
    if not isinstance(name, str):
        raise PydanticCustomError("net", "write a name, or a list of names for the clients in turn")
    if not access.load:
        return name
    if is_reference(name):
        name = str(parse_reference(name))
    elif name not in NETS and name not in installed_plugins(NET_PLUGINS):
        raise unknown_name_error(name, known_nets())
    find_net_builder(name, access)
    return name


def _as_tuple(nets: str | tuple[str, ...]) -> tuple[str, ...]:
    return (nets,) if isinstance(nets, str) else nets


def _sha256_of(net: str | tuple[str, ...], pretrained: str | None) -> str | None:
    return None if pretrained is None else weights_sha256(_as_tuple(net)[0], pretrained)


def _train_rule(given: str) -> str:
    if not is_train_rule(given):
        raise ValueError("must be all, neck, head, or last: and a number of blocks, as last:2")
    return given


def _builder_name(given: Callable[..., object]) -> str:
    """The name of a function that builds a net, if it can be found again by it."""
    if isinstance(given, type | FunctionType):
        reference = reference_to(given)
        with suppress(ProtofedError):
            if load_reference(reference) is given:
                return str(reference)
    raise PydanticCustomError(
        "net", "give a function that is defined with def at the top level of a file or notebook"
    )


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


def _without_later(spec: dict[str, Any]) -> dict[str, Any]:
    """A spec without those of `LATER_FIELDS` that have their defaults."""
    tables = {name: dict(v) if isinstance(v, dict) else v for name, v in spec.items()}
    for path, default in LATER_FIELDS.items():
        section, _, name = path.rpartition(".")
        table = tables[section] if section else tables
        if name in table and table[name] == default:
            del table[name]
    return {name: table for name, table in tables.items() if table != {}}


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

    Fields:
        data: the images, or their name
        method: a method, its name, or a table of its name and fields
        net: the net of all clients, or several that they take in turn; default: the benchmark's
        initial_weights: by the "net"'s own rule, or "torch"'s default for every layer
        pretrained: a file of weights to start from, or "imagenet"
        pretrained_sha256: of that file, set by protofed
        train: what of the net: "all", "neck" and head, "head" alone, or also the "last:N" blocks
        feature_views: of each image, from which a frozen encoder's features are taken only once
        partition: which client holds which images; default: the benchmark's
        pooled: one client holds the images of all: no federation, but what it is measured against
        public: images that everybody may see, for methods that need them
        leave_out: a domain whose images nobody trains on; it is scored as unseen
        validation: score on training images instead of test images: a share of each client's, or
            the "unused" ones, which no client holds
        training: a client's local training
        augment: random changes of training images, beside the crop and the mirror of the data
        weights: by what means over clients weight them: "size", "equal" or "sqrt" of the size
        rounds: communication rounds
        participation: share of the clients in each round
        min_clients: replies that a round needs; with fewer it fails
        on_nonfinite: "stop", or "skip" a client whose training becomes NaN
        evaluate_every: rounds between two evaluations; the last round is always scored
        seed: of every random stream
        threads: of torch; part of the spec, as it moves bits
        device: "auto", "cpu", "cuda" or "mps"
        precision: of the encoders' arithmetic, "float32" or "bfloat16"
    """

    data: AnyData = Field(default_factory=Data)
    method: Annotated[
        AnyMethod, SkipValidation(), BeforeValidator(_method), PlainSerializer(describe_method)
    ] = FedAvg()  # or its name, or a table of its name and fields
    net: Annotated[str | tuple[str, ...], BeforeValidator(_nets)] = Field(
        default_factory=lambda done: done["data"].default_net
    )  # of all clients; or a list, which the clients take in turn
    initial_weights: InitialWeights = "net"  # or torch's default for every layer
    pretrained: str | None = None  # a file of weights for encoder and neck, or "imagenet"
    pretrained_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = Field(
        default_factory=lambda done: _sha256_of(done["net"], done["pretrained"])
    )  # of that file, which the digest holds in place of its path
    train: Annotated[str, AfterValidator(_train_rule)] = "all"  # what of the net
    feature_views: int = Field(
        default=0, ge=0, le=100, strict=True
    )  # 0: a frozen encoder computes anew in every batch
    partition: Partition = Field(default_factory=lambda done: done["data"].default_partition)
    pooled: bool = Field(default=False, strict=True)  # one client holds the images of all
    public: PublicImages | None = Field(
        default_factory=lambda done: PublicImages() if _wants_public(done["method"]) else None
    )
    leave_out: str | None = None  # a domain whose images nobody trains on; it is scored as unseen
    validation: float | Literal["unused"] | None = (
        None  # scores from training images: a share of each client's, or those that no client holds
    )
    training: Training = Training()
    augment: Augmentation = Augmentation()
    weights: ClientWeights = "size"  # by what a mean over clients weights them
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
    precision: Precision = "float32"  # of the encoders' arithmetic, in training and in scoring

    @classmethod
    def _known_fields(cls) -> KnownFields:
        rules = [name for rule in RULES.values() for name in field_names(rule)]
        return {
            "": list(cls.model_fields),
            "data": list(Data.model_fields),
            "training": field_names(Training),
            "augment": field_names(Augmentation),
            "partition": list(dict.fromkeys(rules)),
            "method": [name for method in METHODS.values() for name in field_names(method)],
        }

    @model_validator(mode="before")
    @classmethod
    def _without_former(cls, given: object) -> object:
        """Read older specs: drop fields that are gone at the value that all runs have now."""
        if not isinstance(given, Mapping):
            return given
        for name in FORMER_FIELDS.keys() & given.keys():
            if given[name] != FORMER_FIELDS[name]:
                raise ProtofedError(
                    f"{name}: there is only {FORMER_FIELDS[name]}, got {given[name]}: leave it out",
                    hint="on CPUs that can, <precision=bfloat16> is faster",
                )
        return {name: value for name, value in given.items() if name not in FORMER_FIELDS}

    @model_validator(mode="before")
    @classmethod
    def _opens_no_file_for_others(cls, given: object, info: ValidationInfo) -> object:
        """Refuse a file of weights without its SHA-256 in a spec from somebody else."""
        if code_access(info).allowed is None or not isinstance(given, Mapping):
            return given
        if given.get("pretrained", IMAGENET) != IMAGENET and not given.get("pretrained_sha256"):
            raise ProtofedError("pretrained_sha256: is required beside pretrained")
        return given

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

    @field_validator("validation", mode="before")
    @classmethod
    def _share_or_unused(cls, given: object, info: ValidationInfo) -> object:
        if given is None or (isinstance(given, float) and 0 < given < 1):
            return given
        if given != "unused":
            raise ValueError("must be a share between 0 and 1, such as 0.2, or unused")
        if isinstance(info.data.get("data"), SiteData):
            raise ValueError("a site holds all its images: give a share of them, such as 0.2")
        return given

    @field_validator("pooled")
    @classmethod
    def _can_be_pooled(cls, pooled: bool, info: ValidationInfo) -> bool:
        if pooled and isinstance(info.data.get("data"), SiteData):
            raise ValueError("the images of a federation stay at its sites: leave it out")
        if pooled and isinstance(info.data.get("net"), tuple):
            raise ValueError("one client has one net: name one")
        return pooled

    @field_validator("pretrained")
    @classmethod
    def _weights_of_one_net(cls, given: str | None, info: ValidationInfo) -> str | None:
        """The full path of a file; a spec from somebody else never makes a site open one."""
        if given is None or "net" not in info.data:
            return given
        if len(set(_as_tuple(info.data["net"]))) > 1:
            raise ValueError("clients have different nets, and a file holds weights of one")
        if given == IMAGENET:
            return given
        if isinstance(info.data.get("data"), SiteData):
            raise ValueError(
                f"in a federation files of weights do not travel: only {IMAGENET}, which every "
                "site has installed"
            )
        return str(Path(given).expanduser().resolve())

    @field_validator("pretrained_sha256")
    @classmethod
    def _of_a_file(cls, given: str | None, info: ValidationInfo) -> str | None:
        if given and not info.data.get("pretrained", given):
            raise ValueError("there is no file of pretrained weights: leave it out")
        return given

    @field_validator("feature_views")
    @classmethod
    def _of_a_frozen_encoder(cls, views: int, info: ValidationInfo) -> int:
        if views and not freezes_encoder(info.data.get("train", HEAD)):
            raise ValueError("the encoder must be frozen: set train to neck or head")
        if views and len(set(_as_tuple(info.data.get("net", "")))) > 1:
            raise ValueError("clients have different nets, whose features differ: write 0")
        return views

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
        if isinstance(method, UnloadedMethod):
            return public
        if method and bool(public) != _wants_public(method):
            wrong = "not used by" if public else "needed by"
            raise ValueError(f"{wrong} {method.info.label}: leave it out")
        return public

    @field_validator("training")
    @classmethod
    def _suits_the_method(cls, training: Training, info: ValidationInfo) -> Training:
        method = info.data.get("method")
        if method and "sgd" in method.needs and training.optimizer != "sgd":
            line = f"training.optimizer: {method.info.label} needs sgd, got {training.optimizer}: "
            why = "it takes gradients from how far a client moved, as only the steps of SGD allow"
            raise fault_lines_error([line + why])
        return training

    @field_validator("augment")
    @classmethod
    def _is_for_images(cls, augment: Augmentation, info: ValidationInfo) -> Augmentation:
        if augment.active and isinstance(info.data.get("data"), ArrayData):
            raise ValueError("is for images, and these data are rows: leave it out")
        return augment

    @field_validator("rounds")
    @classmethod
    def _outlast_warmup(cls, rounds: int, info: ValidationInfo) -> int:
        training = info.data.get("training")
        if training and training.warmup >= rounds:
            line = f"training.warmup: must be less than rounds, which is {rounds}, "
            raise fault_lines_error([f"{line}got {training.warmup}"])
        return rounds

    @property
    def held_out_share(self) -> float:
        """The share of its images that each client leaves out of training to be scored on."""
        return self.validation if isinstance(self.validation, float) else 0.0

    @property
    def validation_images(self) -> str:
        """What is scored in place of the test images, for people; "" if the test images are."""
        if self.validation == "unused":
            return "training images that no client holds"
        share = f"{100 * self.held_out_share:g} %"
        return f"{share} of each client's images, held out from training" if self.validation else ""

    @property
    def nets(self) -> tuple[str, ...]:
        """The names of the nets, one for all clients or several that they take in turn."""
        return _as_tuple(self.net)

    @property
    def net_labels(self) -> tuple[str, ...]:
        """The names of the nets for people: without the folders of the user's own files."""
        return tuple(net_label(name) for name in self.nets)

    @property
    def pretrained_label(self) -> str:
        """The file of weights for people, without its folders; "" if there is none."""
        return Path(self.pretrained or "").name

    def to_dict(self) -> dict[str, Any]:
        """The resolved spec as plain data, ready for JSON; what is not set is left out.

        So are the `LATER_FIELDS` at their defaults. `parse_experiment` makes an equal experiment of
        it.
        """
        sections = self.model_dump(mode="json")
        spec = _without_none({**sections, "data": _without_none(sections["data"])})
        return _without_later(spec)

    def flat_fields(self) -> dict[str, object]:
        """Every field that is set by its dotted path, the `LATER_FIELDS` included.

        For those who show or compare fields: ``made.flat_fields()["training.optimizer"]``.
        """
        fields = flatten_spec(self.to_dict())
        return fields | {path: v for path, v in LATER_FIELDS.items() if path not in fields}

    @property
    def digest(self) -> str:
        """The name of this run: SHA-256 of the resolved spec, wherever data and code lie.

        It names what is to be computed. Which code computed it is in the run's fingerprint.
        """
        text = json.dumps({**self._without_places(), **FORMER_FIELDS}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()

    def _without_places(self) -> dict[str, Any]:
        """The resolved spec with data and code named independently of where they lie."""
        plain = self.to_dict()
        if not isinstance(self.data, SiteData):
            plain["data"]["name"] = self.data.label
        plain.pop("pretrained", None)  # its SHA-256 says which weights
        plain["method"] = without_folders(plain["method"])
        plain["net"] = self.net_labels[0] if isinstance(self.net, str) else list(self.net_labels)
        return plain

    def differences_to(self, other: Experiment) -> dict[str, tuple[object, object]]:
        """The fields that give two experiments other digests, with both values, by dotted path.

        None stands for a field that only the other one has. ``{"seed": (0, 7)}``.
        """
        mine, theirs = (
            {**LATER_FIELDS, **flatten_spec(one._without_places())} for one in (self, other)
        )
        paths = dict.fromkeys((*mine, *theirs))
        pairs = {path: (mine.get(path), theirs.get(path)) for path in paths}
        return {path: pair for path, pair in pairs.items() if pair[0] != pair[1]}


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
