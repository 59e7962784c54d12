"""FedExg: federated learning with model exchange (Mao et al., ISCAS 2020).

Reconstructed from how PGCT's paper describes it: local training, a random exchange of models among
the clients -> send, further training at the other client -> train, averaging -> merge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic import Field
from pydantic.dataclasses import dataclass

from protofed.core.message import Message
from protofed.core.method import Method, MethodInfo, average_models, reply_from_fit
from protofed.core.site import ClientId, RoundContext, Site
from protofed.core.training import Training
from protofed.ops.model_exchange import (
    ExchangeServer,
    PhaseEpochs,
    exchange_models,
    phase_site,
    phase_total,
)


@dataclass(frozen=True)
class FedExg(Method[ExchangeServer, None]):
    """Another client trains each model further before all models are averaged.

    A round has two exchanges: clients train the global model, the server passes each result to a
    random other client, and what that one makes of it is averaged as in FedAvg. Models travel up
    and down twice per round. The server keeps the clients' replies between the two exchanges;
    clients keep nothing.
    """

    info: ClassVar[MethodInfo] = MethodInfo(
        label="FedExg",
        title="FedExg: Federated Learning with Model Exchange",
        venue="ISCAS",
        year=2020,
        family="cross-training",
        caveat="a reconstruction from another paper's description",
    )

    phase_epochs: PhaseEpochs = Field(
        default="half",
        description="a round's epochs: half before the exchange, or all twice",
    )

    def epochs_per_round(self, training: Training) -> int:
        return phase_total(training, self.phase_epochs)

    @property
    def exchanges(self) -> int:
        return 2

    def init_server(self, site: Site) -> ExchangeServer:
        return ExchangeServer(site.initial_model())

    def send(
        self, site: Site, server: ExchangeServer, to: Sequence[ClientId], context: RoundContext
    ) -> dict[ClientId, Message]:
        if context.exchange == 0:
            return super().send(site, server, to, context)
        return exchange_models(site, server.pending_replies, to, context)

    def train(
        self, site: Site, received: Message, state: None, context: RoundContext
    ) -> tuple[Message, None]:
        now = phase_site(site, context, self.phase_epochs)
        return reply_from_fit(now, self.local_fit(now, received, state, context)), state

    def merge(
        self,
        site: Site,
        server: ExchangeServer,
        replies: Mapping[ClientId, Message],
        context: RoundContext,
    ) -> ExchangeServer:
        if context.exchange == 0:
            return ExchangeServer(server.model, dict(replies))
        return ExchangeServer(average_models(replies))
