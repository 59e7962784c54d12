"""FedExg: federated learning with model exchange (Mao et al., ISCAS 2020).

Reconstructed from how PGCT's paper describes it: local training, a random exchange of models among
the clients -> send, training on at the host -> train, averaging -> merge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pydantic.dataclasses import dataclass

from protofed.core.message import Message
from protofed.core.method import About, Method, average
from protofed.core.site import ClientId, Site, Step
from protofed.core.training import Training
from protofed.ops.exchange import Exchanging, PhaseEpochs, passed_on, phase, phase_total


@dataclass(frozen=True)
class FedExg(Method[Exchanging, None]):
    """Each client's model is trained on at another client before all are averaged."""

    about: ClassVar[About] = About(
        label="FedExg",
        title="FedExg: Federated Learning with Model Exchange",
        venue="ISCAS",
        year=2020,
        family="cross-training",
        star="a reconstruction from another paper's description",
    )

    phase_epochs: PhaseEpochs = "half"

    def epochs_per_round(self, training: Training) -> int:
        return phase_total(training, self.phase_epochs)

    @property
    def legs(self) -> int:
        return 2

    def init_server(self, site: Site) -> Exchanging:
        return Exchanging(site.fresh())

    def send(
        self, site: Site, server: Exchanging, to: Sequence[ClientId], step: Step
    ) -> dict[ClientId, Message]:
        if step.leg == 0:
            return super().send(site, server, to, step)
        return passed_on(site, server.box, to, step)

    def train(self, site: Site, inbox: Message, state: None, step: Step) -> tuple[Message, None]:
        return super().train(phase(site, step, self.phase_epochs), inbox, state, step)

    def merge(
        self, site: Site, server: Exchanging, replies: Mapping[ClientId, Message], step: Step
    ) -> Exchanging:
        if step.leg == 0:
            return Exchanging(server.model, dict(replies))
        return Exchanging(average(replies))
