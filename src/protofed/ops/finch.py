"""FINCH: clustering without a given number of clusters (Sarfraz et al., CVPR 2019)."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Vectors = NDArray[np.float64]
Labels = NDArray[np.int64]
DECIMALS = 12  # of a cosine: without rounding, noise rather than the index would decide ties


def finch_clusters(points: Tensor) -> list[Tensor]:
    """Partitions of points [N, D] by cosine, fine to coarse; each is [N] cluster numbers from 0.

    Every point is linked with its nearest neighbour (ties: the lowest index); connected points form
    a cluster. The same is repeated on the clusters' means until a single cluster would remain. The
    first partition is always returned; one, two or three points form one cluster.
    """
    vectors = points.detach().double().numpy()
    partitions = [_link(vectors)]
    # Every cluster is linked, so each step at least halves their number and the loop ends.
    while (merged := _link(_means(vectors, partitions[-1]))).any():
        partitions.append(merged[partitions[-1]])
    return [torch.from_numpy(labels) for labels in partitions]


def _link(vectors: Vectors) -> Labels:
    """Connect every vector with its nearest neighbour; the connected components [N]."""
    count = len(vectors)
    if count == 1:
        return np.zeros(1, dtype=np.int64)
    # Imported here, as every run imports this module with all methods, and few ever cluster.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(norms > 0, norms, 1)
    cosines = (unit @ unit.T).round(DECIMALS)
    np.fill_diagonal(cosines, -np.inf)
    neighbour = cosines.argmax(axis=1)
    graph = coo_array((np.ones(count), (np.arange(count), neighbour)), shape=(count, count))
    _, labels = connected_components(graph, directed=False)
    return labels.astype(np.int64)


def _means(vectors: Vectors, labels: Labels) -> Vectors:
    """The mean of each cluster's original vectors [clusters, D]."""
    sums = np.zeros((labels.max() + 1, vectors.shape[1]))
    np.add.at(sums, labels, vectors)
    means: Vectors = sums / np.bincount(labels)[:, None]
    return means
