"""FedMD: federated learning by distillation on public images (Li and Wang, 2019).

Algorithm 1: draw of public images and their class scores -> send, train (exchange 0); consensus,
the mean score -> merge; digest, training towards the consensus, and revisit, training on private
images -> train (exchange 1). Its transfer learning on a labelled public set is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import ClassVar, cast

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import Method, MethodInfo, Need, Payload, ServerState
from protofed.core.model import Model
from protofed.core.site import ClientId, RoundContext, Site
from protofed.ops.losses import fit_consensus, public_logits


@tree.node
class FedMDServer(ServerState):
    """Server state: no model; between the exchanges the consensus.

    The consensus is the mean of the clients' logits [n, C] on this round's public images.
    """

    consensus: Tensor = field(default_factory=lambda: torch.zeros(0))  # empty between rounds


@dataclass(frozen=True)
class FedMD(Method[FedMDServer, Model]):
    """Models stay at their clients and agree on the mean of their logits on public images.

    No model is averaged. In the first exchange clients send their logits on a random batch of
    public images; in the second they receive the mean, train towards it, and then train on their
    own images. Row numbers and the consensus travel down, logits up. A client keeps its model,
    which is what is scored (`personal`), so nets may differ. The server keeps the consensus between
    the two exchanges.
    """

    info: ClassVar[MethodInfo] = MethodInfo(
        label="FedMD",
        title="FedMD: Heterogenous Federated Learning via Model Distillation",
        venue="NeurIPS workshop",
        year=2019,
        link="arXiv:1910.03581",
        family="distillation",
        caveat="no training on labelled public images before the first round",
    )

    public_batch: int = Field(
        default=5000, ge=1, description="public images per round; all if there are fewer"
    )
    digest_epochs: int = Field(
        default=1, ge=0, description="passes over them towards the consensus; 0: training alone"
    )

    @property
    def exchanges(self) -> int:
        return 2

    @property
    def personal(self) -> bool:
        return True

    @property
    def needs(self) -> tuple[Need, ...]:
        return ("public images",)

    @property
    def payload(self) -> Payload:
        return Payload(up=("logits",), down=("rows", "consensus"))

    def init_server(self, site: Site) -> FedMDServer:
        return FedMDServer(Model())

    def init_client(self, site: Site) -> Model:
        return site.initial_model()

    def send(
        self, site: Site, server: FedMDServer, to: Sequence[ClientId], context: RoundContext
    ) -> dict[ClientId, Message]:
        order = torch.randperm(len(site.public), generator=site.rng("public", context.round))
        rows = order[: self.public_batch]
        if context.exchange == 0:
            return dict.fromkeys(to, Message(extras={"rows": rows}))
        used = len(rows) if len(to) > 1 else 0  # a single client agrees with itself
        extras = {"rows": rows[:used], "consensus": server.consensus[:used]}
        return dict.fromkeys(to, Message(extras=extras))

    def train(
        self, site: Site, received: Message, state: Model, context: RoundContext
    ) -> tuple[Message, Model]:
        rows = cast(Tensor, received.extras["rows"])
        if context.exchange == 0:
            logits = public_logits(site, state, rows)
            return Message(extras={"logits": logits}, size=len(site.train)), state
        consensus = cast(Tensor, received.extras["consensus"])
        digested = fit_consensus(site, state, rows, consensus, context, self.digest_epochs)
        # The round's only training on private images: the same batches as with one exchange.
        first = context._replace(exchange=0)
        fitted = self.local_fit(site, received, state, first, start=digested.trained)
        metrics = {"loss": fitted.loss, "digest": digested.loss}
        return Message(size=len(site.train), metrics=metrics), fitted.trained

    def reply_schema(self, site: Site, received: Message, context: RoundContext) -> Message:
        if context.exchange == 1:
            return Message()
        rows = cast(Tensor, received.extras["rows"])
        return Message(extras={"logits": torch.zeros(len(rows), site.classes)})

    def merge(
        self,
        site: Site,
        server: FedMDServer,
        replies: Mapping[ClientId, Message],
        context: RoundContext,
    ) -> FedMDServer:
        if context.exchange == 1:
            return FedMDServer(Model())
        logits = [cast(Tensor, reply.extras["logits"]) for reply in replies.values()]
        return FedMDServer(Model(), tree.mean(logits, [1.0] * len(logits)))

    def inference_model(self, site: Site, received: Message, state: Model) -> Model:
        return state
