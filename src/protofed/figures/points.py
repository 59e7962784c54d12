"""Clouds of points: one for each class or domain, told apart by colour, shade and shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from torch import Tensor

from protofed.figures.style import MARKERS, PALETTE

DARKER = 0.5  # how much light each further use of the palette keeps


class PointGroup(NamedTuple):
    """The points of one group and how they look."""

    name: str
    points: Tensor  # [n, dims]
    colour: tuple[float, float, float]
    marker: str


def group_points(points: Tensor, numbers: Tensor, called: Sequence[str]) -> Iterator[PointGroup]:
    """Points [N, dims] by their group's number [N]; groups without a point are left out."""
    from matplotlib.colors import to_rgb

    for group in numbers.unique().tolist():
        again, place = divmod(group, len(PALETTE))
        red, green, blue = (part * DARKER**again for part in to_rgb(PALETTE[place]))
        marker = MARKERS[group % len(MARKERS)]
        yield PointGroup(called[group], points[numbers == group], (red, green, blue), marker)
