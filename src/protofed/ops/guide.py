"""Prototypes that travel with a model, to hold it to what it knew where it comes from."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.core.model import Model
from protofed.core.prototypes import Prototypes, class_means, prototype_template
from protofed.core.site import RoundContext, Site, TrainingBatch
from protofed.ops.kmeans import SUBSETS, bootstrap_prototypes, kmeans_prototypes
from protofed.ops.prototypes import site_features

GUIDE = "prototypes"  # an extra: a base method may have a use for `protos`
Mode = Literal["weighted", "uniform", "multi", "bootstrap"]
Scope = Literal["own", "all"]


def pgct_prototypes(
    mode: Mode, clusters: int, site: Site, model: Model, step: RoundContext
) -> Prototypes:
    """A client's prototypes, by a look at all its images.

    weighted: cluster means weighted by size, which is the class mean whatever the clusters;
    uniform: the plain mean of the k-means clusters' means; multi: all of these means;
    bootstrap: means of random subsets.
    """
    z, labels = site_features(site, model), site.train.labels
    if mode == "weighted":
        return class_means(z, labels)

    def draw(label: int) -> torch.Generator:
        return site.rng("prototypes", step.round, label)

    if mode == "bootstrap":
        return bootstrap_prototypes(z, labels, draw)
    table = kmeans_prototypes(z, labels, clusters, draw)
    if mode == "multi":
        return table
    examples = labels.unique(return_counts=True)[1]  # a site's policy asks for these, not clusters
    return replace(table.uniform_mean(), counts=examples)


def pgct_prototype_template(mode: Mode, clusters: int, site: Site) -> Prototypes:
    """The shape of what `prototypes` makes where a client has every class and every cluster."""
    each = {"multi": clusters, "bootstrap": SUBSETS}.get(mode, 1)
    return prototype_template(site.classes, site.net.features, each)


def repeat_class_rows(
    y: Tensor, protos: Prototypes, classes: int, scope: Scope, number: int
) -> Tensor:
    """`number` copies of the mean row of each image's class [B], or of all rows: [B, N, D]."""
    if scope == "all":
        rows = protos.vectors.expand(len(y), -1, -1)
    else:
        centres, _ = protos.class_matrix(classes)
        rows = centres[y][:, None]
    return rows.repeat_interleave(number, 1)


def add_noise(near: Tensor, eps: float, site: Site, batch: TrainingBatch) -> Tensor:
    """Vectors with normal noise of size eps, drawn anew for every batch (Eq. 4)."""
    draw = site.rng("augment", batch.context.round, batch.context.exchange, batch.number)
    return near + eps * torch.randn(near.shape, generator=draw).to(near.device)


def fuse_features(z: Tensor, near: Tensor) -> Tensor:
    """Features [B, D] plus the mean of vectors [B, N, D] by weights softmax(z.vector): Eq. 5-6."""
    weights = torch.einsum("bd,bnd->bn", z, near).softmax(1)
    return z + torch.einsum("bn,bnd->bd", weights, near)


def augmented_loss(model: Model, z: Tensor, y: Tensor, near: Tensor, protos: Prototypes) -> Tensor:
    """Cross entropy of a model's head on features [B, D] fused with `near` [B, N, D], batch mean.

    An image whose class has no prototype adds nothing but still counts in the mean.
    """
    known = torch.isin(y, protos.labels)
    weight, bias = model.weights["head.weight"], model.weights["head.bias"]
    logits = F.linear(fuse_features(z[known], near[known]), weight, bias)
    return F.cross_entropy(logits, y[known], reduction="sum") / len(y)
