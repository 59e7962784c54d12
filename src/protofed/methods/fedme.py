"""FedMe, simplified: models exchanged and trained by mutual learning (Matsuda et al., SDM 2022).

Half a round of cross entropy -> train (leg 0); the exchange -> send; deep mutual learning of the
own and the exchanged model -> train (leg 1); the mean of each model's trained copies, then of all
models -> merge. For PGCT's comparison: no clusters of clients, no change of architectures.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, cast

import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.core import tree
from protofed.core.fit import fit
from protofed.core.message import Message
from protofed.core.method import About, Method, Travels
from protofed.core.model import Model
from protofed.core.site import Batch, ClientId, Site, Step
from protofed.core.training import Training
from protofed.ops.exchange import Exchanging, PhaseEpochs, phase, phase_total
from protofed.ops.mutual import mutual_loss
from protofed.ops.pairing import derangement

OTHER = "other"  # the extra in which a partner's model comes back


@dataclass(frozen=True)
class FedMe(Method[Exchanging, Model]):
    """Each client's own and another client's model learn from its images and each other."""

    about: ClassVar[About] = About(
        label="FedMe",
        title="FedMe: Federated Learning via Model Exchange",
        venue="SDM",
        year=2022,
        link="arXiv:2110.07868",
        family="cross-training",
        star="simplified: no clustering of clients, no replacement of architectures",
    )

    mutual: float = Field(
        default=1.0, ge=0, description="weight of the divergence from the other model"
    )
    phase_epochs: PhaseEpochs = Field(
        default="half", description="a round's epochs: half before the exchange, or all twice"
    )

    def epochs_per_round(self, training: Training) -> int:
        return phase_total(training, self.phase_epochs)

    @property
    def legs(self) -> int:
        return 2

    @property
    def travels(self) -> Travels:
        return Travels(up=("model", OTHER), down=("model",))

    def init_server(self, site: Site) -> Exchanging:
        return Exchanging(site.fresh())

    def init_client(self, site: Site) -> Model:
        return Model()  # holds a model only between the legs of a round

    def send(
        self, site: Site, server: Exchanging, to: Sequence[ClientId], step: Step
    ) -> dict[ClientId, Message]:
        if step.leg == 0:
            return super().send(site, server, to, step)
        partner = partners(site, server.box, step)
        return {client: Message(server.box[partner[client]].model) for client in to}

    def train(self, site: Site, inbox: Message, state: Model, step: Step) -> tuple[Message, Model]:
        now = phase(site, step, self.phase_epochs)
        if step.leg == 0:
            reply, _ = super().train(now, inbox, state, step)
            return reply, reply.model

        def loss(pair: dict[str, Model], batch: Batch) -> Tensor:
            own, other = (site.run(pair[name], batch.x).logits for name in ("own", OTHER))
            if not self.mutual:
                return F.cross_entropy(own, batch.y) + F.cross_entropy(other, batch.y)
            mine = mutual_loss(own, other, batch.y, self.mutual)
            return mine + mutual_loss(other, own, batch.y, self.mutual)

        pair = {"own": state, OTHER: inbox.model}
        fitted = fit(pair, now.batches(step), loss, site.training)
        metrics = {"loss": fitted.loss / 2}  # of a model, so that both legs can be compared
        trained, extras = fitted.thing["own"], {OTHER: fitted.thing[OTHER]}
        return Message(trained, extras=extras, size=len(site.train), metrics=metrics), Model()

    def expects(self, site: Site, inbox: Message, step: Step) -> Message:
        return Message(inbox.model, extras={OTHER: inbox.model} if step.leg else {})

    def merge(
        self, site: Site, server: Exchanging, replies: Mapping[ClientId, Message], step: Step
    ) -> Exchanging:
        if step.leg == 0:
            return Exchanging(server.model, dict(replies))
        partner = partners(site, server.box, step)
        copies: dict[ClientId, list[Model]] = {owner: [] for owner in server.box}
        for client, reply in replies.items():
            copies[client].append(reply.model)
            copies[partner[client]].append(cast(Model, reply.extras[OTHER]))
        # Where replies were lost, a model has one copy, or none and is left out.
        models = {o: tree.mean(m, [1.0] * len(m)) for o, m in copies.items() if m}
        sizes = [server.box[owner].size for owner in models]
        return Exchanging(tree.mean(list(models.values()), sizes))


def partners(site: Site, clients: Iterable[ClientId], step: Step) -> dict[ClientId, ClientId]:
    """Whose model each client gets in this round; the same draw in `send` and `merge`."""
    return derangement(sorted(clients), site.rng("exchange", step.round))
