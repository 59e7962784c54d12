"""FedProto: prototypes across clients (Tan et al., AAAI 2022).

Eq. 3 class means -> train; Eq. 6 mean over the clients that own the class -> merge; Eq. 7 the pull
to the global prototype -> loss (mean over batch and dimensions, as in its code).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.core.message import Message
from protofed.core.method import About, Method, Need, Travels, average
from protofed.core.model import Model
from protofed.core.site import Batch, ClientId, Site, Step
from protofed.ops.losses import pull
from protofed.ops.prototypes import Collect, Prototyped, nearest, received, with_prototypes


@dataclass(frozen=True)
class FedProto(Method[Prototyped, Model]):
    """A pull of each feature to the mean prototype of its class over all clients."""

    about: ClassVar[About] = About(
        label="FedProto",
        title="FedProto: Federated Prototype Learning across Heterogeneous Clients",
        venue="AAAI",
        year=2022,
        link="arXiv:2105.00243",
        family="prototype",
    )

    lam: float = Field(default=1.0, ge=0, description="lambda: weight of the pull")
    param_avg: bool = Field(
        default=True, description="average models too; false: only prototypes, any nets"
    )
    collect: Collect = Field(
        default="post", description="prototypes after training, or online in the last epoch"
    )

    @property
    def personal(self) -> bool:
        return not self.param_avg

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("equal nets",) if self.param_avg else ("equal features",)

    @property
    def travels(self) -> Travels:
        parts = ("model", "protos") if self.param_avg else ("protos",)
        return Travels(up=parts, down=parts)

    def init_server(self, site: Site) -> Prototyped:
        return Prototyped(site.fresh() if self.param_avg else Model())

    def init_client(self, site: Site) -> Model:
        return Model() if self.param_avg else site.fresh()

    def publish(self, server: Prototyped) -> Message:
        return Message(model=server.model, protos=server.protos)

    def loss(self, site: Site, inbox: Message, state: Model, model: Model, batch: Batch) -> Tensor:
        out, protos = site.run(model, batch.x), inbox.protos
        total = F.cross_entropy(out.logits, batch.y)
        if self.lam and protos is not None:
            total = total + self.lam * pull(out.z, batch.y, protos, site.classes)
        return total

    def train(self, site: Site, inbox: Message, state: Model, step: Step) -> tuple[Message, Model]:
        train, start = super().train, replace(inbox, model=inbox.model | state)
        reply, _ = with_prototypes(self.collect, site, lambda s: train(s, start, state, step))
        return (reply, state) if self.param_avg else (replace(reply, model=Model()), reply.model)

    def merge(
        self, site: Site, server: Prototyped, replies: Mapping[ClientId, Message], step: Step
    ) -> Prototyped:
        model = average(replies) if self.param_avg else server.model
        return Prototyped(model, received(replies).uniform_mean())

    def predict(self, site: Site, inbox: Message, state: Model, x: Tensor) -> Tensor:
        return site.look(inbox.model | state, x).logits

    def opinions(self, site: Site, inbox: Message, state: Model, x: Tensor) -> dict[str, Tensor]:
        return nearest(site, inbox.model | state, inbox.protos, x)
