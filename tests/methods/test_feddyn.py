from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.model import Model
from protofed.core.site import RoundContext
from protofed.methods.feddyn import FedDyn
from protofed.methods.fedprox import FedProx
from protofed.ops.control_variates import relative_size
from protofed.ops.losses import proximal_term
from protofed.testing import toy_sites
from tests.methods.parabolas import (
    ROUNDS,
    SIZES,
    TARGETS,
    UNEVEN,
    EvenAvg,
    Parabolas,
    descent,
    steps,
    value,
)
from tests.methods.playing import after


def test_two_rounds_of_the_oracle() -> None:
    run = Parabolas(FedDyn(alpha=0.5))
    run.round()
    assert run.locals == pytest.approx([3.26, 3.63], abs=1e-6)
    assert [value(s) for s in run.states.values()] == pytest.approx([-0.74, -0.37], abs=1e-6)
    assert value(run.method.publish(run.server).model) == pytest.approx(3.445, abs=1e-6)
    run.round()
    assert run.start == pytest.approx(2.89, abs=1e-6)
    assert run.locals == pytest.approx([2.4238, 2.759575], abs=1e-6)
    assert value(run.method.publish(run.server).model) == pytest.approx(2.5916875, abs=1e-6)
    assert value(run.server.client_start()) == pytest.approx(1.738375, abs=1e-6)


@pytest.mark.parametrize("clip", [0.0, 1.5])
def test_it_is_a_loop_over_uneven_clients_of_whom_some_are_absent_or_lost(clip: float) -> None:
    """Every client keeps all its moves; the server's mean is of those that it heard of."""
    alpha = 0.3
    run = Parabolas(FedDyn(alpha=alpha, clip=clip), TARGETS, SIZES, UNEVEN)
    cloud = mean = 4.0
    own, heard = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
    for who, lost in ROUNDS:
        ends: list[float] = []
        for n in who:
            weight = alpha / (3 * SIZES[n] / sum(SIZES))

            def slope(w: float, n: int = n, a: float = weight, at: float = cloud) -> float:
                return (w - TARGETS[n]) + a * (own[n] - at) + a * w

            end = descent(cloud, slope, steps(SIZES[n], UNEVEN), UNEVEN, clip)
            own[n] += end - cloud
            if n not in lost:
                ends.append(end)
                heard[n] += end - cloud
        mean = sum(ends) / len(ends)
        cloud = mean + sum(heard) / 3
        run.round(who, lost)
        assert run.locals == pytest.approx(ends, abs=1e-6)
        assert value(run.server.model) == pytest.approx(mean, abs=1e-6)
        assert value(run.server.client_start()) == pytest.approx(cloud, abs=1e-6)
    assert [value(run.states[n]) for n in range(3)] == pytest.approx(own, abs=1e-6)


def test_it_settles_where_the_whole_federations_gradient_is_zero() -> None:
    training = replace(UNEVEN, lr=0.1, momentum=0.0, weight_decay=0.0)
    ours, plain = (Parabolas(m, TARGETS, SIZES, training) for m in (FedDyn(alpha=2), EvenAvg()))
    for number in range(30):
        ours.round(sorted({number % 3, 2}) if number % 2 else None)
        plain.round()
    optimum = sum(a * n for a, n in zip(TARGETS, SIZES, strict=True)) / sum(SIZES)
    assert value(ours.server.model) == pytest.approx(optimum, abs=1e-3)
    assert abs(value(plain.server.model) - optimum) > 0.1


def test_with_alpha_zero_it_is_fedavg_with_equal_voices_bit_for_bit() -> None:
    assert tree.equal(after(FedDyn(alpha=0), 3), after(EvenAvg(), 3))


@pytest.mark.parametrize("method", [FedDyn(alpha=1), FedDyn(alpha=0), FedDyn(clip=0.1)])
def test_alpha_and_clip_move_the_result(method: FedDyn) -> None:
    assert not tree.equal(after(method), after(FedDyn()))


def test_in_its_first_round_a_client_does_as_with_fedprox() -> None:
    method = FedDyn(alpha=2, clip=0)
    site, sites = toy_sites(method)
    received = Message(site.initial_model())
    for client in sites.values():
        mine, _ = method.train(client, received, method.init_client(client), RoundContext(0, 1))
        mu = 2 / relative_size(client, client.id)
        theirs, _ = FedProx(mu=mu).train(client, received, None, RoundContext(0, 1))
        torch.testing.assert_close(mine.model.weights, theirs.model.weights)


def test_the_loss_is_the_codes_but_for_a_constant() -> None:
    """CE + a <w, s - start> + a / 2 ||w||^2, over weights; buffers do not count."""
    method = FedDyn(alpha=0.7)
    _, sites = toy_sites(method)
    site, batch = sites[1], next(sites[1].batches(RoundContext(0, 1)))
    received = Message(site.initial_model())
    state = tree.map(lambda w: 0.1 * w.sin(), received.model.weights)
    alpha = 0.7 / (4 * 24 / 114)
    gaps = []
    for factor in (1.0, 1.3, 0.2):
        weights = {n: factor * w + 0.01 for n, w in received.model.weights.items()}
        model = Model(weights, tree.clone(received.model.buffers))
        value = method.loss(site, received, state, tree.clone(model), batch).item()
        term = 0.0
        for name, w in weights.items():
            term += float((w * (state[name] - received.model.weights[name])).sum())
            term += float((w * w).sum()) / 2
        task = EvenAvg().loss(site, received, None, model, batch).item()
        gaps.append(value - task - alpha * term)
    assert gaps == pytest.approx([gaps[0]] * 3, abs=1e-4)
    constant = proximal_term(received.model, tree.map(torch.zeros_like, received.model)).item()
    assert gaps[0] == pytest.approx(alpha * constant, abs=1e-4)


def test_buffers_are_averaged_by_size_and_have_no_state() -> None:
    method = FedDyn()
    site, sites = toy_sites(method)
    server, step = method.init_server(site), RoundContext(0, 1)
    messages = method.send(site, server, [0, 3], step)
    outcomes = {
        c: method.train(sites[c], messages[c], method.init_client(site), step) for c in (0, 3)
    }
    merged = method.merge(site, server, {c: reply for c, (reply, _) in outcomes.items()}, step)
    assert merged.drift.keys() == outcomes[0][1].keys() == site.initial_model().weights.keys()
    for name, leaf in merged.model.buffers.items():
        parts = [outcomes[c][0].model.buffers[name].double() for c in (0, 3)]
        expected = (17 * parts[0] + 40 * parts[1]) / 57
        torch.testing.assert_close(
            leaf.double(), expected, atol=0.5 if leaf.ndim == 0 else 1e-6, rtol=0
        )


@pytest.mark.parametrize("field", ["alpha", "clip"])
def test_negative_numbers_are_refused(field: str) -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        FedDyn(**{field: -1})
