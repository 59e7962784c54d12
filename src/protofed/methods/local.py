"""Local (also SOLO): every client trains alone; the floor that a federation must beat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.core.message import Message
from protofed.core.method import About, Global, Method, Need, Travels
from protofed.core.model import Model
from protofed.core.site import ClientId, Site, Step


@dataclass(frozen=True)
class Local(Method[Global, Model]):
    """No communication: each client keeps its own model from round to round."""

    about: ClassVar[About] = About(
        label="Local",
        title="Training at each site alone",
    )

    @property
    def personal(self) -> bool:
        return True

    @property
    def needs(self) -> tuple[Need, ...]:
        return ()

    @property
    def travels(self) -> Travels:
        return Travels(up=(), down=())

    def init_server(self, site: Site) -> Global:
        return Global(Model())

    def init_client(self, site: Site) -> Model:
        return site.fresh()

    def train(self, site: Site, inbox: Message, state: Model, step: Step) -> tuple[Message, Model]:
        reply, _ = super().train(site, replace(inbox, model=state), state, step)
        return replace(reply, model=Model()), reply.model

    def merge(
        self, site: Site, server: Global, replies: Mapping[ClientId, Message], step: Step
    ) -> Global:
        return server

    def predict(self, site: Site, inbox: Message, state: Model, x: Tensor) -> Tensor:
        return site.look(state, x).logits
