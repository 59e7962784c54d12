"""Images that occur twice: the same pixels, or pixels that look the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NEAR_BITS = 24  # of 256 that may differ between two hashes of what looks the same
NEAR_CORRELATION = 0.98  # of the grey values, which two such images must reach as well
FLAT = 1.0  # standard deviation of grey values below which an image shows nothing
BLOCK = 256  # rows that are compared at a time, so that memory does not grow with pairs


class HashedImage(NamedTuple):
    """An image as the search for duplicates sees it."""

    name: str
    domain: str
    part: str  # "train" or "test"
    label: str
    sha256: str
    look: bytes
    width: int
    height: int


def exact_duplicates(pictures: Sequence[HashedImage]) -> list[list[int]]:
    """Groups of rows with the same pixels."""
    groups: dict[str, list[int]] = {}
    for row, picture in enumerate(pictures):
        groups.setdefault(picture.sha256, []).append(row)
    return [group for group in groups.values() if len(group) > 1]


def near_duplicates(pictures: Sequence[HashedImage], greys: NDArray[np.float32]) -> list[list[int]]:
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
    group = np.arange(len(rows))  # the first row of those that each is joined to so far
    for one, later in _close(bits.astype(np.float32)):
        new = later[group[later] != group[one]]
        alike = new[_alike(greys, rows[one], rows[new])]
        joined = group[[one, *alike]]
        group[np.isin(group, joined)] = joined.min()
    first_rows, sizes = np.unique(group, return_counts=True)
    return [rows[group == row].tolist() for row in first_rows[sizes > 1]]


def _close(bits: NDArray[np.float32]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Each row with the later ones whose bits [N, 256] differ from its own in few places."""
    signs = 2 * bits - 1
    least = bits.shape[1] - 2 * NEAR_BITS  # the places that agree less those that differ
    for start in range(0, len(bits), BLOCK):
        for row, agreement in enumerate(signs[start : start + BLOCK] @ signs.T, start):
            yield row, row + 1 + np.flatnonzero(agreement[row + 1 :] >= least)


def _alike(
    greys: NDArray[np.float32], one: np.int64, others: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Whether some rows' grey values agree with one's, up to brightness and contrast."""
    same: list[NDArray[np.bool_]] = [np.zeros(0, dtype=bool)]
    for start in range(0, len(others), BLOCK):  # only these are gathered
        a, b = greys[[one]], greys[others[start : start + BLOCK]]
        x, y = (part - part.mean(1, keepdims=True) for part in (a, b))
        flat = (x.std(1) < FLAT) & (y.std(1) < FLAT) & (abs(a.mean(1) - b.mean(1)) < 2 * FLAT)
        size = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
        same.append(flat | ((x * y).sum(1) >= NEAR_CORRELATION * np.maximum(size, 1e-6)))
    return np.concatenate(same)
