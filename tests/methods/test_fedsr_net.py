from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.distributions import Normal as TorchNormal
from torch.distributions import kl_divergence

from protofed.core.rng import rng
from protofed.methods.fedsr import (
    LEAST_DEVIATION,
    ClassReferences,
    DiagonalNormal,
    ProbabilisticNet,
    gaussian_kl,
    mean_log_probability,
)
from protofed.testing.method_checks import toy_net


def normal(mean: float, deviation: float) -> DiagonalNormal:
    return DiagonalNormal(torch.tensor([[mean]]), torch.tensor([[deviation]]))


def drawn(*shape: int, name: str = "values") -> Tensor:
    return torch.randn(*shape, generator=rng("test probabilistic", name))


def test_divergence_of_a_unit_normal_one_away_is_a_half_a_dimension() -> None:
    assert gaussian_kl(normal(1, 1), normal(0, 1)).item() == pytest.approx(0.5, abs=1e-6)
    three = gaussian_kl(DiagonalNormal(torch.ones(2, 3), torch.ones(2, 3)), normal(0, 1))
    assert three.tolist() == pytest.approx([1.5, 1.5], abs=1e-6)


def test_divergence_of_equal_normals_is_zero() -> None:
    here = DiagonalNormal(drawn(4, 3), drawn(4, 3, name="deviation").abs())
    assert gaussian_kl(here, here).tolist() == pytest.approx([0] * 4, abs=1e-6)


def test_divergence_is_torchs_summed_over_dimensions() -> None:
    one = DiagonalNormal(drawn(5, 7), drawn(5, 7, name="a").abs() + 0.1)
    other = DiagonalNormal(drawn(5, 7, name="b"), drawn(5, 7, name="c").abs() + 0.1)
    expected = kl_divergence(TorchNormal(*one), TorchNormal(*other)).sum(1)
    torch.testing.assert_close(gaussian_kl(one, other), expected)


def test_a_deviation_of_zero_leaves_divergence_and_gradient_finite() -> None:
    deviation = torch.zeros(1, 1, requires_grad=True)
    value = gaussian_kl(DiagonalNormal(torch.zeros(1, 1), deviation), normal(0, 1))
    value.sum().backward()
    assert value.item() == pytest.approx(-math.log(LEAST_DEVIATION) - 0.5, abs=1e-5)
    assert deviation.grad is not None
    assert deviation.grad.isfinite().all()


def test_references_start_at_zero_with_softplus_of_one_and_scale_one() -> None:
    references = ClassReferences(classes=3, features=2)
    mean, deviation = drawn(4, 2), drawn(4, 2, name="d").abs()
    spread = math.log(1 + math.e)
    found = references(DiagonalNormal(mean, deviation), torch.tensor([0, 2, 2, 1]))
    torch.testing.assert_close(
        found, gaussian_kl(DiagonalNormal(mean, deviation), normal(0, spread))
    )


@pytest.mark.parametrize("scale", [0.4, -0.4])
def test_references_are_those_of_the_class_and_compare_at_the_scale(scale: float) -> None:
    """Written as a loop over images and dimensions; a negative scale turns only the mean."""
    references = ClassReferences(classes=3, features=2)
    with torch.no_grad():
        references.mean.copy_(drawn(3, 2, name="mean"))
        references.spread.copy_(drawn(3, 2, name="spread"))
        references.scale.fill_(scale)
    feature = DiagonalNormal(drawn(4, 2), drawn(4, 2, name="d").abs() + 0.1)
    y = torch.tensor([0, 2, 2, 1])
    references.requires_grad_(False)
    found = references(feature, y)
    for row, label in enumerate(y.tolist()):
        total = 0.0
        for k in range(2):
            mean, deviation = scale * feature.mean[row, k], abs(scale) * feature.deviation[row, k]
            target = references.mean[label, k]
            width = math.log(1 + math.exp(references.spread[label, k]))
            total += float(
                math.log(width / deviation)
                + (deviation**2 + (mean - target) ** 2) / (2 * width**2)
                - 0.5
            )
        assert found[row].item() == pytest.approx(total, rel=1e-5)


def test_the_net_keeps_encoder_and_head_and_gives_mean_and_softplus_deviation() -> None:
    plain = toy_net()
    net = ProbabilisticNet(plain).eval()
    assert net.encoder is plain.encoder
    assert net.head is plain.head
    assert (net.features, net.width, net.classes) == (8, 12, 5)
    x, noise = drawn(6, 3, 8, 8), drawn(6, 8, name="noise")
    both = net.neck(net.encoder(x))
    still, moved = net(x), net(x, noise)
    torch.testing.assert_close(still.z, both[:, :8])
    torch.testing.assert_close(moved.z, both[:, :8] + (1 + both[:, 8:].exp()).log() * noise)
    torch.testing.assert_close(moved.logits, net.head(moved.z))
    assert still.more is None


def test_with_classes_the_net_tells_the_divergence_to_its_references() -> None:
    net = ProbabilisticNet(toy_net()).eval()
    x, y = drawn(6, 3, 8, 8), torch.tensor([0, 1, 2, 3, 4, 4])
    mean, raw = net.neck(net.encoder(x)).chunk(2, dim=1)
    out = net(x, drawn(6, 8, name="noise"), y)  # the noise does not enter
    torch.testing.assert_close(out.more, net.references(DiagonalNormal(mean, F.softplus(raw)), y))


def test_several_draws_are_the_same_for_every_image() -> None:
    net = ProbabilisticNet(toy_net()).eval()
    x, noise = drawn(6, 3, 8, 8), drawn(4, 1, 8, name="noise")
    out = net(x, noise)
    assert out.z.shape == (4, 6, 8)
    assert out.logits.shape == (4, 6, 5)
    for number in range(4):
        torch.testing.assert_close(out.logits[number], net(x, noise[number].expand(6, 8)).logits)


def test_the_vote_is_the_log_of_the_mean_softmax() -> None:
    logits = drawn(3, 2, 5)
    torch.testing.assert_close(mean_log_probability(logits).exp(), logits.softmax(-1).mean(0))
    assert mean_log_probability(1e4 * logits).isfinite().all()
