"""MOON: model-contrastive federated learning (Li, He and Song, CVPR 2021).

The contrast between features of the local, the global and the previous model -> loss; the model at
the end of the client's last participation, from which it is pushed away -> train, as client state.
"""

from __future__ import annotations

from typing import ClassVar

import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.core.message import Message
from protofed.core.method import Method, MethodInfo, ServerState, TunedFields, reply_from_fit
from protofed.core.model import Model
from protofed.core.site import RoundContext, Site, TrainingBatch


@dataclass(frozen=True)
class MOON(Method[ServerState, Model | None]):
    """Features should be closer to the global model's than to those of the client's previous model.

    Clients add mu times a contrastive loss over the features of three models: the one being
    trained, the received one (near) and the client's own from its last round (far). Only the model
    travels, averaged as in FedAvg. Each client keeps its previous model; in its first round the
    term is off.
    """

    info: ClassVar[MethodInfo] = MethodInfo(
        label="MOON",
        title="Model-Contrastive Federated Learning",
        venue="CVPR",
        year=2021,
        link="arXiv:2103.16257",
        family="drift",
    )
    tuned: ClassVar[TunedFields] = {"mu": "log:0.1..10"}

    mu: float = Field(default=1.0, ge=0, description="mu: weight of the contrast")
    tau: float = Field(default=0.5, gt=0, description="tau: temperature of the contrast")

    def loss(
        self, site: Site, received: Message, state: Model | None, model: Model, batch: TrainingBatch
    ) -> Tensor:
        out = site.forward_train(model, batch.x)
        task = site.task_loss(out.logits, batch.y)
        if state is None or not self.mu:  # no previous model yet
            return task
        near, far = (
            site.forward_eval(received.model, batch.x).z,
            site.forward_eval(state, batch.x).z,
        )
        return task + self.mu * model_contrast(out.z, near, far, self.tau)

    def train(
        self, site: Site, received: Message, state: Model | None, context: RoundContext
    ) -> tuple[Message, Model | None]:
        fitted = self.local_fit(site, received, state, context)
        return reply_from_fit(site, fitted), fitted.trained


def model_contrast(z: Tensor, near: Tensor, far: Tensor, tau: float) -> Tensor:
    """The contrastive loss of features z with `near` and `far` [B, D] each: a scalar, batch mean.

    -log(e^n / (e^n + e^f)) with n = cos(z, near) / tau and f = cos(z, far) / tau.
    """
    gap = F.cosine_similarity(z, far) - F.cosine_similarity(z, near)
    return F.softplus(gap / tau).mean()
