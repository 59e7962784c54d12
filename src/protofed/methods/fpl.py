"""FPL: federated prototypes learning under domain shift (Huang et al., CVPR 2023).

Eq. 2 class means -> train; Eq. 4-5 FINCH clusters of each class -> clusters; Eq. 6 their plain
mean, Eq. 7-8 CPCL, Eq. 10 UPCR and Eq. 12 the sum -> loss. Eq. 7 prints tau upside down; cos / tau
is meant, and is what the code does. Eq. 9 drops the "1 +" of Eq. 8; we keep it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.core.message import Message
from protofed.core.method import (
    Ablations,
    Method,
    MethodInfo,
    Payload,
    ServerState,
    TunedFields,
    average_models,
)
from protofed.core.model import Model
from protofed.core.prototypes import Prototypes, stack_prototypes
from protofed.core.site import ClientId, RoundContext, Site, TrainingBatch
from protofed.ops.finch import finch_clusters
from protofed.ops.losses import Reduction, prototype_contrastive, prototype_mse
from protofed.ops.prototype_collection import (
    Collect,
    fit_with_prototypes,
    stack_client_prototypes,
)


@dataclass(frozen=True)
class FPL(Method[ServerState, None]):
    """Contrast with cluster prototypes of all domains, and a distance term to their unbiased mean.

    Clients send their class means; the server clusters those of each class by FINCH and sends the
    cluster means, so that every domain is represented and none dominates. Clients add a contrastive
    loss with all cluster means (CPCL) and a squared distance to the mean of their class's clusters
    (UPCR). Model and prototypes travel up and down; models are averaged as in FedAvg. The server
    keeps the cluster prototypes; clients keep nothing.
    """

    info: ClassVar[MethodInfo] = MethodInfo(
        label="FPL",
        title="Rethinking Federated Learning with Domain Shift: A Prototype View",
        venue="CVPR",
        year=2023,
        family="prototype",
        suits=("domain shift",),
    )
    tuned: ClassVar[TunedFields] = {"tau": "log:0.02..0.5"}

    ablations: ClassVar[Ablations] = {
        "neither (FedAvg)": {"cpcl": 0.0, "upcr": 0.0},
        "CPCL only": {"upcr": 0.0},
        "UPCR only": {"cpcl": 0.0},
        "CPCL only, global prototypes": {"upcr": 0.0, "finch_partition": "none"},
        "UPCR only, global prototypes": {"cpcl": 0.0, "finch_partition": "none"},
    }

    tau: float = Field(default=0.1, gt=0, description="tau: temperature of the contrast")
    cpcl: float = Field(default=1.0, ge=0, description="weight of the cluster contrast")
    upcr: float = Field(default=1.0, ge=0, description="weight of the pull to the unbiased mean")
    finch_partition: Literal["first", "last", "none"] = Field(
        default="last",
        description="clusters: finest (the paper), coarsest of two or more (its code), or one",
    )
    upcr_reduction: Reduction = Field(
        default="mean", description="over feature dimensions: mean (its code) or sum (the paper)"
    )
    collect: Collect = Field(
        default="post", description="prototypes after training, or online in the last epoch"
    )

    @property
    def payload(self) -> Payload:
        return Payload(up=("model", "protos"), down=("model", "protos"))

    def loss(
        self, site: Site, received: Message, state: None, model: Model, batch: TrainingBatch
    ) -> Tensor:
        out, y, protos = site.forward_train(model, batch.x), batch.y, received.protos
        task = site.task_loss(out.logits, y)
        if protos is None:
            return task
        near = (
            prototype_mse(out.z, y, protos, site.classes, self.upcr_reduction) if self.upcr else 0
        )
        apart = prototype_contrastive(out.z, y, protos, self.tau) if self.cpcl else 0
        return task + self.cpcl * apart + self.upcr * near

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
        protos = self.clusters(stack_client_prototypes(replies))
        return ServerState(average_models(replies), protos=protos)

    def result_warning(self, server: ServerState) -> str:
        protos = server.protos
        clustered = self.finch_partition != "none" and bool(self.cpcl or self.upcr)
        if clustered and protos is not None and len(protos) == len(protos.labels.unique()):
            return "FPL ended with one cluster per class: cluster and unbiased prototypes are equal"
        return super().result_warning(server)

    def clusters(self, table: Prototypes) -> Prototypes:
        """The unweighted mean of each FINCH cluster of a class's rows: several rows per class."""
        return stack_prototypes(self._clusters_of(table, label) for label in table.labels.unique())

    def _clusters_of(self, table: Prototypes, label: Tensor) -> Prototypes:
        own = table.labels == label
        rows = Prototypes(table.vectors[own], table.labels[own], table.counts[own])
        if self.finch_partition == "none":
            return rows.uniform_mean()
        partition = finch_clusters(rows.vectors)[0 if self.finch_partition == "first" else -1]
        means = replace(rows, labels=partition).uniform_mean()
        return replace(means, labels=torch.full_like(means.labels, int(label)))
