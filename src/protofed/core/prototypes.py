"""Prototypes as one table: a row is one vector with its class and the examples behind it."""

from __future__ import annotations

from torch import Tensor

from protofed.core import tree


@tree.node
class Prototypes:
    """Class prototypes; an absent class has no row, a class with clusters has several."""

    vectors: Tensor  # [K, D]
    labels: Tensor  # [K] class of each row
    counts: Tensor  # [K] examples behind each row
