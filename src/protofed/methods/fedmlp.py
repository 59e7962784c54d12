"""FedMLP*: multi-level prototypes (Guo et al., 2024), reconstructed from the abstract.

Only the abstract (arXiv:2312.09881) was available, and no code: it names prototypes, semantic
prototypes, and three regularisers. What each of them is, is our reading: means of features and a
term as in FedProto; means of softmax outputs and a KL term towards them; a KL term towards the
client's previous model, for tasks that change over time, which is off if the data do not change.
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
from protofed.core.method import (
    Method,
    MethodInfo,
    Payload,
    ServerState,
    TunedFields,
    average_models,
    reply_from_fit,
)
from protofed.core.model import Model
from protofed.core.prototypes import Prototypes, class_means, prototype_template, stack_prototypes
from protofed.core.site import ClientId, RoundContext, Site, TrainingBatch
from protofed.ops.losses import logit_kl, prototype_mse
from protofed.ops.prototype_collection import site_outputs, stack_client_prototypes


@tree.node
class FedMLPServer(ServerState):
    """Server state: the model, prototypes of features, and prototypes of softmax outputs.

    `semantic` has one row [C] per class: the mean softmax output of its images.
    """

    semantic: Prototypes | None = None  # none before the first round


@dataclass(frozen=True)
class FedMLP(Method[FedMLPServer, Model | None]):
    """Terms that draw a client to mean features, mean softmax outputs, and its previous model.

    Clients add to cross entropy lam1 * squared distance to the class's mean feature, lam2 * KL from
    the class's mean softmax output and, if lam3 > 0, lam3 * KL from the model of their last round.
    Model and both kinds of prototypes travel up and down; models are averaged as in FedAvg,
    prototypes unweighted. The server keeps both; a client keeps its last model only if lam3 > 0.
    """

    info: ClassVar[MethodInfo] = MethodInfo(
        label="FedMLP*",
        title="Dynamic Heterogeneous Federated Learning with Multi-Level Prototypes",
        venue="Pattern Recognition",
        year=2024,
        link="arXiv:2312.09881",
        family="prototype",
        caveat="reconstructed from the abstract",
    )
    tuned: ClassVar[TunedFields] = {"lam1": "log:0.1..10", "lam2": "log:0.01..1"}

    lam1: float = Field(default=1.0, ge=0, description="weight of the pull to mean features")
    lam2: float = Field(default=0.1, ge=0, description="weight of mean softmax outputs")
    lam3: float = Field(
        default=0.0, ge=0, description="weight of the client's previous model; 0 for one task"
    )

    @property
    def payload(self) -> Payload:
        parts = ("model", "protos", "semantic")
        return Payload(up=parts, down=parts)

    def init_server(self, site: Site) -> FedMLPServer:
        return FedMLPServer(site.initial_model())

    def publish(self, server: FedMLPServer) -> Message:
        extras = {} if server.semantic is None else {"semantic": server.semantic}
        return Message(model=server.model, protos=server.protos, extras=extras)

    def loss(
        self, site: Site, received: Message, state: Model | None, model: Model, batch: TrainingBatch
    ) -> Tensor:
        out, semantic = site.forward_train(model, batch.x), received.extras.get("semantic")
        total = site.task_loss(out.logits, batch.y)
        if self.lam1 and received.protos is not None:
            total = total + self.lam1 * prototype_mse(out.z, batch.y, received.protos, site.classes)
        if self.lam2 and isinstance(semantic, Prototypes):
            total = total + self.lam2 * semantic_pull(out.logits, batch.y, semantic, site.classes)
        if self.lam3 and state is not None:
            before = site.forward_eval(state, batch.x).logits
            total = total + self.lam3 * logit_kl(before, out.logits).mean()
        return total

    def train(
        self, site: Site, received: Message, state: Model | None, context: RoundContext
    ) -> tuple[Message, Model | None]:
        fitted = self.local_fit(site, received, state, context)
        out, labels = site_outputs(site, fitted.trained), site.train.labels
        protos, semantic = class_means(out.z, labels), class_means(out.logits.softmax(1), labels)
        reply = replace(reply_from_fit(site, fitted), protos=protos, extras={"semantic": semantic})
        return reply, fitted.trained if self.lam3 > 0 else None

    def reply_schema(self, site: Site, received: Message, context: RoundContext) -> Message:
        semantic = prototype_template(site.classes, site.classes)
        return replace(super().reply_schema(site, received, context), extras={"semantic": semantic})

    def merge(
        self,
        site: Site,
        server: FedMLPServer,
        replies: Mapping[ClientId, Message],
        context: RoundContext,
    ) -> FedMLPServer:
        extras = [reply.extras.get("semantic") for reply in replies.values()]
        semantic = stack_prototypes(table for table in extras if isinstance(table, Prototypes))
        protos = stack_client_prototypes(replies).uniform_mean()
        return FedMLPServer(average_models(replies), semantic.uniform_mean(), protos=protos)


def semantic_pull(logits: Tensor, y: Tensor, semantic: Prototypes, classes: int) -> Tensor:
    """KL(mean softmax output of the class || the image's own), from logits [B, C]: a batch mean.

    An image whose class has no row adds nothing but still counts in the mean.
    """
    targets, _ = semantic.class_matrix(classes)  # [C, C]; the zeros of an absent class give KL 0
    return F.kl_div(logits.log_softmax(1), targets[y], reduction="sum") / len(y)
