"""Vectors of classes that a server learns: a perceptron's answers to one seed a class."""

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
    """What vectors of classes grow from: normal seeds [C, width] and a perceptron to `features`."""
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


def generate_vectors(seedling: dict[str, Tensor]) -> Tensor:
    """The vectors [C, features] of a seedling, of any length."""
    hidden = F.linear(seedling["seed"], seedling["hidden.weight"], seedling["hidden.bias"])
    return F.linear(hidden.relu(), seedling["out.weight"], seedling["out.bias"])


def train_generator(
    seedling: dict[str, Tensor],
    batches: Iterable[B],
    loss: Callable[[dict[str, Tensor], B], Tensor],
    lr: float,
    momentum: float = 0.0,
) -> dict[str, Tensor]:
    """The seedling after a step down the loss for each batch, without weight decay."""
    return fit_model(seedling, batches, loss, SGD(lr=lr, momentum=momentum, weight_decay=0)).trained
