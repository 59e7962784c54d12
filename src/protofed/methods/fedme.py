"""FedMe, simplified: models exchanged and trained by mutual learning (Matsuda et al., SDM 2022).

Half a round of cross entropy -> train (exchange 0); the exchange -> send; deep mutual learning of
the own and the exchanged model -> train (exchange 1); the mean of each model's trained copies, then
of all models -> merge. For PGCT's comparison: no clusters of clients, no change of architectures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, cast

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import Method, MethodInfo, Payload, TunedFields, reply_from_fit
from protofed.core.model import Model
from protofed.core.site import ClientId, RoundContext, Site, TrainingBatch
from protofed.core.training import Training, fit_model
from protofed.ops.losses import mutual_loss
from protofed.ops.model_exchange import (
    ExchangeServer,
    PhaseEpochs,
    phase_site,
    phase_total,
    random_derangement,
)

OTHER = "other"  # the extra that holds the partner's model


@dataclass(frozen=True)
class FedMe(Method[ExchangeServer, Model]):
    """A client trains its own model and another client's together; each learns from the other.

    A round has two exchanges. First clients train as in FedAvg; then each gets another client's
    model and trains both by cross entropy + mutual * KL from the other. Both models travel up; the
    server averages the two copies of each model, then all models by number of examples. A client
    keeps its own model between the exchanges, the server the replies of the first.
    """

    info: ClassVar[MethodInfo] = MethodInfo(
        label="FedMe",
        title="FedMe: Federated Learning via Model Exchange",
        venue="SDM",
        year=2022,
        link="arXiv:2110.07868",
        family="cross-training",
        caveat="simplified: no clustering of clients, no replacement of architectures",
    )
    tuned: ClassVar[TunedFields] = {"mutual": "log:0.1..10"}

    mutual: float = Field(
        default=1.0, ge=0, description="weight of the divergence from the other model"
    )
    phase_epochs: PhaseEpochs = Field(
        default="half", description="a round's epochs: half before the exchange, or all twice"
    )

    def epochs_per_round(self, training: Training) -> int:
        return phase_total(training, self.phase_epochs)

    @property
    def exchanges(self) -> int:
        return 2

    @property
    def payload(self) -> Payload:
        return Payload(up=("model", OTHER), down=("model",))

    def init_server(self, site: Site) -> ExchangeServer:
        return ExchangeServer(site.initial_model())

    def init_client(self, site: Site) -> Model:
        return Model()  # holds a model only between the exchanges of a round

    def send(
        self, site: Site, server: ExchangeServer, to: Sequence[ClientId], context: RoundContext
    ) -> dict[ClientId, Message]:
        if context.exchange == 0:
            return super().send(site, server, to, context)
        partner = assign_partners(site, server.pending_replies, context)
        return {client: Message(server.pending_replies[partner[client]].model) for client in to}

    def train(
        self, site: Site, received: Message, state: Model, context: RoundContext
    ) -> tuple[Message, Model]:
        now = phase_site(site, context, self.phase_epochs)
        if context.exchange == 0:
            fitted = self.local_fit(now, received, state, context)
            return reply_from_fit(now, fitted), fitted.trained

        def loss(pair: dict[str, Model], batch: TrainingBatch) -> Tensor:
            own, other = (site.forward_train(pair[name], batch.x).logits for name in ("own", OTHER))
            own_task, other_task = site.task_loss(own, batch.y), site.task_loss(other, batch.y)
            if not self.mutual:
                return own_task + other_task
            own_loss = mutual_loss(own_task, own, other, self.mutual)
            return own_loss + mutual_loss(other_task, other, own, self.mutual)

        pair = {"own": state, OTHER: received.model}
        both = fit_model(pair, now.batches(context), loss, site.training)
        metrics = {"loss": both.loss / 2}  # per model, so both exchanges can be compared
        trained, extras = both.trained["own"], {OTHER: both.trained[OTHER]}
        return Message(trained, extras=extras, size=len(site.train), metrics=metrics), Model()

    def reply_schema(self, site: Site, received: Message, context: RoundContext) -> Message:
        return Message(received.model, extras={OTHER: received.model} if context.exchange else {})

    def merge(
        self,
        site: Site,
        server: ExchangeServer,
        replies: Mapping[ClientId, Message],
        context: RoundContext,
    ) -> ExchangeServer:
        if context.exchange == 0:
            return ExchangeServer(server.model, dict(replies))
        partner = assign_partners(site, server.pending_replies, context)
        copies: dict[ClientId, list[Model]] = {owner: [] for owner in server.pending_replies}
        for client, reply in replies.items():
            copies[client].append(reply.model)
            copies[partner[client]].append(cast(Model, reply.extras[OTHER]))
        # If replies were lost, a model has one copy, or none and is left out.
        models = {o: tree.mean(m, [1.0] * len(m)) for o, m in copies.items() if m}
        sizes = [server.pending_replies[owner].size for owner in models]
        return ExchangeServer(tree.mean(list(models.values()), sizes))


def assign_partners(
    site: Site, clients: Iterable[ClientId], context: RoundContext
) -> dict[ClientId, ClientId]:
    """Whose model each client gets in this round; the same draw in `send` and `merge`.

    `clients` are those with a reply in the first exchange.
    """
    return random_derangement(sorted(clients), site.rng("exchange", context.round))
