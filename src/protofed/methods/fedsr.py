"""FedSR: simple representations (Nguyen et al., NeurIPS 2022).

A feature is drawn from N(mu(x), sigma(x)^2) -> adapt, loss. L2R: its length -> loss. CMI: the KL
of its distribution to a reference of its class that each client learns for itself -> loss, with
the references kept in train. Prediction is the mean over draws -> predict.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, cast

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.core.message import Message
from protofed.core.method import Method, MethodInfo, ServerState
from protofed.core.model import ImageShape, Model, Net
from protofed.core.site import RoundContext, Site, TrainingBatch
from protofed.ops.probabilistic import ProbabilisticNet, mean_log_probability

PRIVATE = ("references",)  # never leave the client


@dataclass(frozen=True)
class FedSR(Method[ServerState, Model]):
    """Random features that are short and near a reference of their class."""

    info: ClassVar[MethodInfo] = MethodInfo(
        label="FedSR",
        title="FedSR: A Simple and Effective Domain Generalization Method for Federated Learning",
        venue="NeurIPS",
        year=2022,
        family="representation",
    )

    alpha_l2r: float = Field(default=0.01, ge=0, description="alpha^L2R: weight of the length")
    alpha_cmi: float = Field(default=5e-4, ge=0, description="alpha^CMI: weight of the KL")
    l2_squared: bool = Field(
        default=False, description="square the length, as the paper; its code does not"
    )
    samples: int = Field(default=20, ge=1, description="draws that a prediction averages")

    def adapt(self, net: Net, image: ImageShape) -> Net:
        return ProbabilisticNet(net)

    def init_server(self, site: Site) -> ServerState:
        return ServerState(site.initial_model().without(*PRIVATE))

    def init_client(self, site: Site) -> Model:
        return site.initial_model().only(*PRIVATE)

    def loss(
        self, site: Site, inbox: Message, state: Model, model: Model, batch: TrainingBatch
    ) -> Tensor:
        draw = site.rng("sample", batch.context.round, batch.context.exchange, batch.number)
        noise = torch.randn(len(batch.y), site.net.features, generator=draw).to(batch.x.device)
        out = site.forward_train(model, batch.x, noise, batch.y if self.alpha_cmi else None)
        loss = F.cross_entropy(out.logits, batch.y)
        if self.alpha_l2r:
            length = out.z.square().sum(1) if self.l2_squared else out.z.norm(dim=1)
            loss = loss + self.alpha_l2r * length.mean()
        if self.alpha_cmi:
            divergence = cast(Tensor, out.more)  # [B]
            loss = loss + self.alpha_cmi * divergence.mean()
        return loss

    def train(
        self, site: Site, inbox: Message, state: Model, step: RoundContext
    ) -> tuple[Message, Model]:
        whole = replace(inbox, model=inbox.model | state)
        reply, _ = super().train(site, whole, state, step)
        return replace(reply, model=reply.model.without(*PRIVATE)), reply.model.only(*PRIVATE)

    def predict(self, site: Site, inbox: Message, state: Model, x: Tensor) -> Tensor:
        # One set of draws for all images: how they are cut into batches changes no score.
        noise = site.randn((self.samples, 1, site.net.features), "test samples").to(x.device)
        return mean_log_probability(site.forward_eval(inbox.model | state, x, noise).logits)
