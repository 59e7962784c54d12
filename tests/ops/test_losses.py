from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.core.prototypes import Prototypes
from protofed.core.rng import rng
from protofed.ops.losses import Reduction, prototype_contrastive, prototype_mse

CLASSES = 5  # class 3 has no row in `random_table`


def rows(vectors: list[list[float]], labels: list[int]) -> Prototypes:
    return Prototypes(
        torch.tensor(vectors).float(),
        torch.tensor(labels),
        torch.ones(len(labels), dtype=torch.int64),
    )


def random_table(features: int = 6) -> Prototypes:
    labels = torch.tensor([0, 0, 0, 1, 2, 2, 4])
    vectors = torch.randn(len(labels), features, generator=rng("loss rows"))
    return Prototypes(vectors, labels, torch.arange(1, 8))


def random_batch(features: int = 6) -> tuple[Tensor, Tensor]:
    draw = rng("loss batch")
    return torch.randn(20, features, generator=draw), torch.arange(20) % CLASSES


def slow_contrast(z: Tensor, y: Tensor, protos: Prototypes, tau: float) -> float:
    """-log of the own rows' share of the sum of exp(cos / tau), image by image."""
    total = 0.0
    for feature, label in zip(z.tolist(), y.tolist(), strict=True):
        own = every = 0.0
        for vector, name in zip(protos.vectors.tolist(), protos.labels.tolist(), strict=True):
            dot = sum(a * b for a, b in zip(feature, vector, strict=True))
            weight = math.exp(dot / (math.hypot(*feature) * math.hypot(*vector)) / tau)
            every += weight
            own += weight if name == label else 0
        total += -math.log(own / every) if own else 0
    return total / len(y)


def test_contrast_of_the_oracle() -> None:
    protos = rows([[1, 0], [0, 3], [-1, 0]], [0, 0, 1])
    value = prototype_contrastive(torch.tensor([[2.0, 0.0]]), torch.tensor([0]), protos, tau=0.5)
    assert value.item() == pytest.approx(0.0160036174569, abs=1e-6)
    assert value.item() == pytest.approx(math.log(1 + math.exp(-2) / (math.exp(2) + 1)), abs=1e-6)


def test_contrast_of_two_rows_equally_far() -> None:
    protos = rows([[1, 0], [0, 1]], [0, 1])
    value = prototype_contrastive(torch.tensor([[1.0, 1.0]]), torch.tensor([0]), protos, tau=0.1)
    assert value.item() == pytest.approx(0.6931471805599453, abs=1e-6)


@pytest.mark.parametrize("classes", [2, 5, 10])
def test_contrast_of_equal_similarities_is_log_of_the_classes(classes: int) -> None:
    y = torch.arange(classes)
    # In float64: a cosine / 0.02 has only five decimals in float32.
    protos = Prototypes(torch.eye(classes).double(), y, torch.ones_like(y))
    value = prototype_contrastive(torch.ones(classes, classes).double(), y, protos, 0.02)
    assert value.item() == pytest.approx(math.log(classes), abs=1e-6)


@pytest.mark.parametrize("tau", [0.02, 0.1, 0.5, 3.0])
def test_contrast_is_that_of_a_loop(tau: float) -> None:
    (z, y), protos = random_batch(), random_table()
    slow = slow_contrast(z, y, protos, tau)
    assert prototype_contrastive(z, y, protos, tau).item() == pytest.approx(slow, rel=1e-5)


def test_with_one_row_a_class_contrast_is_cross_entropy_of_the_cosines() -> None:
    (z, y), order = random_batch(), torch.tensor([3, 1, 0, 4, 2])
    vectors = torch.randn(CLASSES, 6, generator=rng("one row each"))
    table = Prototypes(vectors[order], order, torch.ones(CLASSES, dtype=torch.int64))
    cosines = F.cosine_similarity(z[:, None], vectors, dim=2)
    expected = F.cross_entropy(cosines / 0.02, y)
    torch.testing.assert_close(prototype_contrastive(z, y, table, 0.02), expected)


def test_lengths_do_not_count_in_contrast() -> None:
    (z, y), protos = random_batch(), random_table()
    longer = Prototypes(protos.vectors * torch.arange(1, 8)[:, None], protos.labels, protos.counts)
    plain = prototype_contrastive(z, y, protos, 0.1)
    torch.testing.assert_close(prototype_contrastive(z * 7, y, protos, 0.1), plain)
    torch.testing.assert_close(prototype_contrastive(z, y, longer, 0.1), plain)


@pytest.mark.parametrize("tau", [0.01, 0.001])
def test_contrast_and_its_gradient_are_finite_where_exp_overflows(tau: float) -> None:
    """exp(1 / 0.01) is more than a float32 holds: sums of exp would give NaN."""
    (z, y), protos = random_batch(), random_table()
    z = torch.cat([z, protos.vectors]).requires_grad_()  # cosines of exactly 1 too
    value = prototype_contrastive(z, torch.cat([y, protos.labels]), protos, tau)
    value.backward()
    assert value.isfinite()
    assert z.grad is not None
    assert z.grad.isfinite().all()
    assert z.grad.abs().sum() > 0


def test_a_batch_of_classes_without_rows_has_no_contrast_and_no_pull() -> None:
    z = torch.randn(4, 6, generator=rng("strangers"), requires_grad=True)
    y, protos = torch.full((4,), 3), random_table()
    value = prototype_contrastive(z, y, protos, 0.02) + prototype_mse(z, y, protos, CLASSES)
    value.backward()
    assert value.item() == 0
    assert z.grad is not None
    assert torch.equal(z.grad, torch.zeros_like(z))


def test_an_image_without_a_prototype_adds_nothing_but_counts_in_the_mean() -> None:
    (z, y), protos = random_batch(), random_table()
    known = y != 3
    assert int(known.sum()) == 16
    for whole, part in (
        (
            prototype_contrastive(z, y, protos, 0.1),
            prototype_contrastive(z[known], y[known], protos, 0.1),
        ),
        (prototype_mse(z, y, protos, CLASSES), prototype_mse(z[known], y[known], protos, CLASSES)),
    ):
        torch.testing.assert_close(whole, part * 16 / 20)


@pytest.mark.parametrize(("reduction", "expected"), [("sum", 5.0), ("mean", 2.5)])
def test_pull_of_the_oracle(reduction: Reduction, expected: float) -> None:
    z, y = torch.tensor([[1.0, 2.0]]), torch.tensor([0])
    value = prototype_mse(z, y, rows([[0, 0]], [0]), 1, reduction)
    assert value.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_pull_is_that_of_a_loop(reduction: Reduction) -> None:
    (z, y), protos = random_batch(), random_table()
    total = 0.0
    for feature, label in zip(z.tolist(), y.tolist(), strict=True):
        mine = [
            v
            for v, k in zip(protos.vectors.tolist(), protos.labels.tolist(), strict=True)
            if k == label
        ]
        if mine:
            centre = [sum(column) / len(mine) for column in zip(*mine, strict=True)]
            squares = [(a - c) ** 2 for a, c in zip(feature, centre, strict=True)]
            total += sum(squares) / (len(squares) if reduction == "mean" else 1)
    value = prototype_mse(z, y, protos, CLASSES, reduction)
    assert value.item() == pytest.approx(total / len(y), rel=1e-5)
