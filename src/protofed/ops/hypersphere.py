"""Features and anchors of length 1."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class UnitNorm(nn.Module):
    """Features [B, D] at length 1."""

    def forward(self, z: Tensor) -> Tensor:
        return F.normalize(z)


def anchor_separation(anchors: Tensor, tau: float) -> Tensor:
    """How much anchors [C, D] crowd: mean over each of log mean exp(a.a' / tau) over the others.

    Orthogonal anchors give 0; the least is -1 / ((C - 1) tau), a simplex.
    """
    classes = len(anchors)
    likeness = anchors @ anchors.T / tau
    others = likeness[~torch.eye(classes, dtype=torch.bool, device=anchors.device)].view(
        classes, classes - 1
    )
    return (others.logsumexp(1) - math.log(classes - 1)).mean()
