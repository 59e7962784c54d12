"""FedDyn: dynamic regularisation (Acar et al., ICLR 2021), as in its authors' code.

Algorithm 1: the client's loss with its linear and its quadratic term -> loss; its state, there a
gradient and here s_n = -gradient / alpha, moves by theta_n - theta^t -> train; the means of the
models and of the states -> merge; their sum, from which clients start -> send.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.core.message import Message
from protofed.core.method import Method, MethodInfo, TunedFields, reply_from_fit
from protofed.core.model import Model
from protofed.core.site import ClientId, RoundContext, Site, TrainingBatch
from protofed.ops import control_variates
from protofed.ops.control_variates import DriftServer, Weights
from protofed.ops.losses import proximal_term


@dataclass(frozen=True)
class FedDyn(Method[DriftServer, Weights]):
    """A quadratic and a linear term in each client's loss that make local and global optima agree.

    Clients minimise cross entropy + (alpha / r_n) (||theta - theta^t||^2 / 2 + <theta, s_n>), where
    r_n is the client's size over the mean size and s_n the sum of its moves so far. Only the model
    travels, as in FedAvg. A client keeps s_n; the server keeps the unweighted mean model and the
    mean of all s_n, and sends their sum.
    """

    info: ClassVar[MethodInfo] = MethodInfo(
        label="FedDyn",
        title="Federated Learning Based on Dynamic Regularization",
        venue="ICLR",
        year=2021,
        link="arXiv:2111.04263",
        family="drift",
    )
    tuned: ClassVar[TunedFields] = {"alpha": "log:0.001..0.1"}

    alpha: float = Field(default=0.01, ge=0, description="alpha: weight of the regulariser")
    clip: float = Field(default=10.0, ge=0, description="largest norm of a gradient; 0: no limit")

    def init_server(self, site: Site) -> DriftServer:
        model = site.initial_model()
        return DriftServer(model, control_variates.zero_weights(model))

    def init_client(self, site: Site) -> Weights:
        return control_variates.zero_weights(site.initial_model())

    def send(
        self, site: Site, server: DriftServer, to: Sequence[ClientId], context: RoundContext
    ) -> dict[ClientId, Message]:
        return dict.fromkeys(to, Message(self.start(server)))

    def start(self, server: DriftServer) -> Model:
        """The model that clients start from; with alpha = 0 no drift is added."""
        return server.client_start() if self.alpha else server.model

    def loss(
        self, site: Site, received: Message, state: Weights, model: Model, batch: TrainingBatch
    ) -> Tensor:
        alpha = self.alpha / control_variates.relative_size(site, site.id)
        task = super().loss(site, received, state, model, batch)
        # <theta, s_n - theta^t> + ||theta||^2 / 2 but for a constant, without terms that cancel.
        return task + alpha * (
            proximal_term(model, received.model)
            + control_variates.inner_product(model.weights, state)
        )

    def train(
        self, site: Site, received: Message, state: Weights, context: RoundContext
    ) -> tuple[Message, Weights]:
        clip = control_variates.clip_gradients(self.clip)
        fitted = self.local_fit(site, received, state, context, on_gradients=clip)
        move = control_variates.add_weights(fitted.trained.weights, received.model.weights, -1)
        return reply_from_fit(site, fitted), control_variates.add_weights(state, move)

    def merge(
        self,
        site: Site,
        server: DriftServer,
        replies: Mapping[ClientId, Message],
        context: RoundContext,
    ) -> DriftServer:
        model, start = control_variates.unweighted_mean(replies), self.start(server)
        return DriftServer(
            model, control_variates.mean_drift(site, server.drift, start, model, len(replies))
        )
