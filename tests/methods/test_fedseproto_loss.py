from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from protofed.core.message import Message
from protofed.core.model import Model, NetOutput
from protofed.core.site import RoundContext, Site, TrainingBatch
from protofed.methods.fedseproto import FedSeProto, MIReduction, Posterior, SplitOutput
from protofed.ops.losses import balanced_prototype_mse, logit_kl
from protofed.ops.prototype_collection import local_prototypes
from protofed.testing import toy_sites

STEP = RoundContext(0, 1)
ENCODERS = ("encoder", "neck", "domain")


def one_batch(method: FedSeProto) -> tuple[Site, TrainingBatch]:
    site = toy_sites(method)[1][2]
    return site, next(site.batches(STEP))


def seen(site: Site, batch: TrainingBatch, model: Model) -> tuple[NetOutput, SplitOutput]:
    """What all parts say of a batch, nothing of it weighted."""
    draw = site.rng("posterior", 0, 0, batch.number)
    out = site.forward_train(model, batch.x, "split", draw)
    return out, cast(SplitOutput, out.more)


def l_kd(split: SplitOutput) -> Tensor:
    away = [logit_kl(split.basic, logits) for logits in (split.semantic, split.domain)]
    return (1 + (away[0] - away[1]).exp()).log().mean()


@pytest.mark.parametrize("posterior", ["unit", "gaussian", "moment"])
def test_the_loss_of_phase_two_is_equation_15(posterior: Posterior) -> None:
    method = FedSeProto(alpha=0.3, beta=0.2, lam=0.5, posterior=posterior)
    site, batch = one_batch(method)
    protos = local_prototypes(site, site.initial_model())
    value = method.phase_loss(site, Message(protos=protos), site.initial_model(), "split", batch)
    out, split = seen(site, batch, site.initial_model())
    expected = (
        F.cross_entropy(out.logits, batch.y)
        + 0.3 * l_kd(split)
        + 0.2 * split.bound.mean()
        + (split.rebuilt - batch.x).square().mean()  # 0.2 of its gradient reaches the encoders
        + 0.5 * balanced_prototype_mse(out.z, batch.y, protos, site.classes)
    )
    torch.testing.assert_close(value, expected)


def slopes(loss: Tensor, model: Model, parts: Iterable[str]) -> dict[str, Tensor]:
    """The gradient of a loss by the weights of some parts of the model."""
    weights = model.only(*parts).weights
    gradients = torch.autograd.grad(loss, list(weights.values()), retain_graph=True)
    return dict(zip(weights, gradients, strict=True))


def equation_10(split: SplitOutput, x: Tensor, reduction: MIReduction) -> Tensor:
    """L_MI of a batch, image by image; "sum" with the log likelihood of a unit normal."""
    total = torch.zeros(())
    for bound, rebuilt, image in zip(split.bound, split.rebuilt, x, strict=True):
        squares = (rebuilt - image).square()
        kl = bound.mean() if reduction == "mean" else bound.sum()
        total = total + kl + (squares.sum() / 2 if reduction == "sum" else squares.mean())
    return total / len(x)


@pytest.mark.parametrize("reduction", ["mean", "sum", "literal"])
@pytest.mark.parametrize("beta", [0.2, 3.0])
def test_beta_weights_what_the_error_sends_into_the_encoders_and_not_the_decoder(
    beta: float, reduction: MIReduction
) -> None:
    method = FedSeProto(alpha=0.3, beta=beta, mi_reduction=reduction, posterior="gaussian")
    site, batch = one_batch(method)
    mine, plain = site.initial_model(), site.initial_model()
    for leaf in (*mine.weights.values(), *plain.weights.values()):
        leaf.requires_grad_()
    value = method.phase_loss(site, Message(), mine, "split", batch)
    out, split = seen(site, batch, plain)
    error = (split.rebuilt - batch.x).square().mean()
    task = F.cross_entropy(out.logits, batch.y) + 0.3 * l_kd(split)
    whole = task + beta * equation_10(split, batch.x, reduction)
    expected = slopes(whole, plain, ENCODERS) | slopes(error, plain, ["decoder"])
    torch.testing.assert_close(slopes(value, mine, (*ENCODERS, "decoder")), expected)


@pytest.mark.parametrize("alpha", [0.3, 0.0])
def test_the_joint_loss_has_the_basic_cross_entropy_where_it_has_a_teacher(alpha: float) -> None:
    method = FedSeProto(schedule="joint", alpha=alpha, beta=0)
    site, batch = one_batch(method)
    value = method.phase_loss(site, Message(), site.initial_model(), "joint", batch)
    out, split = seen(site, batch, site.initial_model())
    expected = F.cross_entropy(out.logits, batch.y)
    if alpha:
        expected = expected + F.cross_entropy(split.basic, batch.y) + alpha * l_kd(split)
    torch.testing.assert_close(value, expected)
