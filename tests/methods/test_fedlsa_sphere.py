from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.core.rng import rng
from protofed.methods.fedlsa import UnitNorm, anchor_separation


def simplex() -> Tensor:
    """Three anchors at 120 degrees."""
    angles = torch.arange(3, dtype=torch.float64) * 2 * math.pi / 3
    return torch.stack([angles.cos(), angles.sin()], 1)


def rotation(size: int) -> Tensor:
    turn: Tensor
    turn, _ = torch.linalg.qr(torch.randn(size, size, dtype=torch.float64, generator=rng("turn")))
    return turn


def spread(count: int, width: int) -> Tensor:
    draw = rng("anchors", count, width)
    return F.normalize(torch.randn(count, width, dtype=torch.float64, generator=draw))


def slow_separation(anchors: Tensor, tau: float, printed: bool) -> float:
    """Eq. 4 for each anchor in turn, then the mean."""
    count, total = len(anchors), 0.0
    for i in range(count):
        inner = 0.0
        for j in range(count):
            if j != i:
                likeness = float(anchors[i] @ anchors[j])
                inner += math.exp(likeness) / tau if printed else math.exp(likeness / tau)
        total += math.log(inner / (count - 1))
    return total / count


@pytest.mark.parametrize("tau", [0.1, 0.5, 2.0])
def test_separation_of_a_simplex_of_orthonormal_and_of_collapsed_anchors(tau: float) -> None:
    same = torch.tensor([[0.6, 0.8]]).double().expand(3, 2)
    assert anchor_separation(simplex(), tau).item() == pytest.approx(-1 / (2 * tau), abs=1e-6)
    assert anchor_separation(torch.eye(3), tau).item() == pytest.approx(0, abs=1e-6)
    assert anchor_separation(same, tau).item() == pytest.approx(1 / tau, abs=1e-6)


def test_separation_in_numbers() -> None:
    assert anchor_separation(simplex(), 0.5).item() == pytest.approx(-1, abs=1e-6)
    assert anchor_separation(torch.ones(3, 1), 0.5).item() == pytest.approx(2, abs=1e-6)


def test_the_printed_form_is_a_constant_shift_of_tau_one() -> None:
    shift = -math.log(0.5)
    assert slow_separation(simplex(), 0.5, printed=True) == pytest.approx(0.193147, abs=1e-6)
    assert anchor_separation(simplex(), 1).item() + shift == pytest.approx(0.193147, abs=1e-6)
    anchors = spread(6, 4)
    slow = slow_separation(anchors, 0.5, printed=True)
    assert anchor_separation(anchors, 1).item() + shift == pytest.approx(slow, abs=1e-6)


@pytest.mark.parametrize(("count", "width"), [(2, 3), (5, 4), (7, 2)])
def test_separation_is_equation_4(count: int, width: int) -> None:
    anchors = spread(count, width)
    slow = slow_separation(anchors, 0.2, printed=False)
    assert anchor_separation(anchors, 0.2).item() == pytest.approx(slow, abs=1e-6)


def test_no_anchors_are_further_apart_than_a_simplex() -> None:
    for count in (2, 3, 4, 6):
        least = -1 / ((count - 1) * 0.3)
        assert anchor_separation(spread(count, 8), 0.3).item() >= least - 1e-9


def test_a_small_temperature_does_not_overflow() -> None:
    value = anchor_separation(torch.ones(4, 1), 0.001)
    assert value.item() == pytest.approx(1000)


def test_separation_does_not_change_when_all_anchors_turn_together() -> None:
    anchors = spread(5, 4)
    turned = anchor_separation(anchors @ rotation(4), 0.1)
    assert turned.item() == pytest.approx(anchor_separation(anchors, 0.1).item(), abs=1e-9)


def test_unit_gives_length_one_and_does_not_see_the_scale() -> None:
    z = torch.randn(6, 4, generator=rng("z"))
    h = UnitNorm()(z)
    torch.testing.assert_close(h.norm(dim=1), torch.ones(6))
    torch.testing.assert_close(UnitNorm()(7.3 * z), h)
    assert torch.equal(UnitNorm()(4 * z), h)
    assert UnitNorm()(torch.zeros(1, 4)).isfinite().all()
