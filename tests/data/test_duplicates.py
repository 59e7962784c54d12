"""Groups of images that look the same, against a slow search, and in little memory."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse.csgraph import connected_components

from protofed.data.diagnostics import NEAR_BITS, NEAR_CORRELATION, HashedImage, near_duplicates


def picture(number: int, look: bytes) -> HashedImage:
    return HashedImage(f"{number}.png", "photo", "train", "cat", str(number), look, 32, 32)


def test_groups_are_those_of_a_slow_search_over_all_pairs() -> None:
    draw = np.random.default_rng(0)
    looks = draw.integers(0, 2, (12, 256))[draw.integers(0, 12, 300)]  # twelve kinds
    looks ^= draw.random(looks.shape) < 0.045  # two of a kind are 22 bits apart, more or less
    greys = draw.normal(0, 30, (40, 64))[draw.integers(0, 40, 300)]
    greys += draw.normal(0, 4.5, greys.shape)
    close = (looks[:, None] != looks).sum(2) <= NEAR_BITS
    links = close & (np.corrcoef(greys) >= NEAR_CORRELATION)
    _, group = connected_components(links, directed=False)
    slow = [np.flatnonzero(group == g).tolist() for g in np.unique(group)]
    pictures = [picture(n, np.packbits(look).tobytes()) for n, look in enumerate(looks)]
    expected = [rows for rows in slow if len(rows) > 1]
    assert len(expected) > 10
    assert max(map(len, expected)) > 2  # joined by one between them
    assert near_duplicates(pictures, greys.astype(np.float32)) == expected


def noise(count: int) -> NDArray[np.float32]:
    return np.random.default_rng(1).normal(100, 20, (count, 1024)).astype(np.float32)


@pytest.mark.parametrize("flat", [True, False])
def test_memory_does_not_grow_with_the_pairs_that_have_one_hash(flat: bool) -> None:
    count = 1500 if flat else 300
    greys = np.full((count, 1024), 100, dtype=np.float32) if flat else noise(count)
    pictures = [picture(number, bytes(32)) for number in range(count)]
    tracemalloc.start()
    try:
        found = near_duplicates(pictures, greys)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == ([list(range(count))] if flat else [])
    assert peak < 40e6  # the pairs' grey values have 9.2 GB and 0.37 GB
