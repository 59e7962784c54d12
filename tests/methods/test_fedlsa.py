from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.model import Model, Net
from protofed.core.prototypes import Prototypes
from protofed.core.rng import rng
from protofed.core.site import RoundContext, Site, TrainingBatch
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedlsa import FedLSA, FedLSAServer, UnitNorm
from protofed.ops.prototype_collection import generate_vectors
from protofed.testing import check_method, toy_sites
from tests.methods.playing import after, is_constant, play

SMALL: dict[str, Any] = {"features": 6, "server_epochs": 20}


def anchors_of(server: FedLSAServer) -> Tensor:
    assert server.anchors is not None
    return server.anchors


def bare_site() -> Site:
    """A site whose net puts 3 numbers on the sphere and classifies them."""
    head = nn.Linear(3, 3)
    nn.init.zeros_(head.weight)
    net = Net(nn.Flatten(), UnitNorm(), head, width=3)
    return replace(toy_sites(FedAvg())[1][0], net=net, classes=3)


def added(method: FedLSA, h: Tensor, y: Tensor, anchors: Tensor) -> float:
    """What the anchors add to cross entropy for features h [B, 3]."""
    site = bare_site()
    batch = TrainingBatch(h[:, :, None, None], y, RoundContext(0, 1), 0, 0)
    received = Message(extras={"anchors": anchors})
    whole, plain = (
        method.loss(site, inbox_, None, site.initial_model(), batch).item()
        for inbox_ in (received, Message())
    )
    return whole - plain


def unit(name: str, rows: int) -> Tensor:
    return F.normalize(torch.randn(rows, 3, generator=rng(name)))


def test_a_feature_on_its_anchor_among_three_orthogonal_ones() -> None:
    eye, own = torch.eye(3), torch.arange(3)
    assert added(FedLSA(lam=1, tau=1), eye, own, eye) == pytest.approx(0.551445, abs=1e-6)


def test_the_contrast_is_equation_8_and_cross_entropy_on_likeness() -> None:
    h, anchors, y = unit("h", 6), unit("a", 3), torch.tensor([0, 1, 2, 2, 1, 1])
    total = 0.0
    for i in range(6):
        tops = [math.exp(float(anchors[j] @ h[i]) / 0.2) for j in range(3)]
        total -= math.log(tops[int(y[i])] / sum(tops))
    value = added(FedLSA(lam=0.5, tau=0.2), h, y, anchors)
    assert value == pytest.approx(0.5 * total / 6, abs=2e-6)
    assert value == pytest.approx(0.5 * F.cross_entropy(h @ anchors.T / 0.2, y).item(), abs=2e-6)


@pytest.mark.parametrize("compact", ["contrast", "distance"])
def test_turning_features_and_anchors_together_changes_nothing(compact: Any) -> None:
    h, anchors, y = unit("h", 6), unit("a", 3), torch.tensor([0, 1, 2, 2, 1, 1])
    turn = torch.linalg.qr(torch.randn(3, 3, generator=rng("turn")))[0]
    method = FedLSA(tau=0.5, compact=compact)
    turned = added(method, h @ turn, y, anchors @ turn)
    assert turned == pytest.approx(added(method, h, y, anchors), abs=2e-6)


def test_the_scale_before_the_sphere_changes_nothing() -> None:
    h, anchors, y = unit("h", 4), unit("a", 3), torch.tensor([0, 1, 2, 2])
    assert added(FedLSA(), 3 * h, y, anchors) == pytest.approx(
        added(FedLSA(), h, y, anchors), abs=1e-5
    )


def test_the_distance_is_twice_what_the_cosine_lacks() -> None:
    h, anchors, y = unit("h", 6), unit("a", 3), torch.tensor([0, 1, 2, 2, 1, 1])
    slow = sum(2 * 0.7 * (1 - float(anchors[int(y[i])] @ h[i])) for i in range(6)) / 6
    value = added(FedLSA(lam=0.7, compact="distance"), h, y, anchors)
    assert value == pytest.approx(slow, abs=1e-6)


def test_with_lambda_zero_it_is_fedavg_on_the_same_net_bit_for_bit() -> None:
    method = FedLSA(lam=0, **SMALL)
    mine, average = after(method), play(FedAvg(), net_of=method).server
    assert tree.equal(mine, average.model)
    assert not tree.equal(mine, after(replace(method, lam=0.7)))


def test_anchors_have_length_one_unless_switched_off() -> None:
    lengths = anchors_of(play(FedLSA(**SMALL), 1).server).norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones(5))
    free = anchors_of(play(FedLSA(normalize_anchors=False, **SMALL), 1).server)
    assert (free.norm(dim=1) - 1).abs().max() > 0.01


def test_training_anchors_leaves_the_model_alone() -> None:
    method = FedLSA(**SMALL)
    site, _ = toy_sites(method)
    server, model = method.init_server(site), site.initial_model()
    assert tree.equal(server.model, model)
    merged = method.merge(site, server, {0: Message(model, size=3)}, RoundContext(0, 1))
    assert tree.equal(merged.model, model)
    assert not torch.equal(anchors_of(merged), anchors_of(server))


@pytest.mark.parametrize("sep_form", ["scaled", "printed"])
def test_a_step_on_the_anchors_is_one_along_equations_3_to_5(sep_form: Any) -> None:
    method = FedLSA(features=6, server_epochs=1, server_lr=0.1, alpha=0.3, sep_form=sep_form)
    site, _ = toy_sites(method)
    start = replace(method, server_epochs=0).init_server(site)
    seeds = {name: leaf.clone().requires_grad_() for name, leaf in start.generator.items()}
    anchors, head, total = (
        F.normalize(generate_vectors(seeds)),
        start.model.weights,
        torch.zeros(()),
    )
    for i in range(5):
        scores = head["head.weight"] @ anchors[i] + head["head.bias"]
        total = total - scores.softmax(0)[i].log() / 5
        tops = [anchors[i] @ anchors[j] for j in range(5) if j != i]
        exps = [(a / 0.1).exp() if sep_form == "scaled" else a.exp() / 0.1 for a in tops]
        total = total + 0.3 * (torch.stack(exps).sum() / 4).log() / 5
    total.backward()
    grown_on = method.init_server(site).generator
    for name, leaf in seeds.items():
        assert leaf.grad is not None
        expected = leaf.detach() - 0.1 * leaf.grad
        torch.testing.assert_close(grown_on[name], expected, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_on_the_anchors_have_the_momentum_that_was_set(momentum: float) -> None:
    method = FedLSA(features=6, server_epochs=1, server_lr=0.1, server_momentum=momentum)
    site, _ = toy_sites(method)
    start = replace(method, server_epochs=0).init_server(site).generator
    first = method.init_server(site).generator
    third = replace(method, server_epochs=3).init_server(site).generator
    weights, velocity = start, {name: torch.zeros_like(leaf) for name, leaf in start.items()}
    for _ in range(3):  # Algorithm 1 has plain steps, momentum 0
        along = method._train_anchors(FedLSAServer(site.initial_model(), weights)).generator
        for name, leaf in weights.items():  # a single step from rest is lr times the gradient
            velocity[name] = momentum * velocity[name] + (leaf - along[name])
        weights = {name: leaf - velocity[name] for name, leaf in weights.items()}
    torch.testing.assert_close(third, weights, atol=1e-6, rtol=1e-4)
    assert not tree.equal(third, first)
    assert FedLSA().server_momentum == 0.9


@pytest.mark.parametrize("compact", ["contrast", "distance"])
def test_received_anchors_are_constants(compact: Any) -> None:
    anchors = torch.eye(5, 6)
    method = FedLSA(compact=compact, **SMALL)
    assert is_constant(anchors, method, Message(extras={"anchors": anchors}))


def test_seeds_live_on_from_round_to_round() -> None:
    method = FedLSA(**SMALL)
    site, _ = toy_sites(method)
    start = method.init_server(site)
    reply = {0: Message(site.initial_model(), size=3)}
    once = method.merge(site, start, reply, RoundContext(0, 2))
    twice = method.merge(site, once, reply, RoundContext(1, 2))
    assert not tree.equal(once.generator, start.generator)
    assert not tree.equal(twice.generator, once.generator)


def test_switched_off_there_are_no_anchors_in_round_zero() -> None:
    method = FedLSA(anchors0="off", **SMALL)
    off, on = (
        [set(down[0].parts) for down, _ in play(m).exchanges] for m in (method, FedLSA(**SMALL))
    )
    assert off == [{"model"}, {"model", "anchors"}]
    assert on == [{"model", "anchors"}] * 2
    assert tree.equal(after(method, 1), play(FedAvg(), 1, net_of=method).server.model)


def margins(anchors: Tensor) -> Tensor:
    own = torch.arange(len(anchors))
    return Prototypes(anchors, own, torch.ones_like(own)).class_margins()


def test_margins_of_two_axes_and_their_middle() -> None:
    half = math.sqrt(0.5)
    anchors = torch.tensor([[1.0, 0], [0, 1], [half, half]])
    assert margins(anchors).tolist() == pytest.approx([0.765367] * 3, abs=1e-6)


def test_alpha_moves_the_anchors_apart() -> None:
    site, _ = toy_sites(FedLSA(features=6))
    near, far = (
        margins(anchors_of(FedLSA(features=6, server_epochs=200, alpha=alpha).init_server(site)))
        for alpha in (0.0, 0.4)
    )
    assert far.min() > near.min() + 0.1
    assert far.mean() > near.mean()


@cache
def plain() -> Model:
    return after(FedLSA(**SMALL))


@pytest.mark.parametrize(
    "change",
    [
        {"lam": 0.1},
        {"alpha": 0.02},
        {"tau": 0.2},
        {"server_epochs": 5},
        {"server_lr": 0.1},
        {"compact": "distance"},
        {"sep_form": "printed"},
        {"anchors0": "off"},
    ],
    ids=lambda change: "".join(change),
)
def test_every_switch_changes_the_result(change: dict[str, Any]) -> None:
    assert not tree.equal(after(FedLSA(**{**SMALL, **change})), plain())


def test_free_anchors_change_the_result() -> None:
    slow = {**SMALL, "server_lr": 0.001}  # at 0.01 anchors without a norm run off to NaN
    assert not tree.equal(after(FedLSA(**slow, normalize_anchors=False)), after(FedLSA(**slow)))


def test_the_contract_holds_in_the_other_mode() -> None:
    check_method(
        FedLSA(features=6, server_epochs=3, anchors0="off", compact="distance", sep_form="printed")
    )


def test_a_generator_without_a_living_unit_is_told() -> None:
    method = FedLSA(**SMALL)
    server = play(method, 1).server
    assert method.result_warning(server) == ""
    dead = {
        **server.generator,
        "hidden.bias": torch.full_like(server.generator["hidden.bias"], -99),
    }
    anchors = F.normalize(generate_vectors(dead))
    told = method.result_warning(replace(server, generator=dead, anchors=anchors))
    assert told == "FedLSA ended with the same anchor for all classes"
    assert method.result_warning(replace(server, anchors=None)) == ""
