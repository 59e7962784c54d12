"""Loss terms that several papers add to cross entropy; prototypes are constants in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.core import tree
from protofed.core.model import Model
from protofed.core.prototypes import Prototypes
from protofed.core.site import ArrayDataset, RoundContext, Site
from protofed.core.training import FitResult, fit_model

Reduction = Literal["mean", "sum"]  # over the dimensions of a feature


def proximal_term(model: Model, anchor: Model) -> Tensor:
    """Half the squared distance of the weights to a fixed model's; buffers do not count."""
    return tree.squared_distance(model.weights, anchor.weights) / 2


def prototype_contrastive(z: Tensor, y: Tensor, protos: Prototypes, tau: float) -> Tensor:
    """How much nearer (by cosine / tau) features [B, D] are to their own class's rows than to all.

    The mean over the batch of logsumexp(all rows) - logsumexp(own rows). An image whose class has
    no row adds nothing but still counts in the mean. Stable for any tau, unlike sums of exp.
    """
    likeness = F.normalize(z) @ F.normalize(protos.vectors.detach()).T / tau  # [B, K]
    own = y[:, None] == protos.labels
    known = own.any(1)
    ours = likeness.masked_fill(~own, -torch.inf)[known].logsumexp(1)
    return (likeness[known].logsumexp(1) - ours).sum() / len(y)


def prototype_mse(
    z: Tensor, y: Tensor, protos: Prototypes, classes: int, reduction: Reduction = "mean"
) -> Tensor:
    """The squared distance of features [B, D] to the mean of their class's rows, batch mean.

    An image whose class has no row adds nothing but still counts in the mean.
    """
    centres, present = protos.class_matrix(classes)
    squares = (z - centres[y].detach()).square() * present[y][:, None]
    return squares.sum() / (len(y) * (z.shape[1] if reduction == "mean" else 1))


def logit_kl(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(teacher || student) of each row, from logits [B, C] each; the teacher is a constant."""
    soft = teacher.detach().log_softmax(1)
    return F.kl_div(student.log_softmax(1), soft, reduction="none", log_target=True).sum(1)


def balanced_prototype_mse(
    z: Tensor, y: Tensor, protos: Prototypes, classes: int, reduction: Reduction = "mean"
) -> Tensor:
    """As `pull`, but every class that is in the batch and has a row counts the same."""
    centres, present = protos.class_matrix(classes)
    squares = (z - centres[y].detach()).square()
    distances = squares.mean(1) if reduction == "mean" else squares.sum(1)
    known = present[y]
    counts = torch.bincount(y[known], minlength=classes)
    shares = known / (counts[y].clamp(min=1) * (counts > 0).sum().clamp(min=1))
    return (distances * shares).sum()


def mutual_loss(student: Tensor, peer: Tensor, y: Tensor, weight: float) -> Tensor:
    """Cross entropy + weight KL(peer || student), batch means of logits [B, C]; no grad to peer."""
    return F.cross_entropy(student, y) + weight * logit_kl(peer, student).mean()


def public_logits(site: Site, model: Model, rows: Tensor) -> Tensor:
    """What a model says, logits [n, C], of the public images with these row numbers [n]."""
    shown = ArrayDataset(site.public.index_select(0, rows), rows)
    return torch.cat([site.forward_eval(model, x).logits for x, _ in site.eval_batches(shown)])


def fit_consensus(
    site: Site, model: Model, rows: Tensor, consensus: Tensor, context: RoundContext, epochs: int
) -> FitResult[Model]:
    """The model after an approach to the consensus [n, C] on rows [n]: mean absolute error."""

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for epoch in range(epochs):
            order = torch.randperm(len(rows), generator=site.rng("digest", context.round, epoch))
            for places in site.training.batch_indices(order):
                images = site.public.index_select(0, rows[places])
                yield site.pixels.normalize(images), consensus[places]

    def loss(model: Model, batch: tuple[Tensor, Tensor]) -> Tensor:
        x, targets = batch
        return F.l1_loss(site.forward_train(model, x).logits, targets)

    return fit_model(model, batches(), loss, site.training)
