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

from protofed.core.message import Message
from protofed.core.method import (
    Method,
    MethodInfo,
    Need,
    Payload,
    ServerState,
    TunedFields,
    reply_from_fit,
)
from protofed.core.model import Model
from protofed.core.prototypes import Prototypes
from protofed.core.site import ClientId, RoundContext, Site
from protofed.core.training import SGD, fit_model
from protofed.ops.prototype_collection import local_prototypes, stack_client_prototypes


@dataclass(frozen=True)
class FedGH(Method[ServerState, Model]):
    """Clients keep their feature extractors; the server trains one head on their class means.

    Instead of averaging models, the server trains the head by cross entropy on the prototypes of
    all clients. Prototypes travel up, the head travels down. A client keeps its whole model and
    replaces its head by the received one before training, so nets may differ below features of one
    width. Each client is scored with its own model (`personal`).
    """

    info: ClassVar[MethodInfo] = MethodInfo(
        label="FedGH",
        title="FedGH: Heterogeneous Federated Learning with Generalized Global Header",
        venue="ACM MM",
        year=2023,
        link="arXiv:2303.13137",
        family="prototype",
    )
    tuned: ClassVar[TunedFields] = {"server_lr": "log:0.001..0.1"}

    server_lr: float = Field(default=0.01, gt=0, description="eta: learning rate of the head")
    server_epochs: int = Field(
        default=100, ge=0, description="passes over the received prototypes per round"
    )
    server_batch: int = Field(default=10, ge=1, description="received prototypes per step")

    @property
    def personal(self) -> bool:
        return True

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("equal features",)

    @property
    def payload(self) -> Payload:
        return Payload(up=("protos",), down=("model",))

    def init_server(self, site: Site) -> ServerState:
        return ServerState(site.initial_model().only("head"))

    def init_client(self, site: Site) -> Model:
        return site.initial_model()

    def train(
        self, site: Site, received: Message, state: Model, context: RoundContext
    ) -> tuple[Message, Model]:
        start = state | received.model
        fitted = self.local_fit(site, received, state, context, start=start)
        protos = local_prototypes(site, fitted.trained)
        return replace(reply_from_fit(site, fitted), model=Model(), protos=protos), fitted.trained

    def merge(
        self,
        site: Site,
        server: ServerState,
        replies: Mapping[ClientId, Message],
        context: RoundContext,
    ) -> ServerState:
        table = stack_client_prototypes(replies)

        def loss(head: Model, rows: Prototypes) -> Tensor:
            return head_loss(head, rows.vectors, rows.labels)

        draws = (site.rng("head", context.round, epoch) for epoch in range(self.server_epochs))
        batches = table.shuffled_batches(self.server_batch, draws)
        sgd = SGD(lr=self.server_lr, momentum=0, weight_decay=0)
        return ServerState(fit_model(server.model, batches, loss, sgd).trained)

    def inference_model(self, site: Site, received: Message, state: Model) -> Model:
        return state

    def auxiliary_predictions(
        self, site: Site, received: Message, state: Model, x: Tensor
    ) -> dict[str, Tensor]:
        return {"global head": site.forward_eval(state | received.model, x).logits}


def head_loss(head: Model, z: Tensor, y: Tensor) -> Tensor:
    """Cross entropy of a linear head on features z [B, D] with classes y [B]: a scalar.

    `head` holds only ``head.weight`` [C, D] and ``head.bias`` [C]; the mean over the batch.
    """
    weights = head.weights
    return F.cross_entropy(F.linear(z, weights["head.weight"], weights["head.bias"]), y)
