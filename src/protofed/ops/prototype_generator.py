"""Class vectors that a server learns: the outputs of a small perceptron on one seed per class."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.core.training import SGD, fit_model

B = TypeVar("B")


def init_generator(
    classes: int, width: int, features: int, draw: torch.Generator
) -> dict[str, Tensor]:
    """The weights of a new generator: normal seeds [C, width] and a perceptron width -> features.

    The layers are uniform in +-1 / sqrt(width), as torch initialises linear layers. A dict of
    tensors, so it can be part of a server state.
    """
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


def generate_vectors(generator: dict[str, Tensor]) -> Tensor:
    """Class vectors [C, features]: W_2 relu(W_1 seed_c + b_1) + b_2 for each class c.

    They are not normalised.
    """
    hidden = F.linear(generator["seed"], generator["hidden.weight"], generator["hidden.bias"])
    return F.linear(hidden.relu(), generator["out.weight"], generator["out.bias"])


def train_generator(
    generator: dict[str, Tensor],
    batches: Iterable[B],
    loss: Callable[[dict[str, Tensor], B], Tensor],
    lr: float,
    momentum: float = 0.0,
) -> dict[str, Tensor]:
    """The generator after one SGD step on `loss` per batch, without weight decay.

    ``loss(generator, batch)`` returns a scalar; usually it calls `generate_vectors`.
    """
    return fit_model(
        generator, batches, loss, SGD(lr=lr, momentum=momentum, weight_decay=0)
    ).trained
