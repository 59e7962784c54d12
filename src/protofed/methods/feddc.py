"""FedDC: local drift decoupling and correction (Gao et al., CVPR 2022), as in its authors' code.

Cross entropy, the penalty that ties a client's model and drift to the global model, and the
gradient correction -> loss; the new drift h_n and mean gradient g_n -> train; the mean of models,
drifts and gradients -> merge; mean model + mean drift, from which clients start -> send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import ClassVar, cast

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import About, Method, Travels
from protofed.core.model import Model
from protofed.core.site import Batch, ClientId, Site, Step
from protofed.ops import drift
from protofed.ops.drift import VARIATE, Shifted, Weights


@tree.node
class Corrected(Shifted):
    """Server state: the mean model, the mean drift, and G, the mean gradient by sizes."""

    variate: Weights


@tree.node
class Memory:
    """Client state: its drift h_n and its last mean gradient g_n."""

    drift: Weights
    variate: Weights


@dataclass(frozen=True)
class FedDC(Method[Corrected, Memory]):
    """Each client learns its own drift, and model plus drift is held to the global model."""

    about: ClassVar[About] = About(
        label="FedDC",
        title="FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and "
        "Correction",
        venue="CVPR",
        year=2022,
        link="arXiv:2203.11751",
        family="drift",
    )

    alpha: float = Field(default=0.01, ge=0, description="alpha: weight of the drift's penalty")
    clip: float = Field(default=10.0, ge=0, description="largest norm of a gradient; 0: no limit")

    @property
    def travels(self) -> Travels:
        return Travels(up=("model", VARIATE), down=("model", VARIATE))

    def init_server(self, site: Site) -> Corrected:
        model = site.fresh()
        return Corrected(model, drift.zeros(model), drift.zeros(model))

    def init_client(self, site: Site) -> Memory:
        return Memory(drift.zeros(site.fresh()), drift.zeros(site.fresh()))

    def send(
        self, site: Site, server: Corrected, to: Sequence[ClientId], step: Step
    ) -> dict[ClientId, Message]:
        return dict.fromkeys(to, Message(server.cloud(), extras={VARIATE: server.variate}))

    def loss(self, site: Site, inbox: Message, state: Memory, model: Model, batch: Batch) -> Tensor:
        size = drift.relative_size(site, site.id)
        task = super().loss(site, inbox, state, model, batch)
        undrifted = drift.plus(model.weights, state.drift)
        penalty = tree.squared_distance(undrifted, inbox.model.weights) * self.alpha / (2 * size)
        correction = drift.plus(shared(site, inbox), state.variate, -1)
        return task + penalty + drift.inner(model.weights, correction)

    def train(
        self, site: Site, inbox: Message, state: Memory, step: Step
    ) -> tuple[Message, Memory]:
        loss = partial(self.loss, site, inbox, state)
        reply, steps = drift.descend(site, inbox.model, loss, step, self.clip)
        start, end, own = inbox.model, reply.model, state.variate
        new = drift.renewed(own, shared(site, inbox), start, end, site.training, steps)
        moved = drift.plus(state.drift, drift.plus(end.weights, start.weights, -1))
        return replace(reply, extras={VARIATE: drift.plus(new, own, -1)}), Memory(moved, new)

    def merge(
        self, site: Site, server: Corrected, replies: Mapping[ClientId, Message], step: Step
    ) -> Corrected:
        model, change = drift.even_mean(replies), drift.mean_change(site, replies, sized=True)
        return Corrected(
            model,
            drift.drifted(site, server.drift, server.cloud(), model, len(replies)),
            drift.plus(server.variate, change),
        )


def shared(site: Site, inbox: Message) -> Weights:
    """The server's G as this client counts it: divided by N * omega_n."""
    variate = cast(Weights, inbox.extras[VARIATE])
    return tree.map(lambda leaf: leaf / drift.relative_size(site, site.id), variate)
