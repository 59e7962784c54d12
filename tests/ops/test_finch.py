from __future__ import annotations

import importlib
import math
import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from protofed.core.rng import rng
from protofed.ops.finch import finch_clusters

SIZES = (1, 2, 3, 5, 20, 40)


def on_the_circle(*degrees: float) -> Tensor:
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], 1)


def named_by_first_member(partition: list[int]) -> list[int]:
    names: dict[int, int] = {}
    return [names.setdefault(label, len(names)) for label in partition]


def ours(points: Tensor) -> list[list[int]]:
    return [named_by_first_member(partition.tolist()) for partition in finch_clusters(points)]


@pytest.mark.parametrize(
    ("degrees", "partitions"),
    [
        (
            (0, 10, 50, 60, 120, 125, 170, 180),
            [[0, 0, 1, 1, 2, 2, 3, 3], [0, 0, 0, 0, 1, 1, 1, 1]],
        ),
        ((0, 10, 15, 40, 90, 95), [[0, 0, 0, 0, 1, 1]]),
        ((0, 5, 20), [[0, 0, 0]]),
        ((0, 30), [[0, 0]]),
    ],
)
def test_oracles(degrees: tuple[float, ...], partitions: list[list[int]]) -> None:
    assert ours(on_the_circle(*degrees)) == partitions


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("features", [1, 2, 64])
def test_up_to_three_points_are_one_cluster(count: int, features: int) -> None:
    for case in range(20):
        points = torch.randn(count, features, generator=rng("few points", case))
        assert ours(points) == [[0] * count]


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("features", [1, 3, 100, 512])
def test_points_that_say_the_same_are_one_cluster(count: int, features: int) -> None:
    draw = rng("one direction", count, features)
    direction = torch.randn(features, generator=draw)
    lengths = torch.rand(count, 1, generator=draw) + 0.1
    for points in (direction.expand(count, -1), direction * lengths, torch.zeros(count, features)):
        assert ours(points) == [[0] * count]


def test_a_zero_vector_among_others_joins_the_first_of_them() -> None:
    points = torch.cat([torch.zeros(1, 2), on_the_circle(0, 5, 90, 95)])
    assert ours(points) == [[0, 0, 0, 1, 1]]  # its cosine to all is 0: a tie


def slow_first_partition(points: Tensor) -> list[int]:
    """Merge the names of every point and its nearest neighbour until nothing changes."""
    rows = points.tolist()

    def cosine(a: list[float], b: list[float]) -> float:
        dot = sum(p * q for p, q in zip(a, b, strict=True))
        return dot / (math.hypot(*a) * math.hypot(*b))

    names = list(range(len(rows)))
    for m, row in enumerate(rows):
        others = [n for n in range(len(rows)) if n != m]
        nearest = max(others, key=lambda n: cosine(row, rows[n]))
        old, new = names[m], names[nearest]
        names = [new if name == old else name for name in names]
    return named_by_first_member(names)


def test_the_first_partition_is_that_of_a_loop() -> None:
    for case in range(40):
        points = torch.randn(2 + case, 1 + case % 6 + 1, generator=rng("loop", case)).double()
        assert ours(points)[0] == slow_first_partition(points)


def test_all_partitions_are_those_of_the_published_package() -> None:
    with warnings.catch_warnings():  # it warns that it lacks optional packages
        warnings.simplefilter("ignore")
        theirs = importlib.import_module("finch").FINCH
        levels = set()
        for case in range(300):
            count, features = 1 + case % 40, (1, 2, 3, 5, 16, 64, 512)[case % 7]
            points = torch.randn(count, features, generator=rng("published", case))
            table: np.ndarray[tuple[int, int], np.dtype[np.int64]]
            table, _, _ = theirs(points.numpy(), ensure_early_exit=False)
            columns = table.reshape(count, -1).T.tolist()
            assert ours(points) == [named_by_first_member(column) for column in columns]
            levels.add(len(columns))
    assert levels >= {1, 2, 3}


def test_each_partition_at_least_halves_the_one_before_and_cuts_none_of_its_clusters() -> None:
    """So "one merge less" and "no merge", at which versions of the package stop unlike, never come.

    Every point has a neighbour other than itself, so no cluster has one member: of n > 2 clusters
    at most n / 2 are left, two or more fewer.
    """
    for case in range(60):
        partitions = finch_clusters(torch.randn(40, 2 + case % 9, generator=rng("halves", case)))
        counts = [40] + [int(partition.max()) + 1 for partition in partitions]
        assert all(2 * after <= before for before, after in pairwise(counts))
        for fine, coarse in pairwise(partitions):
            pairs = set(zip(fine.tolist(), coarse.tolist(), strict=True))
            assert len(pairs) == int(fine.max()) + 1


def test_only_the_first_partition_may_have_one_cluster() -> None:
    for case in range(60):
        partitions = finch_clusters(torch.randn(30, 3, generator=rng("coarsest", case)))
        assert all(int(partition.max()) > 0 for partition in partitions[1:])


def test_it_neither_changes_nor_differentiates_its_points() -> None:
    points = torch.randn(12, 4, generator=rng("untouched"), requires_grad=True)
    before = points.detach().clone()
    assert all(not partition.requires_grad for partition in finch_clusters(points))
    assert torch.equal(points, before)
