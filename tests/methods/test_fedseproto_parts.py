from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofed.core.model import ImageShape
from protofed.core.prototypes import Prototypes
from protofed.core.rng import rng
from protofed.core.site import RoundContext, Site
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedseproto import (
    DisentangledNet,
    FedSeProto,
    MIReduction,
    Posterior,
    Schedule,
    SplitOutput,
    distillation_loss,
    feature_posterior,
    mutual_information_loss,
    phase_batches,
    standard_normal_kl,
)
from protofed.nets import build_net
from protofed.ops.losses import Reduction, balanced_prototype_mse, logit_kl
from protofed.testing import toy_sites

FAIR = torch.zeros(1, 2, dtype=torch.float64)  # logits of (1/2, 1/2)


def away(kl: float) -> Tensor:
    """Logits [1, 2] whose softmax p has KL((1/2, 1/2) || p) = kl."""
    p = (1 - math.sqrt(1 - math.exp(-2 * kl))) / 2
    return torch.tensor([[p, 1 - p]], dtype=torch.float64).log()


def split(semantic: Tensor, domain: Tensor, basic: Tensor = FAIR) -> SplitOutput:
    return SplitOutput(basic, semantic, domain, torch.zeros(1, 3, 2, 2), torch.zeros(1, 4))


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=rng("numbers", *shape))


@pytest.mark.parametrize(
    ("semantic", "domain", "value"), [(0, 0, 0.693147), (0, 2, 0.126928), (2, 0, 2.126928)]
)
def test_distillation_in_numbers_and_as_printed_with_both_swapped(
    semantic: float, domain: float, value: float
) -> None:
    right = distillation_loss(split(away(semantic), away(domain)), printed=False)
    printed = distillation_loss(split(away(domain), away(semantic)), printed=True)
    assert right.item() == pytest.approx(value, abs=1e-6)
    assert printed.item() == pytest.approx(value, abs=1e-6)


def test_the_divergence_runs_from_teacher_to_student() -> None:
    p, q = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.9, 0.1]]).log()
    assert logit_kl(p, q).item() == pytest.approx(0.510826, abs=1e-6)
    assert logit_kl(q, p).item() == pytest.approx(0.368064, abs=1e-6)


def test_distillation_is_equation_11_with_the_sign_mended() -> None:
    basic, semantic, domain = numbers(3, 6, 4).unbind()
    total = 0.0
    for i in range(6):
        q, s, d = (logits[i].softmax(0) for logits in (basic, semantic, domain))
        one = -sum(float(q[k] * (q[k] / s[k]).log()) for k in range(4))
        two = -sum(float(q[k] * (q[k] / d[k]).log()) for k in range(4))
        total -= math.log(math.exp(one) / (math.exp(one) + math.exp(two)))
    value = distillation_loss(split(semantic, domain, basic), printed=False)
    assert value.item() == pytest.approx(total / 6, abs=1e-6)


def test_distillation_draws_semantic_to_the_teacher_domain_away_and_leaves_the_teacher() -> None:
    basic, semantic, domain = (part.clone().requires_grad_() for part in numbers(3, 6, 4))
    distillation_loss(split(semantic, domain, basic), printed=False).backward()
    assert basic.grad is None
    assert semantic.grad is not None
    assert domain.grad is not None
    with torch.no_grad():
        before, after = (logit_kl(basic, s).mean() for s in (semantic, semantic - semantic.grad))
        near, far = (logit_kl(basic, d).mean() for d in (domain, domain - domain.grad))
    assert after < before
    assert far > near


def test_bounds_in_numbers() -> None:
    bound = standard_normal_kl(torch.tensor([1.0, 0.0]), torch.tensor([0.0, math.log(4)])).sum()
    assert bound.item() == pytest.approx(1.306853, abs=1e-6)
    assert standard_normal_kl(torch.zeros(3), torch.zeros(3)).sum().item() == 0
    unit = feature_posterior("unit", torch.tensor([[1.0, 0.0]]), None)
    assert unit.kl.sum().item() == pytest.approx(0.5, abs=1e-6)


def test_the_gaussian_bound_is_that_of_torchs_distributions() -> None:
    mean, log_variance = numbers(2, 5, 3).unbind()
    normal = torch.distributions.Normal(mean, (log_variance / 2).exp())
    prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
    expected = torch.distributions.kl_divergence(normal, prior)
    torch.testing.assert_close(standard_normal_kl(mean, log_variance), expected)


def test_the_moment_bound_is_a_loop_over_dimensions() -> None:
    out = numbers(6, 3)
    feature = feature_posterior("moment", out, None)
    assert torch.equal(feature.mean, out)
    assert torch.equal(feature.drawn, out)
    for k in range(3):
        mean = sum(float(v) for v in out[:, k]) / 6
        variance = sum((float(v) - mean) ** 2 for v in out[:, k]) / 6
        slow = (variance + mean**2 - 1 - math.log(variance)) / 2
        assert feature.kl[:, k].tolist() == pytest.approx([slow] * 6, abs=1e-6)


def test_the_moment_bound_of_one_image_is_finite() -> None:
    out = torch.ones(1, 3).requires_grad_()
    bound = feature_posterior("moment", out, None).kl
    bound.sum().backward()
    assert bound.isfinite().all()
    assert out.grad is not None
    assert out.grad.isfinite().all()


def test_a_gaussian_feature_is_drawn_around_its_mean() -> None:
    out = torch.tensor([[2.0, -1.0, 0.0, math.log(4)]]).expand(20000, 4)
    mean, z, _ = feature_posterior("gaussian", out, rng("draw"))
    assert torch.equal(mean, out[:, :2])
    assert torch.equal(z, feature_posterior("gaussian", out, rng("draw")).drawn)
    torch.testing.assert_close(z.mean(0), torch.tensor([2.0, -1.0]), atol=0.05, rtol=0)
    torch.testing.assert_close(z.std(0), torch.tensor([1.0, 2.0]), atol=0.05, rtol=0)


@pytest.mark.parametrize(("reduction", "share"), [("mean", 1 / 4), ("sum", 1.0), ("literal", 1.0)])
def test_mutual_information_is_the_bounds_and_the_rebuilding_error_by_pixel(
    reduction: MIReduction, share: float
) -> None:
    x, rebuilt, bound = numbers(5, 3, 2, 2), numbers(3, 5, 2, 2).view(5, 3, 2, 2), numbers(5, 4)
    parts = split(FAIR, FAIR)._replace(rebuilt=rebuilt, bound=bound)
    total = 0.0
    for i in range(5):
        error = sum(float(v) ** 2 for v in (x[i] - rebuilt[i]).flatten()) / 12
        total += 0.3 * sum(float(v) for v in bound[i]) * share + error
    value = mutual_information_loss(parts, x, reduction, weight=0.3)
    assert value.item() == pytest.approx(total / 5, abs=1e-6)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_equation_13_counts_classes_the_same(reduction: Reduction) -> None:
    z, y = numbers(7, 4).float(), torch.tensor([0, 0, 0, 0, 2, 2, 3])
    protos = Prototypes(numbers(3, 4).float(), torch.tensor([0, 1, 2]), torch.ones(3).long())
    by_class = []
    for k in (0, 2):  # 1 is not in the batch, 3 has no prototype
        mine = [i for i in range(7) if y[i] == k]
        centre = protos.vectors[protos.labels.tolist().index(k)]
        squares = [sum(float(v) ** 2 for v in z[i] - centre) for i in mine]
        by_class.append(sum(squares) / len(mine) / (4 if reduction == "mean" else 1))
    value = balanced_prototype_mse(z, y, protos, 5, reduction)
    assert value.item() == pytest.approx(sum(by_class) / 2, rel=1e-6)


def test_equation_13_without_a_known_class_is_zero() -> None:
    protos = Prototypes(torch.ones(1, 4), torch.tensor([1]), torch.tensor([3]))
    assert balanced_prototype_mse(torch.zeros(2, 4), torch.tensor([0, 2]), protos, 3).item() == 0


def test_the_papers_net_has_the_papers_widths() -> None:
    image = ImageShape(3, 32)
    net = DisentangledNet(build_net("seproto-cnn", 10, image, 0), image, "unit")
    shapes = {name: list(leaf.shape) for name, leaf in net.named_parameters()}
    assert shapes["neck.weight"] == shapes["domain.weight"] == [512, 512]
    assert shapes["head.weight"] == [10, 512]
    assert shapes["decoder.0.weight"] == [128 * 4 * 4, 1024]
    convs = [m for m in net.decoder if isinstance(m, nn.ConvTranspose2d)]
    assert [c.out_channels for c in convs] == [64, 32, 3]


@pytest.mark.parametrize("kind", ["gaussian", "unit", "moment"])
def test_the_paths_through_the_net_agree(kind: Posterior) -> None:
    image = ImageShape(3, 16)
    net, x = (
        DisentangledNet(build_net("seproto-cnn2", 4, image, 0), image, kind),
        numbers(3, 3, 16, 16).float(),
    )
    plain, basic, full = net(x), net(x, "basic"), net(x, "split", rng("draw"))
    assert torch.equal(full.more.basic, basic.logits)
    assert torch.equal(full.more.semantic, full.logits)
    assert full.more.rebuilt.shape == x.shape
    assert plain.z.shape == basic.z.shape == full.z.shape == (3, 512)
    assert torch.equal(plain.z, full.z)  # the mean, also where the head sees what is drawn
    assert torch.equal(plain.logits, full.logits) == (kind != "gaussian")
    torch.testing.assert_close(basic.logits, F.linear(basic.z, net.head.weight, net.head.bias))


def test_the_weight_of_the_rebuilding_error_reaches_the_encoders_not_the_decoder() -> None:
    image, x = ImageShape(3, 16), numbers(3, 3, 16, 16).float()
    net = DisentangledNet(build_net("seproto-cnn2", 4, image, 0), image, "unit")

    def gradients(back: float) -> dict[str, Tensor]:
        net.zero_grad()
        F.mse_loss(net(x, "split", None, back).more.rebuilt, x).backward()
        return {name: p.grad for name, p in net.named_parameters() if p.grad is not None}

    whole, part = gradients(1.0), gradients(0.25)
    for name, gradient in whole.items():
        factor = 1.0 if name.startswith("decoder") else 0.25
        torch.testing.assert_close(part[name], factor * gradient)
    assert {name.split(".")[0] for name in whole} == {"encoder", "neck", "domain", "decoder"}


def client(epochs: int) -> Site:
    _, sites = toy_sites(FedAvg())
    return replace(sites[1], training=replace(sites[1].training, epochs=epochs))


@pytest.mark.parametrize(("epochs", "basic", "split"), [(4, 2, 2), (5, 2, 3), (1, 1, 1)])
def test_the_phases_share_the_epochs(epochs: int, basic: int, split: int) -> None:
    site, step = client(epochs), RoundContext(0, 1)
    a_pass = sum(1 for _ in site.batches(step, epochs=1))
    names = [phase for phase, _ in phase_batches("sequential", site, step)]
    assert names == ["basic"] * (basic * a_pass) + ["split"] * (split * a_pass)
    turns = [phase for phase, _ in phase_batches("interleaved", site, step)]
    both = ["basic", "split"] * (max(2, epochs) * a_pass)
    assert turns == both[: max(2, epochs) * a_pass]
    assert [phase for phase, _ in phase_batches("joint", site, step)] == ["joint"] * (
        epochs * a_pass
    )
    whole = ["basic"] * (epochs * a_pass) + ["split"] * (epochs * a_pass)
    assert [phase for phase, _ in phase_batches("two-phase", site, step)] == whole


@pytest.mark.parametrize("epochs", [1, 4, 5])
@pytest.mark.parametrize("schedule", get_args(Schedule))
def test_a_round_has_as_many_epochs_as_it_says(schedule: Schedule, epochs: int) -> None:
    site, step = client(epochs), RoundContext(0, 1)
    steps = sum(1 for _ in phase_batches(schedule, site, step))
    a_pass = sum(1 for _ in site.batches(step, epochs=1))
    assert steps == a_pass * FedSeProto(schedule=schedule).epochs_per_round(site.training)
