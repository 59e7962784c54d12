"""SCAFFOLD: stochastic controlled averaging (Karimireddy et al., ICML 2020, Algorithm 1).

The corrected step y - lr (g + c - c_n) -> loss, as the linear term <y, c - c_n>; option II of the
new variate c_n -> train; the server's steps of model x and variate c -> merge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, cast

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import About, Global, Method, Travels
from protofed.core.model import Model
from protofed.core.site import Batch, ClientId, Site, Step
from protofed.ops import drift
from protofed.ops.drift import VARIATE, Weights


@tree.node
class Controlled(Global):
    """Server state: the model x, and c, the mean of all clients' variates."""

    variate: Weights


@dataclass(frozen=True)
class SCAFFOLD(Method[Controlled, Weights]):
    """Every local gradient is corrected by how the client's mean gradient differs from all's."""

    about: ClassVar[About] = About(
        label="SCAFFOLD",
        title="SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
        venue="ICML",
        year=2020,
        link="arXiv:1910.06378",
        family="drift",
    )

    global_lr: float = Field(default=1.0, ge=0, description="eta_g: the server's step")

    @property
    def travels(self) -> Travels:
        return Travels(up=("model", VARIATE), down=("model", VARIATE))

    def init_server(self, site: Site) -> Controlled:
        model = site.fresh()
        return Controlled(model, drift.zeros(model))

    def init_client(self, site: Site) -> Weights:
        return drift.zeros(site.fresh())

    def send(
        self, site: Site, server: Controlled, to: Sequence[ClientId], step: Step
    ) -> dict[ClientId, Message]:
        return dict.fromkeys(to, Message(server.model, extras={VARIATE: server.variate}))

    def loss(
        self, site: Site, inbox: Message, state: Weights, model: Model, batch: Batch
    ) -> Tensor:
        correction = drift.plus(cast(Weights, inbox.extras[VARIATE]), state, -1)
        task = super().loss(site, inbox, state, model, batch)
        return task + drift.inner(model.weights, correction)

    def train(
        self, site: Site, inbox: Message, state: Weights, step: Step
    ) -> tuple[Message, Weights]:
        loss = partial(self.loss, site, inbox, state)
        reply, steps = drift.descend(site, inbox.model, loss, step)
        shared = cast(Weights, inbox.extras[VARIATE])
        new = drift.renewed(state, shared, inbox.model, reply.model, site.training, steps)
        return replace(reply, extras={VARIATE: drift.plus(new, state, -1)}), new

    def merge(
        self, site: Site, server: Controlled, replies: Mapping[ClientId, Message], step: Step
    ) -> Controlled:
        mean = drift.even_mean(replies)
        weights = tree.map(
            lambda x, y: torch.lerp(x, y, self.global_lr), server.model.weights, mean.weights
        )
        change = drift.mean_change(site, replies, sized=False)
        return Controlled(Model(weights, mean.buffers), drift.plus(server.variate, change))
