"""Loss terms that several papers add to cross entropy."""

from __future__ import annotations

from torch import Tensor

from protofed.core import tree
from protofed.core.model import Model


def proximal(model: Model, anchor: Model) -> Tensor:
    """Half the squared distance of the weights to a fixed model's; buffers do not count."""
    return tree.squared_distance(model.weights, anchor.weights) / 2
