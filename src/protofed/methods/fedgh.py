"""FedGH: a global head trained on the prototypes of all clients (Yi et al., ACM MM 2023).

The received head in place of the own, cross entropy, class means of features -> train; the head's
training on all class means -> merge, head_loss. Everything below the head stays at its client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.core.fit import fit
from protofed.core.message import Message
from protofed.core.method import About, Global, Method, Need, Travels
from protofed.core.model import Model
from protofed.core.prototypes import Prototypes
from protofed.core.site import ClientId, Site, Step
from protofed.core.training import SGD
from protofed.ops.prototypes import local_prototypes, received


@dataclass(frozen=True)
class FedGH(Method[Global, Model]):
    """Clients' extractors stay their own; the server trains one head on their class means."""

    about: ClassVar[About] = About(
        label="FedGH",
        title="FedGH: Heterogeneous Federated Learning with Generalized Global Header",
        venue="ACM MM",
        year=2023,
        link="arXiv:2303.13137",
        family="prototype",
    )

    server_lr: float = Field(default=0.01, gt=0, description="eta: learning rate of the head")
    server_epochs: int = Field(
        default=100, ge=0, description="passes over the received prototypes in a round"
    )
    server_batch: int = Field(default=10, ge=1, description="received prototypes in a step")

    @property
    def personal(self) -> bool:
        return True

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("equal features",)

    @property
    def travels(self) -> Travels:
        return Travels(up=("protos",), down=("model",))

    def init_server(self, site: Site) -> Global:
        return Global(site.fresh().only("head"))

    def init_client(self, site: Site) -> Model:
        return site.fresh()

    def train(self, site: Site, inbox: Message, state: Model, step: Step) -> tuple[Message, Model]:
        start = replace(inbox, model=state | inbox.model)
        reply, _ = super().train(site, start, state, step)
        protos = local_prototypes(site, reply.model)
        return replace(reply, model=Model(), protos=protos), reply.model

    def merge(
        self, site: Site, server: Global, replies: Mapping[ClientId, Message], step: Step
    ) -> Global:
        table = received(replies)

        def loss(head: Model, rows: Prototypes) -> Tensor:
            return head_loss(head, rows.vectors, rows.labels)

        draws = (site.rng("head", step.round, epoch) for epoch in range(self.server_epochs))
        batches = table.shuffled(self.server_batch, draws)
        sgd = SGD(lr=self.server_lr, momentum=0, weight_decay=0)
        return Global(fit(server.model, batches, loss, sgd).thing)

    def predict(self, site: Site, inbox: Message, state: Model, x: Tensor) -> Tensor:
        return site.look(state, x).logits

    def opinions(self, site: Site, inbox: Message, state: Model, x: Tensor) -> dict[str, Tensor]:
        return {"global head": site.look(state | inbox.model, x).logits}


def head_loss(head: Model, z: Tensor, y: Tensor) -> Tensor:
    """The cross entropy of a linear head on features [B, D] of classes [B]."""
    weights = head.weights
    return F.cross_entropy(F.linear(z, weights["head.weight"], weights["head.bias"]), y)
