"""FedDC: local drift decoupling and correction (Gao et al., CVPR 2022), as in its authors' code.

Cross entropy, the penalty that ties a client's model and drift to the global model, and the
gradient correction -> loss; the new drift h_n and mean gradient g_n -> train; the mean of models,
drifts and gradients -> merge; mean model + mean drift, from which clients start -> send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, cast

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import Method, MethodInfo, Need, Payload, TunedFields, reply_from_fit
from protofed.core.model import Model
from protofed.core.site import ClientId, RoundContext, Site, TrainingBatch
from protofed.ops import control_variates
from protofed.ops.control_variates import VARIATE, DriftServer, Weights


@tree.node
class FedDCServer(DriftServer):
    """Server state: the mean model, the mean drift over all clients, and the mean gradient G.

    `variate` is G, the mean of the clients' g_n weighted by their sizes.
    """

    variate: Weights


@tree.node
class FedDCClient:
    """Client state: its drift h_n and its last mean gradient g_n.

    One tensor per weight each, zero before the first round.
    """

    drift: Weights
    variate: Weights


@dataclass(frozen=True)
class FedDC(Method[FedDCServer, FedDCClient]):
    """Each client learns its own drift, and model plus drift is held to the global model.

    Beside cross entropy a client minimises (alpha / 2 r_n) ||theta + h_n - theta^t||^2 and a linear
    term that corrects its gradients as SCAFFOLD does; r_n is its size over the mean size. The model
    and a control variate travel in both directions, twice the bytes of FedAvg. A client keeps its
    drift h_n and mean gradient g_n, the server the mean model, mean drift and mean gradient.
    Clients start from mean model + mean drift.
    """

    info: ClassVar[MethodInfo] = MethodInfo(
        label="FedDC",
        title="FedDC: Federated Learning with Non-IID Data via Local Drift Decoupling and "
        "Correction",
        venue="CVPR",
        year=2022,
        link="arXiv:2203.11751",
        family="drift",
    )
    tuned: ClassVar[TunedFields] = {"alpha": "log:0.001..0.1"}

    alpha: float = Field(default=0.01, ge=0, description="alpha: weight of the drift's penalty")
    clip: float = Field(default=10.0, ge=0, description="largest norm of a gradient; 0: no limit")

    @property
    def needs(self) -> tuple[Need, ...]:
        return (*super().needs, "sgd")  # for `updated_variate`

    @property
    def payload(self) -> Payload:
        return Payload(up=("model", VARIATE), down=("model", VARIATE))

    def init_server(self, site: Site) -> FedDCServer:
        model = site.initial_model()
        return FedDCServer(
            model, control_variates.zero_weights(model), control_variates.zero_weights(model)
        )

    def init_client(self, site: Site) -> FedDCClient:
        return FedDCClient(
            control_variates.zero_weights(site.initial_model()),
            control_variates.zero_weights(site.initial_model()),
        )

    def send(
        self, site: Site, server: FedDCServer, to: Sequence[ClientId], context: RoundContext
    ) -> dict[ClientId, Message]:
        return dict.fromkeys(to, Message(server.client_start(), extras={VARIATE: server.variate}))

    def loss(
        self, site: Site, received: Message, state: FedDCClient, model: Model, batch: TrainingBatch
    ) -> Tensor:
        size = control_variates.relative_size(site, site.id)
        task = super().loss(site, received, state, model, batch)
        undrifted = control_variates.add_weights(model.weights, state.drift)
        penalty = tree.squared_distance(undrifted, received.model.weights) * self.alpha / (2 * size)
        correction = control_variates.add_weights(shared_variate(site, received), state.variate, -1)
        return task + penalty + control_variates.inner_product(model.weights, correction)

    def train(
        self, site: Site, received: Message, state: FedDCClient, context: RoundContext
    ) -> tuple[Message, FedDCClient]:
        clip = control_variates.clip_gradients(self.clip)
        fitted = self.local_fit(site, received, state, context, on_gradients=clip)
        start, end, own = received.model, fitted.trained, state.variate
        new = control_variates.updated_variate(
            own, shared_variate(site, received), start, end, site.training, fitted.steps
        )
        moved = control_variates.add_weights(
            state.drift, control_variates.add_weights(end.weights, start.weights, -1)
        )
        extras = {VARIATE: control_variates.add_weights(new, own, -1)}
        return replace(reply_from_fit(site, fitted), extras=extras), FedDCClient(moved, new)

    def merge(
        self,
        site: Site,
        server: FedDCServer,
        replies: Mapping[ClientId, Message],
        context: RoundContext,
    ) -> FedDCServer:
        model, change = (
            control_variates.unweighted_mean(replies),
            control_variates.mean_variate_change(site, replies, sized=True),
        )
        return FedDCServer(
            model,
            control_variates.mean_drift(
                site, server.drift, server.client_start(), model, len(replies)
            ),
            control_variates.add_weights(server.variate, change),
        )


def shared_variate(site: Site, received: Message) -> Weights:
    """The server's mean gradient G on the scale of this client: G / r_n.

    r_n is the client's number of examples over the mean of all clients (`relative_size`).
    """
    variate = cast(Weights, received.extras[VARIATE])
    return tree.map(lambda leaf: leaf / control_variates.relative_size(site, site.id), variate)
