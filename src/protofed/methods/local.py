"""Local (also SOLO): each client trains alone; the baseline that a federation must beat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from pydantic.dataclasses import dataclass

from protofed.core.message import Message
from protofed.core.method import Method, MethodInfo, Need, Payload, ServerState, reply_from_fit
from protofed.core.model import Model
from protofed.core.site import ClientId, RoundContext, Site


@dataclass(frozen=True)
class Local(Method[ServerState, Model]):
    """No communication: each client trains and keeps its own model from round to round.

    Nothing travels and the server keeps nothing, so nets may differ. Each client is scored with its
    own model on every domain (`personal`).
    """

    info: ClassVar[MethodInfo] = MethodInfo(
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
    def payload(self) -> Payload:
        return Payload(up=(), down=())

    def init_server(self, site: Site) -> ServerState:
        return ServerState(Model())

    def init_client(self, site: Site) -> Model:
        return site.initial_model()

    def train(
        self, site: Site, received: Message, state: Model, context: RoundContext
    ) -> tuple[Message, Model]:
        fitted = self.local_fit(site, received, state, context, start=state)
        return replace(reply_from_fit(site, fitted), model=Model()), fitted.trained

    def merge(
        self,
        site: Site,
        server: ServerState,
        replies: Mapping[ClientId, Message],
        context: RoundContext,
    ) -> ServerState:
        return server

    def inference_model(self, site: Site, received: Message, state: Model) -> Model:
        return state
