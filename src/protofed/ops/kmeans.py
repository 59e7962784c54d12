"""Several prototypes for one class: means of k-means clusters, or of random subsets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from protofed.core.prototypes import Prototypes, class_means, stack_prototypes

MOST_STEPS = 100
SUBSETS, SHARE, LEAST = 5, 0.8, 5  # of `resampled`, as in FedCSPC's code

Draw = Callable[[int], torch.Generator]  # the random stream of a class


def kmeans_labels(points: Tensor, k: int, draw: torch.Generator) -> Tensor:
    """Cluster numbers [N] of points [N, D] by Lloyd's steps from k of the points, drawn at random.

    Fewer than k points are one cluster. Ties go to the lower number, and a cluster that loses all
    its points keeps its centre, so numbers may be missing.
    """
    if len(points) < k:
        return torch.zeros(len(points), dtype=torch.int64)
    exact = points.detach().double()
    centres = exact[torch.randperm(len(exact), generator=draw)[:k]]
    labels = _nearest(exact, centres)
    for _ in range(MOST_STEPS):
        means = class_means(exact, labels)
        centres = centres.index_copy(0, means.labels, means.vectors)
        moved = _nearest(exact, centres)
        if torch.equal(moved, labels):
            break
        labels = moved
    return labels


def _nearest(points: Tensor, centres: Tensor) -> Tensor:
    distances = torch.cdist(points, centres, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.argmin(1)


def kmeans_prototypes(features: Tensor, labels: Tensor, k: int, draw: Draw) -> Prototypes:
    """The means of each class's k-means clusters, from features [N, D] and classes [N]."""

    def rows(mine: Tensor, label: int) -> Prototypes:
        return class_means(mine, kmeans_labels(mine, k, draw(label)))

    return _by_class(features, labels, rows)


def bootstrap_prototypes(features: Tensor, labels: Tensor, draw: Draw) -> Prototypes:
    """The means of five random subsets of each class, 80 % of it with repetition each.

    A class with fewer than five images has its mean alone.
    """

    def rows(mine: Tensor, label: int) -> Prototypes:
        if len(mine) < LEAST:
            return class_means(mine, torch.zeros(len(mine), dtype=torch.int64))
        size = int(len(mine) * SHARE)
        chosen = torch.randint(len(mine), (SUBSETS * size,), generator=draw(label))
        return class_means(mine[chosen], torch.arange(SUBSETS).repeat_interleave(size))

    return _by_class(features, labels, rows)


def _by_class(
    features: Tensor, labels: Tensor, rows: Callable[[Tensor, int], Prototypes]
) -> Prototypes:
    """The rows that each class's features give, under that class's label."""
    tables = []
    for label in labels.unique().tolist():
        table = rows(features[labels == label], label)
        tables.append(replace(table, labels=torch.full_like(table.labels, label)))
    return stack_prototypes(tables)
