"""Images that occur twice: the same pixels, or pixels that look the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

NEAR_BITS = 24  # of 256 that may differ between two hashes of what looks the same
NEAR_CORRELATION = 0.98  # of the grey values, which two such images must reach as well
FLAT = 1.0  # standard deviation of grey values below which an image shows nothing
BLOCK = 1024  # rows that are compared with all others at a time


class Picture(NamedTuple):
    """An image as the search for duplicates sees it."""

    name: str
    domain: str
    part: str  # "train" or "test"
    label: str
    sha256: str
    look: bytes
    width: int
    height: int


def exact(pictures: Sequence[Picture]) -> list[list[int]]:
    """Groups of rows with the same pixels."""
    groups: dict[str, list[int]] = {}
    for row, picture in enumerate(pictures):
        groups.setdefault(picture.sha256, []).append(row)
    return [group for group in groups.values() if len(group) > 1]


def near(pictures: Sequence[Picture], greys: NDArray[np.float32]) -> list[list[int]]:
    """Groups of rows that look the same, by hash and by grey values [N, P], but are not the same.

    Two images are alike if few bits of their hashes differ and their grey values correlate; one
    hash alone mistakes things on the same plain ground for each other.
    """
    first = {picture.sha256: row for row, picture in reversed(list(enumerate(pictures)))}
    rows = np.array(sorted(first.values()), dtype=np.int64)  # one of each exact group
    if len(rows) < 2:
        return []
    bits = np.unpackbits(
        np.frombuffer(b"".join(pictures[row].look for row in rows), dtype=np.uint8)
    ).reshape(len(rows), -1)
    one, other = _close(bits.astype(np.float32))
    kept = _alike(greys[rows[one]], greys[rows[other]])
    one, other = one[kept], other[kept]
    links = coo_array((np.ones(len(one)), (one, other)), shape=(len(rows), len(rows)))
    _, group = connected_components(links, directed=False)
    return [rows[group == g].tolist() for g in np.unique(group[one])]


def _close(bits: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The pairs of rows whose bits [N, 256] differ in few places, each pair once."""
    found: list[NDArray[np.int64]] = []
    signs = 2 * bits - 1
    for start in range(0, len(bits), BLOCK):
        differ = (bits.shape[1] - signs[start : start + BLOCK] @ signs.T) / 2
        pairs = np.argwhere(differ <= NEAR_BITS)
        pairs[:, 0] += start
        found.append(pairs[pairs[:, 0] < pairs[:, 1]])
    pairs = np.concatenate(found)
    return pairs[:, 0], pairs[:, 1]


def _alike(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Whether grey values [M, P] agree up to brightness and contrast."""
    same: list[NDArray[np.bool_]] = [np.zeros(0, dtype=bool)]
    for start in range(0, len(one), BLOCK):
        a, b = one[start : start + BLOCK], other[start : start + BLOCK]
        x, y = (part - part.mean(1, keepdims=True) for part in (a, b))
        flat = (x.std(1) < FLAT) & (y.std(1) < FLAT) & (abs(a.mean(1) - b.mean(1)) < 2 * FLAT)
        size = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
        same.append(flat | ((x * y).sum(1) >= NEAR_CORRELATION * np.maximum(size, 1e-6)))
    return np.concatenate(same)
