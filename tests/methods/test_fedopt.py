from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import average_models
from protofed.core.model import Model
from protofed.core.site import RoundContext, Site
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedopt import FedOPT, FedOPTServer
from protofed.testing import check_method, toy_sites
from protofed.testing.method_checks import toy_net
from tests.methods.playing import after

STEP = RoundContext(0, 1)
ADAPTIVE = ("adam", "yogi", "adagrad")
EVERY: tuple[Any, ...] = ("sgd", *ADAPTIVE)


def toy_site() -> Site:
    return toy_sites(FedOPT())[0]


def scalar(value: float, buffer: float = 0.0) -> Model:
    weights = {"w": torch.tensor([value], dtype=torch.float64)}
    return Model(weights, {"b": torch.tensor([buffer], dtype=torch.float64)})


def start(method: FedOPT, value: float = 1.0) -> FedOPTServer:
    zero = {"w": torch.zeros(1, dtype=torch.float64)}
    return FedOPTServer(scalar(value), zero, {} if method.optimiser == "sgd" else tree.clone(zero))


def path(method: FedOPT, means: list[float], value: float = 1.0) -> list[float]:
    """The weight after each round in which the clients' mean was so."""
    site, server, seen = toy_site(), start(method, value), []
    for mean in means:
        replies = {0: Message(scalar(mean), size=3)}
        server = method.merge(site, server, replies, STEP)
        seen.append(server.model.weights["w"].item())
    return seen


def test_sgd_with_momentum_from_one_by_a_half_to_minus_three_fortieths() -> None:
    assert path(FedOPT(lr=0.5, momentum=0.9), [0, 0.25]) == pytest.approx([0.5, -0.075], abs=1e-9)


def test_adams_first_step_has_no_bias_correction() -> None:
    method = FedOPT(optimiser="adam", lr=0.1, momentum=0.9, beta2=0.99, tau=1e-3)
    assert path(method, [0]) == pytest.approx([0.900990099], abs=1e-8)


@pytest.mark.parametrize("optimiser", ADAPTIVE)
def test_the_adaptive_rules_are_those_of_algorithm_2(optimiser: Any) -> None:
    method = FedOPT(optimiser=optimiser, lr=0.3, momentum=0.8, beta2=0.7, tau=0.05)
    means, w, m, v, expected = [0.0, 2.0, 1.9, -3.0, 0.5], 1.0, 0.0, 0.0, []
    for mean in means:
        delta = mean - w
        m = 0.8 * m + 0.2 * delta
        if optimiser == "adagrad":
            v = v + delta**2
        elif optimiser == "yogi":
            v = v - 0.3 * delta**2 * (1 if v > delta**2 else -1)
        else:
            v = 0.7 * v + 0.3 * delta**2
        w = w + 0.3 * m / (math.sqrt(v) + 0.05)
        expected.append(w)
    assert path(method, means) == pytest.approx(expected, abs=1e-12)


def test_yogi_lets_its_second_moment_shrink_more_slowly_than_adam() -> None:
    site, ends = toy_site(), {}
    for name in ("adam", "yogi"):
        method = FedOPT(optimiser=name, lr=0)
        server = start(method)
        for mean in (9.0, 1.0, 1.0):
            server = method.merge(site, server, {0: Message(scalar(mean), size=1)}, STEP)
        ends[name] = server.v["w"].item()
    assert ends["yogi"] > ends["adam"] > 0


def test_sgd_is_torchs_sgd_on_the_pseudo_gradient() -> None:
    means, weight = [0.3, -2.0, 0.7, 0.7], nn.Parameter(torch.ones(1, dtype=torch.float64))
    optimiser = torch.optim.SGD([weight], lr=0.25, momentum=0.6)
    expected = []
    for mean in means:
        weight.grad = weight.detach() - mean
        optimiser.step()
        expected.append(weight.item())
    assert path(FedOPT(lr=0.25, momentum=0.6), means) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("optimiser", EVERY)
def test_where_the_clients_do_not_move_nothing_does(optimiser: Any) -> None:
    assert path(FedOPT(optimiser=optimiser), [1.0, 1.0]) == [1.0, 1.0]


def test_sgd_of_rate_one_without_momentum_is_fedavg_bit_for_bit() -> None:
    assert tree.equal(after(FedOPT(lr=1, momentum=0), 3), after(FedAvg(), 3))


def test_that_identity_does_not_hang_on_how_large_the_weights_are() -> None:
    """As w - (w - mean) it would lose all of a small mean beside a large w."""
    method, tiny = FedOPT(lr=1, momentum=0), torch.tensor([1.2345e-12])
    server = FedOPTServer(Model({"w": torch.tensor([7.0])}), {"w": torch.zeros(1)}, {})
    merged = method.merge(toy_site(), server, {0: Message(Model({"w": tiny}), size=1)}, STEP)
    assert torch.equal(merged.model.weights["w"], tiny)


def test_the_mean_is_by_examples_or_uniform() -> None:
    replies = {0: Message(scalar(0, 0), size=1), 1: Message(scalar(4, 8), size=3)}
    found = {}
    for mean in ("weighted", "uniform"):
        method = FedOPT(lr=1, momentum=0, mean=mean)
        model = method.merge(toy_site(), start(method), replies, STEP).model
        found[mean] = (model.weights["w"].item(), model.buffers["b"].item())
    assert found == {"weighted": (3.0, 6.0), "uniform": (2.0, 4.0)}


@pytest.mark.parametrize("optimiser", EVERY)
def test_buffers_are_the_mean_and_in_no_moment(optimiser: Any) -> None:
    method = FedOPT(optimiser=optimiser, lr=0.05)
    site, sites = toy_sites(method)
    server = method.init_server(site)
    replies = {c: method.train(sites[c], method.publish(server), None, STEP)[0] for c in (0, 2)}
    merged = method.merge(site, server, replies, STEP)
    assert tree.equal(merged.model.buffers, average_models(replies).buffers)
    assert not tree.equal(merged.model.weights, average_models(replies).weights)
    moments = [merged.m] if optimiser == "sgd" else [merged.m, merged.v]
    assert all(moment.keys() == merged.model.weights.keys() for moment in moments)
    assert optimiser != "sgd" or merged.v == {}


def test_momentum_lasts_from_round_to_round_and_through_other_participants() -> None:
    method, site = FedOPT(lr=1, momentum=0.5), toy_site()
    first = method.merge(site, start(method), {0: Message(scalar(2), size=1)}, STEP)
    second = method.merge(site, first, {3: Message(scalar(2), size=9)}, STEP)
    assert first.model.weights["w"].item() == pytest.approx(2)
    assert second.model.weights["w"].item() == pytest.approx(2.5)  # 2 + 0.5 * (2 - 1)


@pytest.mark.parametrize(
    "change",
    [
        {"lr": 0.4},
        {"momentum": 0.1},
        {"mean": "uniform"},
        *({"optimiser": name, "lr": 0.01} for name in ADAPTIVE),
    ],
    ids=str,
)
def test_every_field_changes_the_result(change: dict[str, Any]) -> None:
    assert not tree.equal(after(FedOPT(**change)), after(FedOPT()))


def test_beta2_and_tau_change_an_adaptive_step() -> None:
    plain = path(FedOPT(optimiser="adam"), [0, 0.5])
    assert plain != path(FedOPT(optimiser="adam", beta2=0.5), [0, 0.5])
    assert plain != path(FedOPT(optimiser="adam", tau=0.5), [0, 0.5])


@pytest.mark.parametrize("optimiser", ADAPTIVE)
def test_it_holds_the_contract_with_an_adaptive_optimiser(optimiser: Any) -> None:
    check_method(FedOPT(optimiser=optimiser, lr=0.01, mean="uniform"))


def test_an_adaptive_step_of_the_size_for_sgd_is_cautioned() -> None:
    net = toy_net()
    assert FedOPT().warning(net) == FedOPT(optimiser="yogi", lr=0.1).warning(net) == ""
    for name in ("adam", "yogi"):
        said = FedOPT(optimiser=name).warning(net)
        assert f"{name} moves a weight by up to 0.5 in" in said
        assert said.endswith("method.lr = 0.1")
    assert FedOPT(optimiser="adagrad", lr=0.9).warning(net) == ""  # moves by up to 0.09
    assert "up to 0.2 in" in FedOPT(optimiser="adagrad", lr=2).warning(net)


@pytest.mark.parametrize("optimiser", ADAPTIVE)
def test_the_caution_names_the_first_move_at_its_largest(optimiser: Any) -> None:
    rule: dict[str, Any] = {"optimiser": optimiser, "lr": 2, "momentum": 0.7, "beta2": 0.84}
    method = FedOPT(**rule, tau=1e-9)
    [far] = path(method, [1.5], 0)
    assert far == pytest.approx(0.6 if optimiser == "adagrad" else 1.5)
    assert f"up to {far:.3g} in" in method.warning(toy_net())
    assert path(FedOPT(**rule, tau=1), [1.5], 0) < [far]  # tau beside sqrt(v) shortens it
    assert path(method, [-9], 0) == pytest.approx([-far])  # whatever the clients found


@pytest.mark.parametrize(
    "wrong", [{"lr": -1}, {"momentum": 1}, {"beta2": 1.5}, {"tau": 0}, {"optimiser": "sgdm"}]
)
def test_numbers_that_make_no_optimiser_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        FedOPT(**wrong)
