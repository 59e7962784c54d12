"""A net whose feature is a normal distribution, and how far that is from its class's reference."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofed.core.model import Net, NetOutput

LEAST_DEVIATION = 1e-6  # keeps logarithms and quotients finite


class DiagonalNormal(NamedTuple):
    """Independent normal distributions, one for each entry."""

    mean: Tensor  # [B, D]
    deviation: Tensor  # [B, D], not negative


class ClassReferences(nn.Module):
    """Where a client expects the features of each class, and the scale at which it compares."""

    def __init__(self, classes: int, features: int):
        super().__init__()
        self.mean = nn.Parameter(torch.zeros(classes, features))  # r_mu
        self.spread = nn.Parameter(torch.ones(classes, features))  # r_sigma, before its softplus
        self.scale = nn.Parameter(torch.ones(()))  # C

    def forward(self, feature: DiagonalNormal, y: Tensor) -> Tensor:
        """KL of each scaled feature to the reference of its class y [B]: [B]."""
        scaled = DiagonalNormal(self.scale * feature.mean, self.scale.abs() * feature.deviation)
        return gaussian_kl(scaled, DiagonalNormal(self.mean[y], F.softplus(self.spread[y])))


class ProbabilisticNet(Net):
    """Encoder -> a linear neck to mean and deviation of z -> head; beside it the references."""

    def __init__(self, net: Net):
        neck = nn.Linear(net.width, 2 * net.features)
        super().__init__(net.encoder, neck, net.head, net.width)
        self.references = ClassReferences(net.classes, net.features)

    def forward(self, x: Tensor, noise: Tensor | None = None, y: Tensor | None = None) -> NetOutput:
        """The feature at `noise` deviations from its mean; with y, `more` is KL to references.

        Noise [B, D] makes one draw an image; [S, 1, D] makes S, the same for every image, and
        then features and scores are [S, B, D] and [S, B, C]. Without noise z is the mean.
        """
        mean, raw = self.neck(self.encoder(x)).chunk(2, dim=1)
        feature = DiagonalNormal(mean, F.softplus(raw))
        z = mean if noise is None else mean + feature.deviation * noise
        return NetOutput(z, self.head(z), None if y is None else self.references(feature, y))


def gaussian_kl(one: DiagonalNormal, other: DiagonalNormal) -> Tensor:
    """KL(one || other) of each row, summed over dimensions: [B]."""
    mine, yours = (n.deviation.clamp(min=LEAST_DEVIATION) for n in (one, other))
    squares = (mine.square() + (one.mean - other.mean).square()) / (2 * yours.square())
    return (yours.log() - mine.log() + squares - 0.5).sum(1)


def mean_log_probability(logits: Tensor) -> Tensor:
    """The log of the mean probability [B, C] over draws, from logits [S, B, C]."""
    draws = torch.tensor(float(len(logits)))
    return logits.log_softmax(-1).logsumexp(0) - draws.log()
