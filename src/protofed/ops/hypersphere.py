"""Features and anchors of length 1."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Unit(nn.Module):
    """Features [B, D] at length 1."""

    def forward(self, z: Tensor) -> Tensor:
        return F.normalize(z)


def separation(anchors: Tensor, tau: float) -> Tensor:
    """How much anchors [C, D] crowd: mean over each of log mean exp(a.a' / tau) over the others.

    Orthogonal anchors give 0; the least is -1 / ((C - 1) tau), a simplex.
    """
    classes = len(anchors)
    likeness = anchors @ anchors.T / tau
    others = likeness[~torch.eye(classes, dtype=torch.bool)].view(classes, classes - 1)
    return (others.logsumexp(1) - math.log(classes - 1)).mean()


def seedling(classes: int, width: int, features: int, draw: torch.Generator) -> dict[str, Tensor]:
    """What anchors grow from: normal seeds [C, width] and a perceptron to `features`."""
    bound = 1 / math.sqrt(width)  # as torch initialises linear layers

    def uniform(*shape: int) -> Tensor:
        return (2 * torch.rand(shape, generator=draw) - 1) * bound

    return {
        "seed": torch.randn(classes, width, generator=draw),
        "hidden.weight": uniform(width, width),
        "hidden.bias": uniform(width),
        "out.weight": uniform(features, width),
        "out.bias": uniform(features),
    }


def grown(seedling: dict[str, Tensor]) -> Tensor:
    """The anchors [C, features] of a seedling, of any length."""
    hidden = F.linear(seedling["seed"], seedling["hidden.weight"], seedling["hidden.bias"])
    return F.linear(hidden.relu(), seedling["out.weight"], seedling["out.bias"])
