"""FedProto: prototypes across clients (Tan et al., AAAI 2022).

Eq. 3 class means -> train; Eq. 6 mean over the clients that own the class -> merge; Eq. 7 the
distance to the global prototype -> loss (mean over batch and dimensions, as in its code).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

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
    average_models,
)
from protofed.core.model import Model
from protofed.core.site import ClientId, RoundContext, Site, TrainingBatch
from protofed.ops.losses import prototype_mse
from protofed.ops.prototype_collection import (
    Collect,
    fit_with_prototypes,
    nearest_prototype_scores,
    stack_client_prototypes,
)


@dataclass(frozen=True)
class FedProto(Method[ServerState, Model]):
    """Each feature is drawn to the mean prototype of its class over all clients.

    Clients add lam * squared distance between feature and global prototype to cross entropy, and
    send their class means; the server averages them over the clients that hold the class,
    unweighted. Prototypes travel up and down, and with `param_avg` the model too, averaged as in
    FedAvg. Without it, as in the paper, each client keeps and is scored with its own model, and
    nets may differ. The server keeps the prototypes.
    """

    info: ClassVar[MethodInfo] = MethodInfo(
        label="FedProto",
        title="FedProto: Federated Prototype Learning across Heterogeneous Clients",
        venue="AAAI",
        year=2022,
        link="arXiv:2105.00243",
        family="prototype",
    )
    tuned: ClassVar[TunedFields] = {"lam": "log:0.1..10"}

    lam: float = Field(default=1.0, ge=0, description="lambda: weight of the pull")
    param_avg: bool = Field(
        default=True, description="average models too; false: only prototypes, any nets"
    )
    collect: Collect = Field(
        default="post", description="prototypes after training, or online in the last epoch"
    )

    @property
    def personal(self) -> bool:
        return not self.param_avg

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("equal nets",) if self.param_avg else ("equal features",)

    @property
    def payload(self) -> Payload:
        parts = ("model", "protos") if self.param_avg else ("protos",)
        return Payload(up=parts, down=parts)

    def init_server(self, site: Site) -> ServerState:
        return ServerState(site.initial_model() if self.param_avg else Model())

    def init_client(self, site: Site) -> Model:
        return Model() if self.param_avg else site.initial_model()

    def loss(
        self, site: Site, received: Message, state: Model, model: Model, batch: TrainingBatch
    ) -> Tensor:
        out, protos = site.forward_train(model, batch.x), received.protos
        total = site.task_loss(out.logits, batch.y)
        if self.lam and protos is not None:
            total = total + self.lam * prototype_mse(out.z, batch.y, protos, site.classes)
        return total

    def train(
        self, site: Site, received: Message, state: Model, context: RoundContext
    ) -> tuple[Message, Model]:
        start = received.model | state
        reply = fit_with_prototypes(self, self.collect, site, received, state, context, start)
        return (reply, state) if self.param_avg else (replace(reply, model=Model()), reply.model)

    def merge(
        self,
        site: Site,
        server: ServerState,
        replies: Mapping[ClientId, Message],
        context: RoundContext,
    ) -> ServerState:
        model = average_models(replies) if self.param_avg else server.model
        return ServerState(model, protos=stack_client_prototypes(replies).uniform_mean())

    def inference_model(self, site: Site, received: Message, state: Model) -> Model:
        return received.model | state

    def auxiliary_predictions(
        self, site: Site, received: Message, state: Model, x: Tensor
    ) -> dict[str, Tensor]:
        return nearest_prototype_scores(site, received.model | state, received.protos, x)
