from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.model import Model
from protofed.core.site import RoundContext
from protofed.engines.local_engine import LocalEngine
from protofed.federation.round import run_round
from protofed.methods.fedavg import FedAvg
from protofed.methods.scaffold import SCAFFOLD, ScaffoldServer
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


def test_three_rounds_of_the_oracle() -> None:
    run = Parabolas(SCAFFOLD())
    for x, c in ((3.43, 2.85), (2.9683, 2.3085), (2.594323, 1.869885)):
        run.round()
        assert value(run.server.model) == pytest.approx(x, abs=1e-6)
        assert value(run.server.variate) == pytest.approx(c, abs=1e-6)
        if run.number == 1:
            own = [value(state) for state in run.states.values()]
            assert own == pytest.approx([3.8, 1.9], abs=1e-6)


@pytest.mark.parametrize("global_lr", [1.0, 0.4, 1.5])
def test_it_is_a_loop_over_uneven_clients_of_whom_some_are_absent_or_lost(global_lr: float) -> None:
    """Every client keeps its variate; the server's is the mean of what it heard of."""
    run = Parabolas(SCAFFOLD(global_lr=global_lr), TARGETS, SIZES, UNEVEN)
    x, c, own = 4.0, 0.0, [0.0, 0.0, 0.0]
    for who, lost in ROUNDS:
        moves: list[float] = []
        changes: list[float] = []
        for n in who:

            def slope(w: float, n: int = n, c: float = c) -> float:
                return (w - TARGETS[n]) - own[n] + c

            count = steps(SIZES[n], UNEVEN)
            y = descent(x, slope, count, UNEVEN)
            new = own[n] - c + (x - y) / reach(count, UNEVEN)
            if n not in lost:
                moves.append(y - x)
                changes.append(new - own[n])
            own[n] = new
        x += global_lr * sum(moves) / len(moves)
        c += len(changes) / 3 * (sum(changes) / len(changes))
        run.round(who, lost)
        assert value(run.server.model) == pytest.approx(x, abs=1e-6)
        assert value(run.server.variate) == pytest.approx(c, abs=1e-6)
    assert [value(run.states[n]) for n in range(3)] == pytest.approx(own, abs=1e-6)


def test_it_settles_at_the_joint_optimum_and_fedavg_does_not() -> None:
    training = replace(UNEVEN, lr=0.05, momentum=0.5, weight_decay=0.0)
    ours, plain = (Parabolas(m, TARGETS, SIZES, training) for m in (SCAFFOLD(), EvenAvg()))
    for number in range(30):
        ours.round(sorted({number % 3, 2}) if number % 2 else None)
        plain.round()
    optimum = sum(TARGETS) / 3
    assert value(ours.server.model) == pytest.approx(optimum, abs=1e-3)
    assert abs(value(plain.server.model) - optimum) > 0.1


def test_at_the_joint_optimum_with_exact_variates_nothing_moves() -> None:
    run = Parabolas(SCAFFOLD(), start=1.0)
    for client, gradient in ((0, 1.0), (1, -1.0)):
        run.states[client] = {"head.weight": torch.full((1, 1), gradient).double()}
    before = tree.clone(run.states)
    run.round()
    assert run.locals == pytest.approx([1.0, 1.0], abs=1e-12)
    assert value(run.server.variate) == pytest.approx(0, abs=1e-12)
    for client, state in before.items():
        assert value(run.states[client]) == pytest.approx(value(state), abs=1e-12)


def test_the_first_round_is_fedavgs_with_equal_voices_bit_for_bit() -> None:
    assert tree.equal(after(SCAFFOLD(), 1), after(EvenAvg(), 1))


def test_the_second_round_is_not() -> None:
    assert not tree.equal(after(SCAFFOLD(), 2), after(EvenAvg(), 2))


def test_a_client_alone_is_never_corrected() -> None:
    site, sites = toy_sites(FedAvg())
    alone = {2: replace(sites[2], sizes={2: 33})}
    site = replace(site, sizes={2: 33})
    method, plain = SCAFFOLD(), FedAvg()
    engine, other = LocalEngine(method, alone), LocalEngine(plain, alone)
    ours, theirs = method.init_server(site), plain.init_server(site)
    for number in range(3):
        ours = run_round(method, site, ours, engine, [2], RoundContext(number, 3))
        theirs = run_round(plain, site, theirs, other, [2], RoundContext(number, 3))
        torch.testing.assert_close(ours.model.weights, theirs.model.weights, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours.variate, engine.states[2], rtol=1e-4, atol=1e-5)


def test_every_gradient_is_corrected_by_the_difference_of_the_variates() -> None:
    method = SCAFFOLD()
    _, sites = toy_sites(method)
    site, batch = sites[0], next(sites[0].batches(RoundContext(0, 1)))
    c = tree.map(torch.cos, site.initial_model().weights)
    own = tree.map(lambda w: w.sin() + 1, site.initial_model().weights)
    received = Message(site.initial_model(), extras={"variate": c})

    def gradients(method: SCAFFOLD | EvenAvg, state: object) -> dict[str, torch.Tensor]:
        model = site.initial_model()
        free = {name: leaf.requires_grad_() for name, leaf in model.weights.items()}
        loss = method.loss(site, received, state, model, batch)  # type: ignore[arg-type]
        return dict(zip(free, torch.autograd.grad(loss, list(free.values())), strict=True))

    plain, ours = gradients(EvenAvg(), None), gradients(method, own)
    for name, leaf in ours.items():
        torch.testing.assert_close(leaf, plain[name] - own[name] + c[name])


def test_the_servers_step_scales_the_mean_move_but_not_buffers() -> None:
    method = SCAFFOLD(global_lr=0.25)
    site, sites = toy_sites(method)
    server, step = method.init_server(site), RoundContext(0, 1)
    messages = method.send(site, server, [0, 3], step)
    replies = {
        c: method.train(sites[c], messages[c], method.init_client(site), step)[0] for c in (0, 3)
    }
    merged = method.merge(site, server, replies, step)
    for name, x in server.model.weights.items():
        moves = [replies[c].model.weights[name] - x for c in (0, 3)]
        expected = x + 0.25 * (moves[0] + moves[1]) / 2
        torch.testing.assert_close(merged.model.weights[name], expected)
    plain = FedAvg().merge(site, FedAvg().init_server(site), replies, step)
    assert tree.equal(merged.model.buffers, plain.model.buffers)
    assert merged.variate.keys() == merged.model.weights.keys()


def test_without_a_learning_rate_nothing_moves() -> None:
    method = SCAFFOLD()
    site, sites = toy_sites(method)
    still = replace(sites[1], training=replace(sites[1].training, lr=0.0))
    state = tree.map(lambda w: w + 1, site.initial_model().weights)
    received = method.send(
        site, ScaffoldServer(site.initial_model(), state), [1], RoundContext(0, 1)
    )[1]
    reply, new = method.train(still, received, state, RoundContext(0, 1))
    assert tree.equal(new, state)
    assert tree.equal(Model(reply.model.weights), Model(site.initial_model().weights))
    assert not any(leaf.any() for leaf in tree.leaves(reply.extras))


def test_a_negative_step_is_refused() -> None:
    with pytest.raises(ValidationError, match="greater than or equal to 0"):
        SCAFFOLD(global_lr=-1)
