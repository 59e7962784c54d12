"""Features of many dimensions in two or three: principal axes and t-SNE."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.core.errors import ProtofedError
from protofed.core.rng import stream_seed

PERPLEXITY = 30.0  # neighbours that t-SNE keeps near a point, as its paper suggests
FEWEST = 4  # points: below, there are no neighbourhoods to keep


class ProjectionAxes(NamedTuple):
    """Where the origin of a projection lies, its axes, and how much of the points it keeps."""

    origin: Tensor  # [D]
    axes: Tensor  # [dims, D], orthonormal; zero rows where the points have fewer dimensions
    kept: float  # share of the squared distances to the origin

    def place(self, points: Tensor) -> Tensor:
        """Points [N, D] in the projection [N, dims]."""
        return (points.double() - self.origin) @ self.axes.T


def principal_axes(points: Tensor, dims: int, centred: bool = True) -> ProjectionAxes:
    """The axes along which points [N, D] differ most; not centred, along which they are longest.

    Signs are settled by each axis's largest entry, so that no library decides on mirror images.
    """
    wide = points.double()
    origin = wide.mean(0) if centred else wide.new_zeros(wide.shape[1])
    _, lengths, axes = torch.linalg.svd(wide - origin, full_matrices=False)
    found = axes[:dims]
    largest = found.gather(1, found.abs().argmax(1, keepdim=True))
    found = F.pad(found * largest.sign(), (0, 0, 0, dims - len(found)))
    squares = lengths.square()
    kept = float(squares[:dims].sum() / squares.sum().clamp(min=torch.finfo(squares.dtype).tiny))
    return ProjectionAxes(origin, found, kept)


def tsne_map(points: Tensor, seed: int) -> Tensor:
    """Points [N, D] laid out by t-SNE [N, 2], neighbours near each other; distances mean little."""
    if len(points) < FEWEST:
        raise ProtofedError(
            f"t-SNE needs at least {FEWEST} images, there are {len(points)}\n"
            f"choose a domain with more test images, or all of them"
        )
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    layout = TSNE(
        perplexity=min(PERPLEXITY, (len(points) - 1) / 3),
        init="pca",
        random_state=stream_seed(seed, "figure", "t-SNE") % 2**32,
    )
    with threadpool_limits(1):  # more threads would sum in another order
        return torch.from_numpy(layout.fit_transform(points.double().numpy()))
