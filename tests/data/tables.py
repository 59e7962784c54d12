"""Arrays of a user for tests: vectors and small images in two domains, three classes."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Arrays: TypeAlias = dict[str, tuple[NDArray[Any], NDArray[Any]]]


def vectors(each: int = 40, width: int = 6) -> Arrays:
    """Clouds around three centres; the second domain is moved and stretched."""
    made: Arrays = {}
    for number, domain in enumerate(("north", "south")):
        draw = np.random.default_rng([number, each])
        y = np.arange(3 * each) % 3
        x = draw.normal(size=(len(y), width)) + 3 * np.eye(3, width)[y]
        made[domain] = (x * (1 + number) + 5 * number, y)
    return made


def images(each: int = 24, side: int = 16) -> Arrays:
    """A bright band high, in the middle or low; the second domain is its negative."""
    made: Arrays = {}
    for number, domain in enumerate(("day", "night")):
        draw = np.random.default_rng([number, each])
        y = np.arange(3 * each) % 3
        x = draw.integers(0, 60, (len(y), side, side)).astype(np.uint8)
        for row, label in enumerate(y):
            x[row, label * side // 3 : (label + 1) * side // 3] += 150
        made[domain] = (255 - x if number else x, y)
    return made
