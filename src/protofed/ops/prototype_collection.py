"""How clients make prototypes and where the server keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Literal, TypeVar

import torch
from torch import Tensor

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import ServerState
from protofed.core.model import Model, NetOutput
from protofed.core.prototypes import Prototypes, class_means, stack_prototypes
from protofed.core.site import ClientId, RoundContext, Site, TrainingBatch
from protofed.errors import ProtofedError

Collect = Literal["post", "online"]
C = TypeVar("C")


@tree.node
class PrototypeServer(ServerState):
    """Server state of methods that share prototypes beside the model."""

    protos: Prototypes | None = None  # none before the first round


def stack_client_prototypes(replies: Mapping[ClientId, Message]) -> Prototypes:
    """All rows that the clients sent, in the order of client ids."""
    tables = {client: r.protos for client, r in replies.items() if r.protos is not None}
    widths = {client: table.vectors.shape[1] for client, table in tables.items()}
    if len(set(widths.values())) > 1:
        found = ", ".join(f"client {client}: {width}" for client, width in widths.items())
        raise ProtofedError(
            f"prototypes of different widths cannot be merged ({found})\n"
            f"give every client a net whose features have the same width"
        )
    return stack_prototypes(tables.values())


def train_with_prototypes(
    collect: Collect, site: Site, train: Callable[[Site], tuple[Message, C]]
) -> tuple[Message, C]:
    """Train, and put the client's class means into the reply."""
    if collect == "online":
        watched = recording_site(site)
        reply, state = train(watched)
        return replace(reply, protos=watched.prototypes()), state
    reply, state = train(site)
    return replace(reply, protos=local_prototypes(site, reply.model)), state


def local_prototypes(site: Site, model: Model) -> Prototypes:
    """The class means of a client's features, by a look at all its images without augmentation."""
    return class_means(site_features(site, model), site.train.labels)


def site_features(site: Site, model: Model) -> Tensor:
    """The features [N, D] of all a client's images, in their order and without augmentation."""
    return site_outputs(site, model).z


def site_outputs(site: Site, model: Model) -> NetOutput:
    """Features [N, D] and class scores [N, C] of all a client's images, likewise."""
    outs = [site.forward_eval(model, x) for x, _ in site.eval_batches(site.train)]
    return NetOutput(torch.cat([out.z for out in outs]), torch.cat([out.logits for out in outs]))


@dataclass(frozen=True)
class RecordingSite(Site):
    """A site that remembers the features it computed in the last epoch, as they were trained on.

    The code of FedProto and FPL averages these for its prototypes: training mode, augmented
    images, each batch before its step.
    """

    seen: list[tuple[Tensor, Tensor]] = field(default_factory=list)  # features, classes
    now: list[Tensor] = field(default_factory=list)  # classes of a last epoch's batch

    def batches(
        self, context: RoundContext, phase: str = "", epochs: int | None = None
    ) -> Iterator[TrainingBatch]:
        last = (self.training.epochs if epochs is None else epochs) - 1
        for batch in super().batches(context, phase, epochs):
            self.now[:] = [batch.y] if batch.epoch == last else []
            yield batch

    def forward_train(self, model: Model, x: Tensor, *more: object) -> NetOutput:
        out = super().forward_train(model, x, *more)
        self.seen.extend((out.z.detach(), labels) for labels in self.now)
        return out

    def prototypes(self) -> Prototypes:
        """The class means of what was seen."""
        z, labels = (torch.cat(parts) for parts in zip(*self.seen, strict=True))
        return class_means(z, labels)


def nearest_prototype_scores(
    site: Site, model: Model, protos: Prototypes | None, x: Tensor
) -> dict[str, Tensor]:
    """The opinion of the nearest prototype on images x, once there are prototypes."""
    if protos is None:
        return {}
    return {"nearest prototype": protos.nearest_scores(site.forward_eval(model, x).z, site.classes)}


def recording_site(site: Site) -> RecordingSite:
    """The same site, remembering."""
    return RecordingSite(**{f.name: getattr(site, f.name) for f in fields(site)})
