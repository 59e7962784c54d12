"""From an experiment to the sites of a federation, its server and its test sets."""

from __future__ import annotations

import hashlib
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from protofed.core.freezing import freeze
from protofed.core.model import ArrayShape, InputShape, Net, supports_bfloat16
from protofed.core.rng import stream_seed
from protofed.core.site import NO_IMAGES, SERVER, ArrayDataset, ClientId, PixelTransform, Site
from protofed.data.array_folder import ArrayInfo
from protofed.data.benchmark_info import Benchmark, BenchmarkInfo, Colour
from protofed.data.benchmarks import benchmark_info, looks_like_folder
from protofed.data.partition import (
    ClientPart,
    ClientPartRecord,
    hold_out_rows,
    partition_clients,
    parts_to_records,
    unused_rows,
)
from protofed.data.transforms import ImageTransform
from protofed.errors import ProtofedError, display_path
from protofed.federation.notices import Notice, data_notes, left_out_note, method_warnings
from protofed.methods import METHODS
from protofed.nets import build_net
from protofed.nets.onednn_linear import use_onednn_linear
from protofed.nets.pretrained import load_pretrained
from protofed.spec.experiment_spec import ArrayData, Experiment, SiteData


def data_fingerprints(benchmark: Benchmark) -> dict[str, str]:
    """SHA-256 of each domain's training and test images with their labels, by domain.

    Of the arrays as the nets see them, so a change of decoding or resizing shows as well.
    """
    sums = {}
    for domain in benchmark.domains:
        digest = hashlib.sha256()
        for part in (domain.train, domain.test):
            digest.update(part.images.numpy().data)
            digest.update(part.labels.numpy().data)
        sums[domain.name] = digest.hexdigest()
    return sums


def describe_environment() -> dict[str, str]:
    """The versions of Python and of the libraries that compute, the platform, and the CPU.

    Recorded in every run folder, as other versions and instruction sets may give other bits.
    """
    libraries = ("protofed", "torch", "numpy", "pillow", "scipy", "scikit-learn")
    return {
        "python": platform.python_version(),
        **{name: version(name) for name in libraries},
        "platform": platform.platform(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


POOLED = "all places"  # the domain of a client that holds the images of all
NOTHING = ArrayDataset(NO_IMAGES, torch.zeros(0, dtype=torch.int64))


class DeclaredData(NamedTuple):
    """What the sites of a remote federation declare about images that never leave them.

    Fingerprints by domain, and how many images of each class every client holds.
    """

    fingerprints: dict[str, str]  # by domain
    held: list[ClientPartRecord]


class Federation(NamedTuple):
    """Everything that a run is built on: the server's and the clients' sites, and the test sets.

    `benchmark` and `parts` say which images exist and which client holds them. `notices` are what a
    reader of the scores must know. `declared` is set if the images are at remote sites.
    """

    benchmark: Benchmark
    parts: tuple[ClientPart, ...]
    public: dict[str, Tensor]  # rows of public training images, by domain
    server: Site
    sites: dict[ClientId, Site]  # of clients that hold images
    tests: dict[str, ArrayDataset]
    notices: list[Notice]
    declared: DeclaredData | None = None  # if the images are at remote sites

    @property
    def everyone(self) -> dict[ClientId, Site]:
        """The server's site and all clients' sites by id."""
        return {SERVER: self.server, **self.sites}

    def without_images(self) -> Federation:
        """The same federation without images, for a process that has handed them on."""
        sites = {
            c: replace(site, train=NOTHING, public=NO_IMAGES) for c, site in self.sites.items()
        }
        return self._replace(
            benchmark=self.benchmark._replace(domains=()),
            sites=sites,
            tests=dict.fromkeys(self.tests, NOTHING),
            declared=DeclaredData(self.fingerprints(), self.held()),
        )

    def fingerprints(self) -> dict[str, str]:
        """SHA-256 of each domain's images and labels, as the nets see them."""
        return self.declared.fingerprints if self.declared else data_fingerprints(self.benchmark)

    def held(self) -> list[ClientPartRecord]:
        """How many images of which class each client holds, as plain data."""
        return self.declared.held if self.declared else parts_to_records(self.parts, self.benchmark)


def build_federation(experiment: Experiment) -> Federation:
    """Load the data, split it among the clients, build the nets and give every client its site.

    All of it depends on the experiment alone, so two calls give the same federation. Raises a
    `ProtofedError` if no client would hold an image.
    """
    entry, benchmark = experiment_images(experiment)
    left_out = experiment.leave_out
    dealt = partition_clients(experiment.partition, benchmark, experiment.seed, left_out)
    public = _public(experiment, benchmark, dealt)
    parts, tests = scoring_split(experiment, benchmark, dealt, public)
    sizes = {part.client: len(part.rows) for part in parts if len(part.rows)}
    if not sizes:
        raise ProtofedError("partition: no client holds any image; raise its share or samples")
    nets = build_nets(experiment, len(benchmark.classes))
    trains = {domain.name: domain.train for domain in benchmark.domains}
    first, classes = benchmark.domains[0].train, len(benchmark.classes)
    server = replace(
        server_site(experiment, _pixels(experiment, entry, parts), classes, first, nets[0], sizes),
        public=_shown([trains[name].take(rows).images for name, rows in public.items()]),
    )
    sites = client_sites(server, parts, nets, trains)
    if experiment.pooled:
        server, sites = pool_sites(server, sites)
    general = [Notice("data", text) for text in entry.general_notes]
    notices = [*method_warnings(experiment, nets), *general, *left_out_note(experiment)]
    notices += data_notes(benchmark, parts, sites, public, left_out)
    return Federation(benchmark, parts, public, server, sites, tests, notices)


def experiment_images(experiment: Experiment) -> tuple[BenchmarkInfo, Benchmark]:
    """The experiment's images; refused if the data on disk have another revision."""
    data = experiment.data
    if isinstance(data, SiteData):
        raise ProtofedError(
            "the images of this experiment are at the sites of a federation",
            hint="type `protofed submit` on the machine that serves it, or name images: <data>",
        )
    rows = isinstance(data, ArrayData)
    what = "arrays" if rows else "images"
    if looks_like_folder(data.name) and not Path(data.name).is_dir():
        again = "" if rows else "if they came from arrays, "
        raise ProtofedError(
            f"the folder of {what} {display_path(data.name)} does not exist",
            hint=f"put it back; or, {again}write them there again from Python: the same arrays "
            "continue the run",
        )
    entry = benchmark_info(data.name, not isinstance(data, ArrayData) and bool(data.strict))
    side = entry.side if isinstance(data, ArrayData) else data.side
    now = entry.data_version(side)
    if data.revision != now or rows != (isinstance(entry, ArrayInfo) and bool(entry.row_shape)):
        raise ProtofedError(
            f"{data.name} holds other {what} than this run is about: revision {now}, not "
            f"{data.revision}\nrestore the {what}, or leave data.revision out for a new run"
        )
    return entry, entry.load(data.domains, side)


def _pixels(
    experiment: Experiment, entry: BenchmarkInfo, parts: tuple[ClientPart, ...]
) -> PixelTransform:
    """How the stored examples become inputs; rows by the statistics of domains with a client."""
    if isinstance(entry, ArrayInfo) and entry.row_shape:
        held = {part.domain for part in parts if len(part.rows)}
        return entry.row_transform(sorted(held))
    return image_transform(experiment, entry.channel_statistics)


def client_sites(
    server: Site,
    parts: Sequence[ClientPart],
    nets: Sequence[Net],
    trains: Mapping[str, ArrayDataset],
) -> dict[ClientId, Site]:
    """The site of each client that holds an image; several nets are given to them in turn."""
    return {
        part.client: replace(
            server,
            id=part.client,
            domain=part.domain,
            net=nets[part.client % len(nets)],
            train=trains[part.domain].take(part.rows),
        )
        for part in parts
        if len(part.rows)
    }


def pool_sites(server: Site, sites: Mapping[ClientId, Site]) -> tuple[Site, dict[ClientId, Site]]:
    """The server and one client, number 0, that holds the images of all.

    What a federation is measured against: training as if nobody minded where the images are.
    """
    held = [site.train for site in sites.values()]
    images = _shown([data.images for data in held])
    together = ArrayDataset(images, torch.cat([data.labels for data in held]))
    server = replace(server, sizes={0: len(together)})
    first = next(iter(sites.values()))
    return server, {0: replace(server, id=0, domain=POOLED, net=first.net, train=together)}


def require_precision(experiment: Experiment) -> None:
    """Refuse a precision for which this machine has no arithmetic; called where clients train.

    Torch would emulate bfloat16 there, many times slower than float32.
    """
    if experiment.precision == "bfloat16" and not supports_bfloat16(experiment.device):
        where = "CPU" if experiment.device == "cpu" else f"device ({experiment.device})"
        raise ProtofedError(
            f"precision: this {where} has no bfloat16 arithmetic; emulated, it would be many times "
            "slower than float32",
            hint="leave <precision=bfloat16> out; CPUs with AVX-512 BF16 or AMX have it",
        )


def build_nets(experiment: Experiment, classes: int) -> list[Net]:
    """The experiment's nets with what its method adds, initialised from named random streams.

    Client c uses net c modulo their number. Nets that the method cannot combine are refused.
    """
    names, method = experiment.nets, experiment.method
    built = {name: _build_net(experiment, name, classes) for name in dict.fromkeys(names)}
    nets = [built[name] for name in names]
    if len(set(names)) > 1 and "equal nets" in method.needs:
        others = ", ".join(n for n, other in METHODS.items() if "equal nets" not in other().needs)
        raise ProtofedError(
            f"net: {method.info.label} needs the same net at every client, got {', '.join(names)}",
            hint=f"name one net, or choose a method whose models stay at their clients: {others}; "
            "some others need only <method.param_avg=false>",
        )
    if len({net.features for net in nets}) > 1 and "equal features" in method.needs:
        widths = ", ".join(f"{n}: {net.features}" for n, net in zip(names, nets, strict=True))
        raise ProtofedError(
            f"net: {method.info.label} needs features of one width, got {widths}"
            f"\nchoose nets whose features agree"
        )
    return nets


def _build_net(experiment: Experiment, name: str, classes: int) -> Net:
    """A net that is pre-trained, frozen and adapted as the experiment says.

    A method is given the net after its parts were frozen, so what it adds is always trained. If it
    is to be trained on stored features, it is given a net that takes these.
    """
    image: InputShape = experiment.data.input_shape
    net = build_net(name, classes, image, experiment.seed, experiment.initial_weights)
    if experiment.pretrained and experiment.pretrained_sha256:
        load_pretrained(net, name, experiment.pretrained, experiment.pretrained_sha256)
    freeze(net, experiment.train)
    encoder, stored = net.encoder, bool(experiment.feature_views)
    if stored:
        net.encoder = nn.Identity()
    with torch.random.fork_rng():
        torch.manual_seed(stream_seed(experiment.seed, "adapt"))
        adapted = experiment.method.adapt(net, ArrayShape((net.width,)) if stored else image)
    if stored:
        adapted.encoder = encoder
    adapted.set_precision(experiment.precision, image)
    use_onednn_linear(adapted)
    return adapted


UNUSED_MOST = 1000  # images of a domain; more would cost time and say little more


def scoring_split(
    experiment: Experiment,
    benchmark: Benchmark,
    dealt: tuple[ClientPart, ...],
    public: Mapping[str, Tensor] | None = None,
) -> tuple[tuple[ClientPart, ...], dict[str, ArrayDataset]]:
    """Which images each client trains on, and the test sets by domain.

    The test sets are the benchmark's test images or, with `experiment.validation`, training images
    that no client trains on: held out from the clients, or never dealt to any and not `public`.
    """
    unseen = experiment.leave_out
    if experiment.validation is None:
        return dealt, {domain.name: domain.test for domain in benchmark.domains}
    trains = {domain.name: domain.train for domain in benchmark.domains}
    if experiment.validation == "unused":
        return dealt, _unused(experiment, benchmark, dealt, public or {})
    left, held = hold_out_rows(dealt, experiment.held_out_share, experiment.seed)
    sets = {name: trains[name].take(rows) for name, rows in held.items() if len(rows)}
    if sets and unseen:  # no client holds any of its images, so all are held out
        sets[unseen] = trains[unseen]
    if not sets:
        raise ProtofedError("validation: no client has two images, so none can be held out")
    return left, {name: sets[name] for name in trains if name in sets}


def _unused(
    experiment: Experiment,
    benchmark: Benchmark,
    dealt: tuple[ClientPart, ...],
    public: Mapping[str, Tensor],
) -> dict[str, ArrayDataset]:
    rows = unused_rows(dealt, benchmark, UNUSED_MOST, experiment.seed, "validation", public)
    empty = [name for name, own in rows.items() if not len(own)]
    if empty:
        raise ProtofedError(
            f"validation: clients hold all training images of {', '.join(empty)}, so none are "
            "unused",
            hint="hold out a share of each client's images, <validation=0.2>, or give the clients "
            "less",
        )
    return {one.name: one.train.take(rows[one.name]) for one in benchmark.domains}


def _public(
    experiment: Experiment, benchmark: Benchmark, parts: tuple[ClientPart, ...]
) -> dict[str, Tensor]:
    """The rows of the public images by domain; none if the method needs none."""
    if experiment.public is None:
        return {}
    seen = [domain for domain in benchmark.domains if domain.name != experiment.leave_out]
    benchmark = benchmark._replace(domains=tuple(seen))
    if experiment.public.samples < len(benchmark.domains):
        raise ProtofedError(
            f"public.samples: at least one for each of the {len(benchmark.domains)} domains, "
            f"got {experiment.public.samples}"
        )
    each = experiment.public.samples // len(benchmark.domains)
    public = unused_rows(parts, benchmark, each, experiment.seed)
    if not any(len(rows) for rows in public.values()):
        share = 0.8 / max(Counter(part.domain for part in parts).values())
        raise ProtofedError(
            f"public: {experiment.method.info.label} needs training images that no client holds, "
            f"but none are left",
            hint="give the clients less, for example with <partition.kind=shares> "
            f"<partition.share={share:.2g}>",
        )
    return public


def _shown(images: list[Tensor]) -> Tensor:
    """Images of several domains in one tensor; grey ones get three channels if others have them."""
    if images and images[0].is_floating_point():
        return torch.cat(images)
    channels = max((part.shape[-1] for part in images), default=1)
    wide = [part.expand(-1, -1, -1, channels) for part in images]
    return torch.cat(wide) if wide else NO_IMAGES


def image_transform(experiment: Experiment, colours: tuple[Colour, Colour]) -> ImageTransform:
    """How images become inputs; `colours` are mean and standard deviation per channel."""
    data = experiment.data
    if isinstance(data, ArrayData):
        raise ProtofedError(f"{data.name} holds rows, where images are needed")
    return ImageTransform(
        mean=colours[0],
        std=colours[1],
        channels=data.channels,
        pad=data.pad,
        flip=data.flip,
        changes=experiment.augment,
    )


def server_site(
    experiment: Experiment,
    pixels: PixelTransform,
    classes: int,
    like: ArrayDataset,
    net: Net,
    sizes: dict[ClientId, int],
) -> Site:
    """The server's site, which holds no image; clients' sites are made from it by `replace`.

    The images of `like` give the shape and dtype of the empty training set.
    """
    return Site(
        id=SERVER,
        domain="",
        classes=classes,
        net=net,
        pixels=pixels,
        train=like.take(torch.arange(0)),
        training=experiment.training,
        seed=experiment.seed,
        sizes=sizes,
        weights=experiment.weights,
    )
