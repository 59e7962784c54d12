"""From a spec to the sites of a federation, its server and its test sets."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch.nn.modules.batchnorm import _BatchNorm

from protofed.core.errors import ProtofedError
from protofed.core.model import ImageShape, Net
from protofed.core.rng import stream
from protofed.core.site import SERVER, ClientId, Dataset, Site
from protofed.data.benchmark import Benchmark
from protofed.data.catalog import BENCHMARKS, load
from protofed.data.parts import Part, divide
from protofed.data.transforms import Augment
from protofed.experiment.spec import Experiment
from protofed.nets import build


class Federation(NamedTuple):
    """All that a run stands on."""

    benchmark: Benchmark
    parts: tuple[Part, ...]
    server: Site
    sites: dict[ClientId, Site]  # only of clients that hold images
    tests: dict[str, Dataset]
    notices: list[str]


def assemble(experiment: Experiment) -> Federation:
    """Load the data, deal it out, build the net and give every client its site."""
    data = experiment.data
    benchmark = load(data.name, data.domains, data.side)
    parts = divide(experiment.partition, benchmark, experiment.seed)
    sizes = {part.client: len(part.rows) for part in parts if len(part.rows)}
    if not sizes:
        raise ProtofedError("partition: no client holds any image; raise its share or samples")
    server = _server(experiment, benchmark, sizes)
    trains = {domain.name: domain.train for domain in benchmark.domains}
    sites = {
        part.client: replace(
            server,
            id=part.client,
            domain=part.domain,
            train=trains[part.domain].rows(part.rows),
        )
        for part in parts
        if part.client in sizes
    }
    tests = {domain.name: domain.test for domain in benchmark.domains}
    notices = [*_cautions(experiment, server.net), *_notices(benchmark, parts, sites)]
    return Federation(benchmark, parts, server, sites, tests, notices)


def build_net(experiment: Experiment, classes: int) -> Net:
    """The spec's net with what its method adds, initialised from named streams."""
    image = ImageShape(experiment.data.channels, experiment.data.side)
    net = build(experiment.net, classes, image, experiment.seed)
    with torch.random.fork_rng():
        torch.manual_seed(stream(experiment.seed, "adapt"))
        return experiment.method.adapt(net, image)


def _server(experiment: Experiment, benchmark: Benchmark, sizes: dict[ClientId, int]) -> Site:
    entry, data = BENCHMARKS[experiment.data.name], experiment.data
    classes = len(benchmark.classes)
    first = benchmark.domains[0].train
    return Site(
        id=SERVER,
        domain="",
        classes=classes,
        net=build_net(experiment, classes),
        pixels=Augment(
            mean=entry.mean, std=entry.std, channels=data.channels, pad=data.pad, flip=data.flip
        ),
        train=first.rows(torch.arange(0)),
        training=experiment.training,
        seed=experiment.seed,
        sizes=sizes,
    )


def _cautions(experiment: Experiment, net: Net) -> list[str]:
    """What may make the training itself not mean what the reader thinks."""
    cautions = [experiment.method.caution(net)]
    if experiment.training.batch == 1 and any(isinstance(m, _BatchNorm) for m in net.modules()):
        cautions.append("batches of one: batch norm keeps its initial statistics")
    return [caution for caution in cautions if caution]


def _notices(
    benchmark: Benchmark, parts: tuple[Part, ...], sites: dict[ClientId, Site]
) -> list[str]:
    """What a reader of the scores must know about this federation."""
    notices = list(BENCHMARKS[benchmark.name].general_notes)
    notices += [f"{domain.name}: {domain.note}" for domain in benchmark.domains if domain.note]
    dealt = {part.domain for part in parts}
    notices += [
        f"{domain.name}: has no client, is only tested"
        for domain in benchmark.domains
        if domain.name not in dealt
    ]
    empty = [f"{part.client} ({part.domain})" for part in parts if part.client not in sites]
    if empty:
        notices.append(f"skipped, as they hold no image: client {', '.join(empty)}")
    held = torch.cat([site.train.labels for site in sites.values()]).unique().tolist()
    missing = [name for label, name in enumerate(benchmark.classes) if label not in held]
    if missing:
        notices.append(f"no client holds class {', '.join(missing)}: it cannot be learnt")
    return notices
