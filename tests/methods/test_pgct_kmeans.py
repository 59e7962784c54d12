from __future__ import annotations

import pytest
import torch
from torch import Tensor

from protofed.core import tree
from protofed.core.prototypes import class_means
from protofed.methods.pgct import bootstrap_prototypes, kmeans_labels, kmeans_prototypes

ORACLE = torch.tensor([[0.0, 0.0], [2.0, 0.0], [4.0, 6.0]])


def draw(label: int) -> torch.Generator:
    return torch.Generator().manual_seed(label)


def blobs(sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Points around far corners, and which corner each is from."""
    owner = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    corners = 100 * torch.eye(len(sizes), 4)
    return corners[owner] + torch.randn(len(owner), 4, generator=draw(1)), owner


@pytest.mark.parametrize("seed", range(6))
def test_the_oracle_is_clustered_from_every_start(seed: int) -> None:
    first, second, third = kmeans_labels(ORACLE, 2, draw(seed)).tolist()
    assert first == second != third


def test_weighted_is_the_class_mean_and_uniform_is_not() -> None:
    table = kmeans_prototypes(ORACLE, torch.full((3,), 7), 2, draw)
    assert table.labels.tolist() == [7, 7]
    assert sorted(table.counts.tolist()) == [1, 2]
    assert table.weighted_mean().vectors.tolist() == [pytest.approx([2, 2], abs=1e-6)]
    assert table.uniform_mean().vectors.tolist() == [pytest.approx([2.5, 3], abs=1e-6)]


def test_weighted_is_the_class_mean_for_any_clusters() -> None:
    z = torch.randn(60, 5, generator=draw(0))
    y = torch.arange(60) % 4
    for k in (1, 2, 3, 7):
        mean = kmeans_prototypes(z, y, k, draw).weighted_mean()
        assert torch.allclose(mean.vectors, class_means(z, y).vectors, atol=1e-6)
        assert mean.counts.tolist() == [15] * 4


def test_no_point_is_nearer_to_another_centre() -> None:
    z = torch.randn(80, 3, generator=draw(5)).double()
    labels = kmeans_labels(z, 4, draw(2))
    centres = class_means(z, labels)
    nearest = torch.cdist(z, centres.vectors).argmin(1)
    assert torch.equal(centres.labels[nearest], labels)


def test_far_blobs_are_never_joined_with_parts_of_others_when_starts_are_good() -> None:
    points, owner = blobs((5, 9, 7))
    best = min(
        (kmeans_labels(points, 3, draw(seed)) for seed in range(10)),
        key=lambda labels: float(
            (points - class_means(points, labels).class_matrix(3)[0][labels]).norm()
        ),
    )
    pairs = set(zip(owner.tolist(), best.tolist(), strict=True))
    assert len(pairs) == 3


def test_few_or_equal_points() -> None:
    assert kmeans_labels(ORACLE, 4, draw(0)).tolist() == [0, 0, 0]
    equal = kmeans_prototypes(torch.ones(6, 2), torch.zeros(6, dtype=torch.int64), 3, draw)
    assert equal.vectors.tolist() == [[1, 1]]
    assert equal.counts.tolist() == [6]
    few = kmeans_prototypes(ORACLE, torch.tensor([1, 1, 4]), 3, draw)
    assert few.vectors.tolist() == [[1, 0], [4, 6]]
    assert few.labels.tolist() == [1, 4]


def test_subsets_are_drawn_from_their_class_and_small_classes_keep_their_mean() -> None:
    y = torch.tensor([0] * 10 + [2] * 4)
    z = torch.cat([torch.arange(10.0), torch.tensor([50.0, 51, 52, 53])])[:, None]
    table = bootstrap_prototypes(z, y, draw)
    assert table.labels.tolist() == [0] * 5 + [2]
    assert table.counts.tolist() == [8] * 5 + [4]
    assert float(table.vectors[5]) == 51.5
    assert len(table.vectors[:5].unique()) > 1
    assert 0 <= float(table.vectors[:5].min()) <= float(table.vectors[:5].max()) <= 9
    assert torch.equal(
        table.vectors * table.counts[:, None], (table.vectors * table.counts[:, None]).round()
    )


def test_the_stream_decides() -> None:
    z = torch.randn(40, 3, generator=draw(9))
    y = torch.arange(40) % 2
    for make in (bootstrap_prototypes, lambda z, y, draw: kmeans_prototypes(z, y, 3, draw)):
        assert tree.equal(make(z, y, draw), make(z, y, draw))
        assert not tree.equal(make(z, y, draw), make(z, y, lambda label: draw(label + 5)))
