"""Learning from what others say: two models from each other, many from their mean."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.core.fit import FitResult, fit_model
from protofed.core.model import Model
from protofed.core.site import ArrayDataset, RoundContext, Site
from protofed.ops.losses import logit_kl


def mutual_loss(student: Tensor, peer: Tensor, y: Tensor, weight: float) -> Tensor:
    """Cross entropy + weight KL(peer || student), batch means of logits [B, C]; no grad to peer."""
    return F.cross_entropy(student, y) + weight * logit_kl(peer, student).mean()


def public_logits(site: Site, model: Model, rows: Tensor) -> Tensor:
    """What a model says, logits [n, C], of the public images with these row numbers [n]."""
    shown = ArrayDataset(site.public.index_select(0, rows), rows)
    return torch.cat([site.forward_eval(model, x).logits for x, _ in site.eval_batches(shown)])


def fit_consensus(
    site: Site, model: Model, rows: Tensor, consensus: Tensor, step: RoundContext, epochs: int
) -> FitResult[Model]:
    """The model after an approach to the consensus [n, C] on rows [n]: mean absolute error."""

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for epoch in range(epochs):
            order = torch.randperm(len(rows), generator=site.rng("digest", step.round, epoch))
            for places in site.training.batch_indices(order):
                images = site.public.index_select(0, rows[places])
                yield site.pixels.normalize(images), consensus[places]

    def loss(model: Model, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, targets = batch
        return F.l1_loss(site.forward_train(model, x).logits, targets)

    return fit_model(model, batches(), loss, site.training)
