"""Learning from what others say: two models from each other, many from their mean."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.core.fit import Fitted, fit
from protofed.core.model import Model
from protofed.core.site import Dataset, Site, Step
from protofed.ops.losses import divergence


def mutual_loss(student: Tensor, peer: Tensor, y: Tensor, weight: float) -> Tensor:
    """Cross entropy + weight KL(peer || student), batch means of logits [B, C]; no grad to peer."""
    return F.cross_entropy(student, y) + weight * divergence(peer, student).mean()


def public_logits(site: Site, model: Model, rows: Tensor) -> Tensor:
    """What a model says, logits [n, C], of the public images with these row numbers [n]."""
    shown = Dataset(site.public.index_select(0, rows), rows)
    return torch.cat([site.look(model, x).logits for x, _ in site.scan(shown)])


def digest(
    site: Site, model: Model, rows: Tensor, consensus: Tensor, step: Step, epochs: int
) -> Fitted[Model]:
    """The model after an approach to the consensus [n, C] on rows [n]: mean absolute error."""

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for epoch in range(epochs):
            order = torch.randperm(len(rows), generator=site.rng("digest", step.round, epoch))
            for places in site.training.cut(order):
                images = site.public.index_select(0, rows[places])
                yield site.pixels.test(images), consensus[places]

    def loss(model: Model, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, targets = batch
        return F.l1_loss(site.run(model, x).logits, targets)

    return fit(model, batches(), loss, site.training)
