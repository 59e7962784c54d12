"""SCAFFOLD: stochastic controlled averaging (Karimireddy et al., ICML 2020, Algorithm 1).

The corrected step y - lr (g + c - c_n) -> loss, as the linear term <y, c - c_n>; option II of the
new variate c_n -> train; the server's steps of model x and variate c -> merge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, cast

import torch
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
    reply_from_fit,
)
from protofed.core.model import Model
from protofed.core.site import ClientId, RoundContext, Site, TrainingBatch
from protofed.ops import control_variates
from protofed.ops.control_variates import VARIATE, Weights


@tree.node
class ScaffoldServer(ServerState):
    """Server state: the model x, and the variate c, the mean of all clients' variates.

    One tensor per weight; zero before the first round.
    """

    variate: Weights


@dataclass(frozen=True)
class SCAFFOLD(Method[ScaffoldServer, Weights]):
    """Corrects each local gradient by how the client's mean gradient differs from all clients'.

    A client's control variate c_n estimates its own mean gradient, the server's c that of all
    clients; local steps use g + c - c_n, so clients drift apart less. Model and variate travel up
    and down, twice the bytes of FedAvg. Each client keeps c_n; the server keeps c, moves it by the
    mean change, and moves the model by global_lr towards the unweighted mean.
    """

    info: ClassVar[MethodInfo] = MethodInfo(
        label="SCAFFOLD",
        title="SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
        venue="ICML",
        year=2020,
        link="arXiv:1910.06378",
        family="drift",
    )
    tuned: ClassVar[TunedFields] = {"global_lr": "0.5..1"}

    global_lr: float = Field(default=1.0, ge=0, description="eta_g: the server's step")

    @property
    def needs(self) -> tuple[Need, ...]:
        return (*super().needs, "sgd")  # for `updated_variate`

    @property
    def payload(self) -> Payload:
        return Payload(up=("model", VARIATE), down=("model", VARIATE))

    def init_server(self, site: Site) -> ScaffoldServer:
        model = site.initial_model()
        return ScaffoldServer(model, control_variates.zero_weights(model))

    def init_client(self, site: Site) -> Weights:
        return control_variates.zero_weights(site.initial_model())

    def send(
        self, site: Site, server: ScaffoldServer, to: Sequence[ClientId], context: RoundContext
    ) -> dict[ClientId, Message]:
        return dict.fromkeys(to, Message(server.model, extras={VARIATE: server.variate}))

    def loss(
        self, site: Site, received: Message, state: Weights, model: Model, batch: TrainingBatch
    ) -> Tensor:
        correction = control_variates.add_weights(
            cast(Weights, received.extras[VARIATE]), state, -1
        )
        task = super().loss(site, received, state, model, batch)
        return task + control_variates.inner_product(model.weights, correction)

    def train(
        self, site: Site, received: Message, state: Weights, context: RoundContext
    ) -> tuple[Message, Weights]:
        fitted = self.local_fit(site, received, state, context)
        shared = cast(Weights, received.extras[VARIATE])
        new = control_variates.updated_variate(
            state, shared, received.model, fitted.trained, site.training, fitted.steps
        )
        extras = {VARIATE: control_variates.add_weights(new, state, -1)}
        return replace(reply_from_fit(site, fitted), extras=extras), new

    def merge(
        self,
        site: Site,
        server: ScaffoldServer,
        replies: Mapping[ClientId, Message],
        context: RoundContext,
    ) -> ScaffoldServer:
        mean = control_variates.unweighted_mean(replies)
        weights = tree.map(
            lambda x, y: torch.lerp(x, y, self.global_lr), server.model.weights, mean.weights
        )
        change = control_variates.mean_variate_change(site, replies, sized=False)
        return ScaffoldServer(
            Model(weights, mean.buffers), control_variates.add_weights(server.variate, change)
        )
