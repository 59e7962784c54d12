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
    """||w - w_anchor||^2 / 2 over all weights: a scalar; buffers do not count.

    `anchor` is a fixed model, usually ``received.model``; FedProx adds mu times this term.
    """
    return tree.squared_distance(model.weights, anchor.weights) / 2


def prototype_contrastive(z: Tensor, y: Tensor, protos: Prototypes, tau: float) -> Tensor:
    """Contrastive loss of features [B, D] with prototypes: near their own class, far from others.

    With s_bk = cos(z_b, row_k) / tau, the batch mean of logsumexp_k s_bk - logsumexp_{k: class of
    row k is y_b} s_bk. An image whose class has no row adds nothing but still counts in the mean.
    Stable for any tau, unlike a ratio of sums of exponentials.
    """
    cosines = F.normalize(z) @ F.normalize(protos.vectors.detach()).T / tau  # [B, K]
    own = y[:, None] == protos.labels
    known = own.any(1)
    own_rows = cosines.masked_fill(~own, -torch.inf)[known].logsumexp(1)
    return (cosines[known].logsumexp(1) - own_rows).sum() / len(y)


def prototype_mse(
    z: Tensor, y: Tensor, protos: Prototypes, classes: int, reduction: Reduction = "mean"
) -> Tensor:
    """Squared distance of features [B, D] to the mean row of their class, as a batch mean.

    sum_b ||z_b - centre_{y_b}||^2 / B, divided by D as well if `reduction` is "mean". An image
    whose class has no row adds nothing but still counts in the mean.
    """
    centres, present = protos.class_matrix(classes)
    squares = (z - centres[y].detach()).square() * present[y][:, None]
    return squares.sum() / (len(y) * (z.shape[1] if reduction == "mean" else 1))


def logit_kl(teacher: Tensor, student: Tensor) -> Tensor:
    """KL(teacher || student) for each row of logits [B, C]: [B].

    sum_c p_c (log p_c - log q_c), where p is the softmax of the teacher's row and q of the
    student's. No gradient reaches the teacher.
    """
    soft = teacher.detach().log_softmax(1)
    return F.kl_div(student.log_softmax(1), soft, reduction="none", log_target=True).sum(1)


def balanced_prototype_mse(
    z: Tensor, y: Tensor, protos: Prototypes, classes: int, reduction: Reduction = "mean"
) -> Tensor:
    """As `prototype_mse`, but every class in the batch that has a row counts the same.

    The mean over these classes of the mean over their images of ||z_b - centre_{y_b}||^2 (divided
    by D if `reduction` is "mean"), so frequent classes do not dominate.
    """
    centres, present = protos.class_matrix(classes)
    squares = (z - centres[y].detach()).square()
    distances = squares.mean(1) if reduction == "mean" else squares.sum(1)
    known = present[y]
    counts = torch.bincount(y[known], minlength=classes)
    shares = known / (counts[y].clamp(min=1) * (counts > 0).sum().clamp(min=1))
    return (distances * shares).sum()


def mutual_loss(task: Tensor, student: Tensor, peer: Tensor, weight: float) -> Tensor:
    """Deep mutual learning of one model: its task loss + weight * KL(peer || student), batch means.

    `student` and `peer` are logits [B, C], and `task` is the student's loss on its own. No gradient
    reaches the peer; train it with the roles swapped.
    """
    return task + weight * logit_kl(peer, student).mean()


def public_logits(site: Site, model: Model, rows: Tensor) -> Tensor:
    """A model's logits [n, C] on the public images with the row numbers `rows` [n].

    In evaluation mode and without augmentation.
    """
    shown = ArrayDataset(site.public.index_select(0, rows), rows)
    return torch.cat([site.forward_eval(model, x).logits for x, _ in site.eval_batches(shown)])


def fit_consensus(
    site: Site, model: Model, rows: Tensor, consensus: Tensor, context: RoundContext, epochs: int
) -> FitResult[Model]:
    """Train a model towards the consensus: logits [n, C] of the public images with row numbers [n].

    The loss is the mean absolute error between the model's logits and the consensus; images are
    shuffled but not augmented. `epochs` may be 0, which leaves the model unchanged.
    """

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
