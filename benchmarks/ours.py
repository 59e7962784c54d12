"""Our side: sites of made-up images, an engine, and rounds as the runner plays them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.serve import Order, Round, Tell
from benchmarks.workloads import CHANNELS, CLASSES, MEAN, PAD, STD, Workload, make_images, make_net
from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import AnyMethod, Method
from protofed.core.model import Precision
from protofed.core.site import SERVER, ArrayDataset, ClientId, PixelTransform, RoundContext, Site
from protofed.data.transforms import ImageTransform
from protofed.engines.local_engine import LocalEngine
from protofed.engines.multiprocess import WorkerEngine
from protofed.federation.round import Messages, run_round
from protofed.methods.fedavg import FedAvg
from protofed.methods.fpl import FPL
from protofed.nets.onednn_linear import use_onednn_linear
from protofed.runtime.resources import tune_malloc

ROUNDS = 1_000_000  # more than are ever asked for


@dataclass
class Counter:
    """Counts the batches and images that training really takes."""

    pixels: PixelTransform
    steps: int = 0
    samples: int = 0

    def augment(self, images: Tensor, draw: torch.Generator) -> Tensor:
        self.steps, self.samples = self.steps + 1, self.samples + len(images)
        return self.pixels.augment(images, draw)

    def normalize(self, images: Tensor) -> Tensor:
        return self.pixels.normalize(images)


class Counts(Method[Any, Any]):
    """Reports with each reply how much was trained, from whichever process it was."""

    def train(
        self, site: Site, received: Message, state: Any, context: RoundContext
    ) -> tuple[Message, Any]:
        counter = Counter(site.pixels)
        reply, state = super().train(replace(site, pixels=counter), received, state, context)
        counts = {"steps": counter.steps, "samples": counter.samples}
        return replace(reply, metrics={**reply.metrics, **counts}), state


class CountedFedAvg(Counts, FedAvg):
    """FedAvg that counts."""


class CountedFPL(Counts, FPL):
    """FPL that counts."""


METHODS: dict[str, Callable[[], AnyMethod]] = {"fedavg": CountedFedAvg, "fpl": CountedFPL}


def make_sites(
    work: Workload, precision: Precision = "float32"
) -> tuple[Site, dict[ClientId, Site]]:
    """The server's site and the clients', with encoders that compute in a precision."""
    net = make_net(work)
    net.precision = precision
    use_onednn_linear(net)  # as `build_nets` does
    server = Site(
        id=SERVER,
        domain="",
        classes=CLASSES,
        net=net,
        pixels=ImageTransform(mean=MEAN, std=STD, channels=CHANNELS, pad=PAD, flip=True),
        train=ArrayDataset(torch.zeros(0, 1, 1, 3, dtype=torch.uint8), torch.zeros(0).long()),
        training=work.training,
        seed=0,
        sizes=dict(enumerate(work.sizes)),
    )
    sites = {
        client: replace(server, id=client, train=ArrayDataset(*make_images(work, client)))
        for client in range(len(work.sizes))
    }
    return server, sites


def engine(
    method: AnyMethod, sites: Mapping[ClientId, Site], workers: int
) -> closing[LocalEngine[Any, Any]]:
    """The engine in this process for no workers, else that of worker processes."""
    if workers == 0:
        return closing(LocalEngine(method, sites))
    return closing(WorkerEngine(method, sites, workers=workers))


def serve(order: Order, rounds: Iterator[int], tell: Tell) -> None:
    """Play the rounds that are asked for."""
    torch.set_num_threads(1)
    tune_malloc()  # as the runner does
    work, chosen = order.work, METHODS[order.method]()
    server_site, sites = make_sites(work, order.precision)
    server = chosen.init_server(server_site)
    with engine(chosen, sites, order.workers) as made:
        del sites  # the engine has them, in shared memory
        for number in rounds:
            heard: list[Message] = []

            def listen(sent: Messages, received: Messages, heard: list[Message] = heard) -> None:
                heard.extend(received.values())

            before, began = server, time.perf_counter()
            step = RoundContext(number, ROUNDS)
            server = run_round(chosen, server_site, server, made, work.chosen(number), step, listen)
            seconds = time.perf_counter() - began
            moved = float(tree.squared_distance(before.model.weights, server.model.weights).sqrt())
            tell(_round(heard, seconds, moved))


def _round(replies: list[Message], seconds: float, moved: float) -> Round:
    steps, samples = (round(sum(r.metrics[k] for r in replies)) for k in ("steps", "samples"))
    loss = sum(r.metrics["loss"] * r.metrics["steps"] for r in replies) / max(steps, 1)
    return Round(seconds, steps, samples, loss, moved)
