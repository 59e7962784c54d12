"""How clients make prototypes and where the server keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal, TypeVar

import torch
from torch import Tensor

from protofed.core import tree
from protofed.core.errors import ProtofedError
from protofed.core.message import Message
from protofed.core.method import Global
from protofed.core.model import Model, Out
from protofed.core.prototypes import Prototypes, class_means, stack
from protofed.core.site import Batch, ClientId, Site, Step

Collect = Literal["post", "online"]
C = TypeVar("C")


@tree.node
class Prototyped(Global):
    """Server state of methods that share prototypes beside the model."""

    protos: Prototypes | None = None  # none before the first round


def received(replies: Mapping[ClientId, Message]) -> Prototypes:
    """All rows that the clients sent, in the order of client ids."""
    tables = {client: r.protos for client, r in replies.items() if r.protos is not None}
    widths = {client: table.vectors.shape[1] for client, table in tables.items()}
    if len(set(widths.values())) > 1:
        found = ", ".join(f"client {client}: {width}" for client, width in widths.items())
        raise ProtofedError(
            f"prototypes of different widths cannot be merged ({found})\n"
            f"give every client a net whose features have the same width"
        )
    return stack(tables.values())


def with_prototypes(
    collect: Collect, site: Site, train: Callable[[Site], tuple[Message, C]]
) -> tuple[Message, C]:
    """Train, and put the client's class means into the reply."""
    if collect == "online":
        watched = watching(site)
        reply, state = train(watched)
        return replace(reply, protos=watched.prototypes()), state
    reply, state = train(site)
    return replace(reply, protos=local_prototypes(site, reply.model)), state


def local_prototypes(site: Site, model: Model) -> Prototypes:
    """The class means of a client's features, by a look at all its images without augmentation."""
    return class_means(features(site, model), site.train.labels)


def features(site: Site, model: Model) -> Tensor:
    """The features [N, D] of all a client's images, in their order and without augmentation."""
    return outputs(site, model).z


def outputs(site: Site, model: Model) -> Out:
    """Features [N, D] and class scores [N, C] of all a client's images, likewise."""
    outs = [site.look(model, x) for x, _ in site.scan(site.train)]
    return Out(torch.cat([out.z for out in outs]), torch.cat([out.logits for out in outs]))


@dataclass(frozen=True)
class Watching(Site):
    """A site that remembers the features it computed in the last epoch, as they were trained on.

    The code of FedProto and FPL averages these for its prototypes: training mode, augmented
    images, each batch before its step.
    """

    seen: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # features, classes
    now: list[Tensor] = field(default_factory=list)  # classes of a last epoch's batch

    def batches(self, step: Step, phase: str = "", epochs: int | None = None) -> Iterator[Batch]:
        last = (self.training.epochs if epochs is None else epochs) - 1
        for batch in super().batches(step, phase, epochs):
            self.now[:] = [batch.y] if batch.epoch == last else []
            yield batch

    def run(self, model: Model, x: Tensor, *more: object) -> Out:
        out = super().run(model, x, *more)
        self.seen.extend((out.z.detach(), labels) for labels in self.now)
        return out

    def prototypes(self) -> Prototypes:
        """The class means of what was seen."""
        z, labels = (torch.cat(parts) for parts in zip(*self.seen, strict=True))
        return class_means(z, labels)


def nearest(site: Site, model: Model, protos: Prototypes | None, x: Tensor) -> dict[str, Tensor]:
    """The opinion of the nearest prototype on images x, once there are prototypes."""
    if protos is None:
        return {}
    return {"nearest prototype": protos.nearest(site.look(model, x).z, site.classes)}


def watching(site: Site) -> Watching:
    """The same site, remembering."""
    return Watching(**{f.name: getattr(site, f.name) for f in fields(site)})
