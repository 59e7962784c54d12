"""FedMLP*: multi-level prototypes (Guo et al., 2024), reconstructed from the abstract.

Only the abstract (arXiv:2312.09881) was at hand, and no code: it names prototypes, semantic
prototypes, and three regularisers. What each of them is, is our reading: means of features and a
pull as in FedProto; means of softmax outputs and a divergence from them; a divergence from the
client's previous model, for tasks that change over time, which is off where data stand still.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import About, Method, Travels, average
from protofed.core.model import Model
from protofed.core.prototypes import Prototypes, blank, class_means, stack
from protofed.core.site import Batch, ClientId, Site, Step
from protofed.ops.losses import divergence, pull
from protofed.ops.prototypes import Prototyped, outputs, received


@tree.node
class Levels(Prototyped):
    """The model, prototypes of features, and prototypes of softmax outputs."""

    semantic: Prototypes | None = None  # none before the first round


@dataclass(frozen=True)
class FedMLP(Method[Levels, Model | None]):
    """Pulls to mean features, to mean softmax outputs, and to the client's previous model."""

    about: ClassVar[About] = About(
        label="FedMLP*",
        title="Dynamic Heterogeneous Federated Learning with Multi-Level Prototypes",
        venue="Pattern Recognition",
        year=2024,
        link="arXiv:2312.09881",
        family="prototype",
        star="reconstructed from the abstract",
    )

    lam1: float = Field(default=1.0, ge=0, description="weight of the pull to mean features")
    lam2: float = Field(default=0.1, ge=0, description="weight of mean softmax outputs")
    lam3: float = Field(
        default=0.0, ge=0, description="weight of the client's previous model; 0 for one task"
    )

    @property
    def travels(self) -> Travels:
        parts = ("model", "protos", "semantic")
        return Travels(up=parts, down=parts)

    def init_server(self, site: Site) -> Levels:
        return Levels(site.fresh())

    def publish(self, server: Levels) -> Message:
        extras = {} if server.semantic is None else {"semantic": server.semantic}
        return Message(model=server.model, protos=server.protos, extras=extras)

    def loss(
        self, site: Site, inbox: Message, state: Model | None, model: Model, batch: Batch
    ) -> Tensor:
        out, semantic = site.run(model, batch.x), inbox.extras.get("semantic")
        total = F.cross_entropy(out.logits, batch.y)
        if self.lam1 and inbox.protos is not None:
            total = total + self.lam1 * pull(out.z, batch.y, inbox.protos, site.classes)
        if self.lam2 and isinstance(semantic, Prototypes):
            total = total + self.lam2 * semantic_pull(out.logits, batch.y, semantic, site.classes)
        if self.lam3 and state is not None:
            before = site.look(state, batch.x).logits
            total = total + self.lam3 * divergence(before, out.logits).mean()
        return total

    def train(
        self, site: Site, inbox: Message, state: Model | None, step: Step
    ) -> tuple[Message, Model | None]:
        reply, _ = super().train(site, inbox, state, step)
        out, labels = outputs(site, reply.model), site.train.labels
        protos, semantic = class_means(out.z, labels), class_means(out.logits.softmax(1), labels)
        reply = replace(reply, protos=protos, extras={"semantic": semantic})
        return reply, reply.model if self.lam3 > 0 else None

    def expects(self, site: Site, inbox: Message, step: Step) -> Message:
        semantic = blank(site.classes, site.classes)
        return replace(super().expects(site, inbox, step), extras={"semantic": semantic})

    def merge(
        self, site: Site, server: Levels, replies: Mapping[ClientId, Message], step: Step
    ) -> Levels:
        extras = [reply.extras.get("semantic") for reply in replies.values()]
        semantic = stack(table for table in extras if isinstance(table, Prototypes))
        protos = received(replies).uniform_mean()
        return Levels(average(replies), protos, semantic.uniform_mean())


def semantic_pull(logits: Tensor, y: Tensor, semantic: Prototypes, classes: int) -> Tensor:
    """KL(mean softmax output of the class || own) from logits [B, C], batch mean.

    An image whose class has no row adds nothing but still counts in the mean.
    """
    targets, _ = semantic.dense(classes)  # [C, C]; the zeros of an absent class give KL 0
    return F.kl_div(logits.log_softmax(1), targets[y], reduction="sum") / len(y)
