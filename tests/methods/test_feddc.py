from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.site import RoundContext
from protofed.methods.fedavg import FedAvg
from protofed.methods.feddc import FedDC, FedDCClient
from protofed.methods.feddyn import FedDyn
from protofed.methods.fedprox import FedProx
from protofed.ops.control_variates import relative_size
from protofed.testing import toy_sites
from tests.methods.parabolas import (
    ROUNDS,
    SIZES,
    TARGETS,
    UNEVEN,
    EvenAvg,
    Parabolas,
    descent,
    reach,
    steps,
    value,
)
from tests.methods.playing import after


def test_two_rounds_of_the_oracle() -> None:
    run = Parabolas(FedDC(alpha=0.5))
    run.round()
    assert run.locals == pytest.approx([3.26, 3.63], abs=1e-6)
    states = list(run.states.values())
    assert [value(s.drift) for s in states] == pytest.approx([-0.74, -0.37], abs=1e-6)
    assert [value(s.variate) for s in states] == pytest.approx([3.7, 1.85], abs=1e-6)
    assert value(run.server.variate) == pytest.approx(2.775, abs=1e-6)
    assert value(run.method.publish(run.server).model) == pytest.approx(3.445, abs=1e-6)
    run.round()
    assert run.start == pytest.approx(2.89, abs=1e-6)
    assert run.locals == pytest.approx([2.594925, 2.58845], abs=1e-6)
    assert value(run.server.client_start()) == pytest.approx(1.738375, abs=1e-6)


@pytest.mark.parametrize("clip", [0.0, 1.5])
def test_it_is_a_loop_over_uneven_clients_of_whom_some_are_absent_or_lost(clip: float) -> None:
    """Every client keeps drift and gradient; the server's means are of what it heard of."""
    alpha = 0.3
    run = Parabolas(FedDC(alpha=alpha, clip=clip), TARGETS, SIZES, UNEVEN)
    cloud, G = 4.0, 0.0
    h, g, heard = ([0.0, 0.0, 0.0] for _ in range(3))
    for who, lost in ROUNDS:
        ends: list[float] = []
        delta = 0.0
        for n in who:
            r, count = 3 * SIZES[n] / sum(SIZES), steps(SIZES[n], UNEVEN)

            def slope(
                w: float, n: int = n, r: float = r, at: float = cloud, whole: float = G
            ) -> float:
                return (w - TARGETS[n]) + alpha / r * (w - (at - h[n])) + whole / r - g[n]

            end = descent(cloud, slope, count, UNEVEN, clip)
            new = g[n] - G / r - (end - cloud) / reach(count, UNEVEN)
            if n not in lost:
                ends.append(end)
                heard[n] += end - cloud
                delta += r * (new - g[n])
            h[n] += end - cloud
            g[n] = new
        cloud = sum(ends) / len(ends) + sum(heard) / 3
        G += delta / 3
        run.round(who, lost)
        assert run.locals == pytest.approx(ends, abs=1e-6)
        assert value(run.server.client_start()) == pytest.approx(cloud, abs=1e-6)
        assert value(run.server.variate) == pytest.approx(G, abs=1e-6)
    for n in range(3):
        assert value(run.states[n].drift) == pytest.approx(h[n], abs=1e-6)
        assert value(run.states[n].variate) == pytest.approx(g[n], abs=1e-6)


def test_it_settles_where_the_whole_federations_gradient_is_zero() -> None:
    training = replace(UNEVEN, lr=0.1, momentum=0.0, weight_decay=0.0)
    ours, plain = (Parabolas(m, TARGETS, SIZES, training) for m in (FedDC(alpha=1), EvenAvg()))
    for number in range(30):
        ours.round(sorted({number % 3, 2}) if number % 2 else None)
        plain.round()
    optimum = sum(a * n for a, n in zip(TARGETS, SIZES, strict=True)) / sum(SIZES)
    assert value(ours.server.model) == pytest.approx(optimum, abs=1e-3)
    assert abs(value(plain.server.model) - optimum) > 0.1


def test_the_first_round_with_alpha_zero_is_fedavgs_with_equal_voices_bit_for_bit() -> None:
    assert tree.equal(after(FedDC(alpha=0), 1), after(EvenAvg(), 1))
    assert not tree.equal(after(FedDC(alpha=0), 2), after(EvenAvg(), 2))


@pytest.mark.parametrize("method", [FedDC(alpha=1), FedDC(alpha=0), FedDC(clip=0.1)])
def test_alpha_and_clip_move_the_result(method: FedDC) -> None:
    assert not tree.equal(after(method), after(FedDC()))


def test_without_variates_and_alpha_a_client_does_as_with_fedavg_bit_for_bit() -> None:
    method = FedDC(alpha=0)
    site, sites = toy_sites(method)
    for number, client in enumerate(sites.values()):
        start = method.init_client(site)
        state = FedDCClient(tree.map(lambda w: w + 1, start.drift), start.variate)
        received = Message(site.initial_model(), extras={"variate": start.variate})
        mine, _ = method.train(client, received, state, RoundContext(number, 9))
        theirs, _ = FedAvg().train(client, received, None, RoundContext(number, 9))
        assert tree.equal(mine.model, theirs.model)


def test_in_its_first_round_a_client_does_as_with_fedprox_and_feddyn() -> None:
    method = FedDC(alpha=2)
    site, sites = toy_sites(method)
    received = method.send(site, method.init_server(site), [1], RoundContext(0, 1))[1]
    mine, _ = method.train(sites[1], received, method.init_client(site), RoundContext(0, 1))
    mu, dyn = 2 / relative_size(site, 1), FedDyn(alpha=2)
    prox, _ = FedProx(mu=mu).train(sites[1], received, None, RoundContext(0, 1))
    other, _ = dyn.train(sites[1], received, dyn.init_client(site), RoundContext(0, 1))
    torch.testing.assert_close(mine.model.weights, prox.model.weights)
    torch.testing.assert_close(mine.model.weights, other.model.weights)


def test_the_loss_is_a_loop_over_all_weights() -> None:
    method = FedDC(alpha=0.7)
    _, sites = toy_sites(method)
    site, batch, r = sites[3], next(sites[3].batches(RoundContext(0, 1))), 40 * 4 / 114
    model = site.initial_model()
    start = tree.map(lambda w: w.float() + 0.1, site.initial_model())
    h, g, G = (tree.map(fn, model.weights) for fn in (torch.sin, torch.cos, torch.tanh))
    received = Message(start, extras={"variate": G})
    found = method.loss(site, received, FedDCClient(h, g), tree.clone(model), batch).item()
    expected = EvenAvg().loss(site, received, None, tree.clone(model), batch).item()
    for name, w in model.weights.items():
        expected += 0.7 / (2 * r) * float((w - (start.weights[name] - h[name])).square().sum())
        expected += float((w * (G[name] / r - g[name])).sum())
    assert found == pytest.approx(expected, rel=1e-4)


def test_buffers_are_fedavgs_and_have_neither_drift_nor_variate() -> None:
    method = FedDC()
    site, sites = toy_sites(method)
    server, step = method.init_server(site), RoundContext(0, 1)
    messages = method.send(site, server, [0, 3], step)
    replies = {
        c: method.train(sites[c], messages[c], method.init_client(site), step)[0] for c in (0, 3)
    }
    merged = method.merge(site, server, replies, step)
    plain = FedAvg().merge(site, FedAvg().init_server(site), replies, step)
    assert tree.equal(merged.model.buffers, plain.model.buffers)
    assert merged.drift.keys() == merged.variate.keys() == merged.model.weights.keys()


def test_without_a_learning_rate_nothing_moves() -> None:
    method = FedDC()
    site, sites = toy_sites(method)
    still = replace(sites[1], training=replace(sites[1].training, lr=0.0))
    ones = tree.map(torch.ones_like, site.initial_model().weights)
    received = Message(site.initial_model(), extras={"variate": ones})
    reply, new = method.train(still, received, FedDCClient(ones, ones), RoundContext(0, 1))
    assert tree.equal(new, FedDCClient(ones, ones))
    assert not any(leaf.any() for leaf in tree.leaves(reply.extras))


@pytest.mark.parametrize("field", ["alpha", "clip"])
def test_negative_numbers_are_refused(field: str) -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        FedDC(**{field: -1})
