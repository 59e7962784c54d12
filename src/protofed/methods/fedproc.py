"""FedProc: prototypical contrast on non-IID data (Mu et al., arXiv 2021).

Class means over all clients' samples -> merge; contrast of a feature with the class centres
(cosine, no temperature) and the shift from contrast to cross entropy over the rounds -> loss. In
round 0, before there are centres, cross entropy stands alone, as in its code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import Method, MethodInfo, Payload, ServerState, average_models
from protofed.core.model import Model
from protofed.core.prototypes import Prototypes, stack_prototypes
from protofed.core.site import ClientId, RoundContext, Site, TrainingBatch
from protofed.ops.losses import prototype_contrastive
from protofed.ops.prototype_collection import (
    Collect,
    fit_with_prototypes,
    stack_client_prototypes,
)


@dataclass(frozen=True)
class FedProc(Method[ServerState, None]):
    """Contrast with global class centres in early rounds, cross entropy in late ones.

    The loss is share * cross entropy + (1 - share) * contrast with the class centres of all
    clients, and the share grows from 0 to 1 over the rounds. Model and class means travel up and
    down. Models are averaged as in FedAvg, class means by number of examples. The server keeps the
    centres, also of classes that no client sent in this round; clients keep nothing.
    """

    info: ClassVar[MethodInfo] = MethodInfo(
        label="FedProc",
        title="FedProc: Prototypical Contrastive Federated Learning on Non-IID Data",
        venue="arXiv",
        year=2021,
        link="arXiv:2109.12273",
        family="prototype",
    )

    style: Literal["official", "rethink"] = Field(
        default="official",
        description="rethink: as the code behind FPL's tables; its round 0 has no loss at all",
    )
    collect: Collect = Field(
        default="post", description="prototypes after training, or online in the last epoch"
    )

    @property
    def payload(self) -> Payload:
        parts = ("model", "protos")
        return Payload(up=parts, down=parts, counts=self.style == "official")

    def loss(
        self, site: Site, received: Message, state: None, model: Model, batch: TrainingBatch
    ) -> Tensor:
        out, protos, share = (
            site.forward_train(model, batch.x),
            received.protos,
            self.share(batch.context),
        )
        task = site.task_loss(out.logits, batch.y)
        if protos is None:
            return task if self.style == "official" else share * task
        if share == 1:
            return task
        return share * task + (1 - share) * prototype_contrastive(out.z, batch.y, protos, tau=1)

    def share(self, context: RoundContext) -> float:
        """The weight of cross entropy in a round, from 0 to 1; the contrast has the rest."""
        if self.style == "official":
            return context.round / context.rounds
        return context.round / max(context.rounds - 1, 1)

    def train(
        self, site: Site, received: Message, state: None, context: RoundContext
    ) -> tuple[Message, None]:
        return fit_with_prototypes(self, self.collect, site, received, state, context), state

    def merge(
        self,
        site: Site,
        server: ServerState,
        replies: Mapping[ClientId, Message],
        context: RoundContext,
    ) -> ServerState:
        table = stack_client_prototypes(replies)
        centres = table.weighted_mean() if self.style == "official" else table.uniform_mean()
        protos = add_absent_classes(centres, server.protos)
        return ServerState(average_models(replies), protos=protos)


def add_absent_classes(centres: Prototypes, old: Prototypes | None) -> Prototypes:
    """The new centres, and the old ones of classes that no client held in this round.

    `old` is None before the first round.
    """
    if old is None:
        return centres
    absent = ~torch.isin(old.labels, centres.labels)
    return stack_prototypes([centres, tree.map(lambda part: part[absent], old)])
