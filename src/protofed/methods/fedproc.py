"""FedProc: prototypical contrast on non-IID data (Mu et al., arXiv 2021).

Class means of all clients' samples -> merge; contrast of a feature with the class centres (cosine,
no temperature) and the shift from contrast to cross entropy over the rounds -> loss. In round 0,
before there are centres, cross entropy stands alone, as in its code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import About, Method, Travels, average
from protofed.core.model import Model
from protofed.core.prototypes import Prototypes, stack
from protofed.core.site import Batch, ClientId, Site, Step
from protofed.ops.losses import contrast
from protofed.ops.prototypes import Collect, Prototyped, received, with_prototypes


@dataclass(frozen=True)
class FedProc(Method[Prototyped, None]):
    """From contrast with the class centres in early rounds to cross entropy in late ones."""

    about: ClassVar[About] = About(
        label="FedProc",
        title="FedProc: Prototypical Contrastive Federated Learning on Non-IID Data",
        venue="arXiv",
        year=2021,
        link="arXiv:2109.12273",
        family="prototype",
    )

    style: Literal["official", "rethink"] = Field(
        default="official",
        description="rethink: as the code behind FPL's tables; its round 0 has no loss at all",
    )
    collect: Collect = Field(
        default="post", description="prototypes after training, or online in the last epoch"
    )

    @property
    def travels(self) -> Travels:
        return Travels(up=("model", "protos"), down=("model", "protos"))

    @property
    def weighs(self) -> bool:
        return self.style == "official"

    def init_server(self, site: Site) -> Prototyped:
        return Prototyped(site.fresh())

    def publish(self, server: Prototyped) -> Message:
        return Message(model=server.model, protos=server.protos)

    def loss(self, site: Site, inbox: Message, state: None, model: Model, batch: Batch) -> Tensor:
        out, protos, share = site.run(model, batch.x), inbox.protos, self.share(batch.step)
        task = F.cross_entropy(out.logits, batch.y)
        if protos is None:
            return task if self.style == "official" else share * task
        if share == 1:
            return task
        return share * task + (1 - share) * contrast(out.z, batch.y, protos, tau=1)

    def share(self, step: Step) -> float:
        """How much cross entropy counts in a round, from 0 to 1; contrast has the rest."""
        if self.style == "official":
            return step.round / step.rounds
        return step.round / max(step.rounds - 1, 1)

    def train(self, site: Site, inbox: Message, state: None, step: Step) -> tuple[Message, None]:
        train = super().train
        return with_prototypes(self.collect, site, lambda s: train(s, inbox, state, step))

    def merge(
        self, site: Site, server: Prototyped, replies: Mapping[ClientId, Message], step: Step
    ) -> Prototyped:
        table = received(replies)
        centres = table.weighted_mean() if self.style == "official" else table.uniform_mean()
        return Prototyped(average(replies), with_absent(centres, server.protos))


def with_absent(centres: Prototypes, old: Prototypes | None) -> Prototypes:
    """The centres, and the old ones of classes that nobody had this time."""
    if old is None:
        return centres
    absent = ~torch.isin(old.labels, centres.labels)
    return stack([centres, tree.map(lambda part: part[absent], old)])
