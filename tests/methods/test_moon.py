from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.model import Model
from protofed.core.rng import rng
from protofed.core.site import ArrayDataset, RoundContext
from protofed.engines.local_engine import LocalEngine
from protofed.federation.round import run_round
from protofed.methods.fedavg import FedAvg
from protofed.methods.moon import MOON, model_contrast
from protofed.testing import toy_sites
from tests.methods.playing import after


def moved(model: Model, name: str) -> Model:
    """Another model: all weights and float buffers a little elsewhere."""
    draw = rng("moved", name)
    return tree.map(
        lambda w: w + 0.2 * torch.rand(w.shape, generator=draw) if w.is_floating_point() else w,
        model,
    )


def test_contrast_of_the_oracle() -> None:
    near, far = torch.tensor([[3.0, 0.0]]), torch.tensor([[0.0, 7.0]])
    value = model_contrast(torch.tensor([[2.0, 0.0]]), near, far, tau=0.5)
    assert value.item() == pytest.approx(0.12692801104297252, abs=1e-6)


def test_equal_models_give_log_two_and_no_gradient() -> None:
    z = torch.randn(6, 4, generator=rng("moon z"), dtype=torch.float64).requires_grad_()
    same = torch.randn(6, 4, generator=rng("moon same"), dtype=torch.float64)
    value = model_contrast(z, same, same, 0.5)
    assert value.item() == pytest.approx(math.log(2), abs=1e-6)
    (gradient,) = torch.autograd.grad(value, z)
    assert gradient.abs().max() < 1e-12


@pytest.mark.parametrize("tau", [0.1, 0.5, 2.0])
def test_contrast_is_that_of_a_loop(tau: float) -> None:
    z, near, far = torch.randn(3, 9, 5, generator=rng("moon loop")).unbind()

    def likeness(a: Tensor, b: Tensor) -> float:
        dot = sum(x * y for x, y in zip(a.tolist(), b.tolist(), strict=True))
        return math.exp(dot / (math.hypot(*a.tolist()) * math.hypot(*b.tolist())) / tau)

    total = 0.0
    for row, n, f in zip(z, near, far, strict=True):
        total -= math.log(likeness(row, n) / (likeness(row, n) + likeness(row, f)))
    assert model_contrast(z, near, far, tau).item() == pytest.approx(total / 9, rel=1e-5)


def test_a_tiny_temperature_does_not_overflow() -> None:
    z, near, far = torch.randn(3, 9, 5, generator=rng("moon loop")).unbind()
    assert model_contrast(z, near, far, 1e-4).isfinite()


def test_with_mu_zero_it_is_fedavg_bit_for_bit() -> None:
    assert tree.equal(after(MOON(mu=0), 3), after(FedAvg(), 3))


def test_the_first_round_is_fedavgs_bit_for_bit_and_the_second_is_not() -> None:
    assert tree.equal(after(MOON(), 1), after(FedAvg(), 1))
    assert not tree.equal(after(MOON(), 2), after(FedAvg(), 2))


@pytest.mark.parametrize("method", [MOON(mu=5), MOON(tau=0.1)])
def test_mu_and_tau_move_the_result(method: MOON) -> None:
    assert not tree.equal(after(method), after(MOON()))


def test_the_loss_compares_with_both_models_in_evaluation_mode() -> None:
    method = MOON(mu=3, tau=0.2)
    _, sites = toy_sites(method)
    site, batch = sites[1], next(sites[1].batches(RoundContext(1, 2)))
    ours, theirs, before = (
        moved(site.initial_model(), name) for name in ("own", "global", "previous")
    )
    kept = tree.clone([theirs, before])
    value = method.loss(site, Message(theirs), before, tree.clone(ours), batch)
    out = site.forward_train(tree.clone(ours), batch.x)
    z, near, far = out.z, site.forward_eval(theirs, batch.x).z, site.forward_eval(before, batch.x).z
    scores = torch.stack([F.cosine_similarity(z, near), F.cosine_similarity(z, far)], 1) / 0.2
    contrast = F.cross_entropy(scores, torch.zeros(len(z), dtype=torch.int64))
    torch.testing.assert_close(value, F.cross_entropy(out.logits, batch.y) + 3 * contrast)
    assert tree.equal([theirs, before], kept)  # batch-norm statistics too


def test_no_gradient_reaches_the_global_or_the_previous_model() -> None:
    method = MOON()
    _, sites = toy_sites(method)
    site, batch = sites[1], next(sites[1].batches(RoundContext(1, 2)))
    ours, theirs, before = (
        moved(site.initial_model(), name) for name in ("own", "global", "previous")
    )
    for model in (ours, theirs, before):
        for leaf in model.weights.values():
            leaf.requires_grad_()
    method.loss(site, Message(theirs), before, ours, batch).backward()
    assert any(leaf.grad is not None and leaf.grad.any() for leaf in ours.weights.values())
    assert all(leaf.grad is None for m in (theirs, before) for leaf in m.weights.values())


def test_the_contrast_draws_features_to_the_global_models() -> None:
    _, sites = toy_sites(MOON())
    site = sites[2]
    received, before = (
        Message(moved(site.initial_model(), "global")),
        moved(site.initial_model(), "previous"),
    )
    x = torch.cat([x for x, _ in site.eval_batches(site.train)])

    def gap(mu: float) -> float:
        reply, _ = MOON(mu=mu).train(site, received, before, RoundContext(1, 2))
        z, near, far = (site.forward_eval(m, x).z for m in (reply.model, received.model, before))
        return model_contrast(z, near, far, 0.5).item()

    assert gap(20) < gap(0) - 0.01


def test_a_client_that_sits_a_round_out_keeps_its_own_last_model() -> None:
    method = MOON()
    site, sites = toy_sites(method)
    engine, server = LocalEngine(method, sites), method.init_server(site)
    trained: list[Model] = []
    for number, who in enumerate(([0, 1], [1, 2], [2, 3])):
        server = run_round(
            method, site, server, engine, who, RoundContext(number, 4),
            lambda _, replies: trained.extend(r.model for c, r in replies.items() if c == 1),
        )  # fmt: skip
    assert tree.equal(engine.state(1), trained[1])
    assert not tree.equal(trained[0], trained[1])
    assert method.init_client(site) is None


def test_one_image_is_enough() -> None:
    method = MOON()
    _, sites = toy_sites(method)
    one = ArrayDataset(sites[0].train.images[:1], sites[0].train.labels[:1])
    site = replace(sites[0], train=one)
    before = moved(site.initial_model(), "previous")
    reply, state = method.train(site, Message(site.initial_model()), before, RoundContext(1, 2))
    assert tree.finite(reply)
    assert tree.equal(state, reply.model)


@pytest.mark.parametrize(("field", "number"), [("mu", -1.0), ("tau", 0.0)])
def test_impossible_numbers_are_refused(field: str, number: float) -> None:
    with pytest.raises(ValidationError, match="greater than"):
        MOON(**{field: number})
