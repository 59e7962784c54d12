"""GA: generalization adjustment (Zhang et al., CVPR 2023).

The gap between the global model and the client's own on held-out images -> train, fault;
aggregation weights that follow the gaps -> merge, adjust_weights. A client measures the gap of
round t at the start of round t + 1, on the model that it receives.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import (
    Method,
    MethodInfo,
    Payload,
    ServerState,
    TunedFields,
    reply_from_fit,
)
from protofed.core.model import Model
from protofed.core.site import ArrayDataset, ClientId, RoundContext, Site, holdout_size


def split_site(site: Site, share: float) -> tuple[Site, ArrayDataset]:
    """The site without a share of its training images, and these images; the same in every round.

    At least one image is held out, but never the last one; a client with one image holds out none.
    """
    taken = holdout_size(len(site.train), share)
    order = torch.randperm(len(site.train), generator=site.rng("hold out"))
    held, rest = order[:taken].sort().values, order[taken:].sort().values
    return replace(site, train=site.train.take(rest)), site.train.take(held)


LEAST_GAP = 1e-9  # smaller differences between gaps are rounding


@tree.node
class FedGAServer(ServerState):
    """Server state: the model, and each client's weight in the mean, in the order of ids.

    The weights sum to 1.
    """

    shares: Tensor  # [N] float64


@tree.node
class FedGAClient:
    """Client state: the error of its last own model on its held-out images, and its round."""

    round: int
    fault: float


@dataclass(frozen=True)
class FedGA(Method[FedGAServer, FedGAClient | None]):
    """Clients whose own model beats the global one by more get a larger weight in the mean.

    Local training is FedAvg's, on the images that are not held out. Each client measures on the
    others how much worse the global model is than the one it trained last, and sends this gap, one
    number, with its model; the server moves the aggregation weights towards larger gaps and then
    averages. The server keeps a weight per client; a client keeps the error of its last own model.
    """

    info: ClassVar[MethodInfo] = MethodInfo(
        label="GA",
        title="Federated Domain Generalization with Generalization Adjustment",
        venue="CVPR",
        year=2023,
        family="aggregation",
        suits=("unequal sizes",),
    )
    tuned: ClassVar[TunedFields] = {"step": "0.05..0.5"}

    step: float = Field(default=0.2, ge=0, description="d: largest move of a share, times N")
    metric: Literal["acc", "loss"] = Field(default="acc", description="what the gap is one of")
    centred: bool = Field(default=False, description="subtract the mean gap, as the paper does")
    val_share: float = Field(default=0.1, gt=0, lt=1, description="of a client's images, held out")

    @property
    def payload(self) -> Payload:
        return Payload(up=("model", "gap"), optional=("gap",))

    def init_server(self, site: Site) -> FedGAServer:
        clients = len(site.sizes)
        return FedGAServer(
            site.initial_model(), torch.full((clients,), 1 / clients, dtype=torch.float64)
        )

    def train(
        self, site: Site, received: Message, state: FedGAClient | None, context: RoundContext
    ) -> tuple[Message, FedGAClient | None]:
        rest, held = split_site(site, self.val_share)
        reply = reply_from_fit(rest, self.local_fit(rest, received, state, context))
        if not len(held):
            return reply, None
        now = FedGAClient(context.round, self.fault(site, reply.model, held))
        if state is None or state.round != context.round - 1:
            return reply, now
        gap = self.fault(site, received.model, held) - state.fault
        return replace(reply, extras={"gap": torch.tensor(gap, dtype=torch.float64)}), now

    def reply_schema(self, site: Site, received: Message, context: RoundContext) -> Message:
        return replace(
            super().reply_schema(site, received, context), extras={"gap": torch.zeros(()).double()}
        )

    def fault(self, site: Site, model: Model, held: ArrayDataset) -> float:
        """A model's error on held-out images: the share of wrong predictions, or the mean loss."""
        total = 0.0
        for x, y in site.eval_batches(held):
            logits = site.forward_eval(model, x).logits
            wrong, loss = (logits.argmax(1) != y).sum(), F.cross_entropy(logits, y, reduction="sum")
            total += float(wrong if self.metric == "acc" else loss)
        return total / len(held)

    def merge(
        self,
        site: Site,
        server: FedGAServer,
        replies: Mapping[ClientId, Message],
        context: RoundContext,
    ) -> FedGAServer:
        place = {client: number for number, client in enumerate(sorted(site.sizes))}
        sent = {place[client]: reply.extras.get("gap") for client, reply in replies.items()}
        gaps = {number: float(gap) for number, gap in sent.items() if isinstance(gap, Tensor)}
        # These gaps are of round t = round - 1, whose step is d (1 - (t - 1) / T).
        size = self.step * (1 - (context.round - 2) / context.rounds) / len(place)
        shares = adjust_weights(server.shares, gaps, size, self.centred)
        weights = shares[[place[client] for client in replies]].tolist()
        models = (reply.model for reply in replies.values())
        return FedGAServer(
            tree.mean(models, weights if sum(weights) else [1.0] * len(replies)), shares
        )

    def result_warning(self, server: FedGAServer) -> str:
        shares = server.shares
        if self.step and len(shares) > 1 and bool((shares == shares[0]).all()):
            return "GA ended with equal weights: no gap has moved them"
        without = int((shares == 0).sum())
        return f"GA ended with weight 0 for {without} of {len(shares)} clients" if without else ""


def adjust_weights(shares: Tensor, gaps: Mapping[int, float], step: float, centred: bool) -> Tensor:
    """Weights [N] moved by the gaps of some places: the largest by `step`, others in proportion.

    a_i + step * gap_i / max_j |gap_j|, cut to 0..1 and rescaled so that the places with a gap keep
    their sum. Places without a gap keep their weights. `centred` subtracts the mean gap first.
    """
    places, gap = list(gaps), torch.tensor(list(gaps.values()), dtype=torch.float64)
    gap = gap - gap.mean() if centred and places else gap
    if not places or gap.abs().max() < LEAST_GAP:
        return shares
    moved = (shares[places] + step * gap / gap.abs().max()).clamp(0, 1)
    if not moved.sum() > 0:
        return shares
    return shares.index_put((torch.tensor(places),), moved * (shares[places].sum() / moved.sum()))
