"""FedTGP: trainable global prototypes (Zhang et al., AAAI 2024).

Class means -> train; the distance to a global prototype -> loss; contrast of received with learned
prototypes under an adaptive margin -> merge, server_loss. `param_avg` averages models as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.core import tree
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
from protofed.core.prototypes import Prototypes
from protofed.core.site import ClientId, RoundContext, Site, TrainingBatch
from protofed.ops.losses import prototype_mse
from protofed.ops.prototype_collection import (
    Collect,
    fit_with_prototypes,
    generate_vectors,
    init_generator,
    nearest_prototype_scores,
    stack_client_prototypes,
    train_generator,
)


@tree.node
class FedTGPServer(ServerState):
    """Server state: the model, the prototypes of classes seen so far, and their generator.

    See `ops.prototype_generator` for what the generator is.
    """

    generator: dict[str, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class FedTGP(Method[FedTGPServer, Model]):
    """Features are drawn to class prototypes that the server trains to stay apart from one another.

    As FedProto, but the server does not average the clients' class means: it trains a generator of
    one prototype per class, so that received means are near their own and at a margin from others.
    Prototypes travel up and down, and with `param_avg` the model too, averaged as in FedAvg.
    Without it each client keeps its own model, and nets may differ. The server keeps prototypes and
    generator.
    """

    info: ClassVar[MethodInfo] = MethodInfo(
        label="FedTGP",
        title="FedTGP: Trainable Global Prototypes with Adaptive-Margin-Enhanced Contrastive "
        "Learning for Data and Model Heterogeneity in Federated Learning",
        venue="AAAI",
        year=2024,
        link="arXiv:2401.03230",
        family="prototype",
    )
    tuned: ClassVar[TunedFields] = {"lam": "log:1..100"}

    lam: float = Field(default=10.0, ge=0, description="lambda: weight of the pull")
    margin: float = Field(default=100.0, ge=0, description="tau: largest margin")
    server_epochs: int = Field(default=100, ge=0, description="S: passes over received prototypes")
    server_batch: int = Field(default=10, ge=1, description="B: received prototypes per step")
    server_lr: float = Field(default=0.01, gt=0, description="learning rate of the prototypes")
    param_avg: bool = Field(default=True, description="false: only prototypes travel, any nets")
    collect: Collect = Field(default="post", description="online: prototypes of the last epoch")

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

    def init_server(self, site: Site) -> FedTGPServer:
        generator = init_generator(
            site.classes, site.net.features, site.net.features, site.rng("prototypes")
        )
        return FedTGPServer(
            site.initial_model() if self.param_avg else Model(), generator=generator
        )

    def init_client(self, site: Site) -> Model:
        return Model() if self.param_avg else site.initial_model()

    def loss(
        self, site: Site, received: Message, state: Model, model: Model, batch: TrainingBatch
    ) -> Tensor:
        out, rows = site.forward_train(model, batch.x), received.protos
        total = site.task_loss(out.logits, batch.y)
        if self.lam and rows is not None:
            total = total + self.lam * prototype_mse(out.z, batch.y, rows, site.classes)
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
        server: FedTGPServer,
        replies: Mapping[ClientId, Message],
        context: RoundContext,
    ) -> FedTGPServer:
        table = stack_client_prototypes(replies)
        delta = min(float(table.uniform_mean().class_margins().max()), self.margin)

        def loss(generator: dict[str, Tensor], rows: Prototypes) -> Tensor:
            return server_loss(generate_vectors(generator), rows.vectors, rows.labels, delta)

        draws = (site.rng("prototypes", context.round, e) for e in range(self.server_epochs))
        batches = table.shuffled_batches(self.server_batch, draws)
        generator = train_generator(server.generator, batches, loss, self.server_lr)
        labels = torch.cat([(server.protos or table).labels, table.labels]).unique()  # ever held
        protos = Prototypes(generate_vectors(generator)[labels], labels, torch.ones_like(labels))
        model = average_models(replies) if self.param_avg else server.model
        return FedTGPServer(model, protos=protos, generator=generator)

    def inference_model(self, site: Site, received: Message, state: Model) -> Model:
        return received.model | state

    def auxiliary_predictions(
        self, site: Site, received: Message, state: Model, x: Tensor
    ) -> dict[str, Tensor]:
        return nearest_prototype_scores(site, received.model | state, received.protos, x)


def server_loss(learned: Tensor, vectors: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Cross entropy over distances of received vectors [B, D] to the learned ones [C, D]: a scalar.

    The logit of class c is -(||v_b - l_c|| + margin * [c = y_b]), so a vector must be nearer to its
    own prototype by the margin.
    """
    squares = (vectors[:, None] - learned).square().sum(2) + 1e-12  # the root of 0 has no gradient
    return F.cross_entropy(-(squares.sqrt() + margin * F.one_hot(labels, len(learned))), labels)
