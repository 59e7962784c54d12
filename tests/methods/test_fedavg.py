from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.model import Model
from protofed.core.site import RoundContext, Site
from protofed.core.training import Training
from protofed.engines.engine import require_replies
from protofed.engines.local_engine import LocalEngine
from protofed.federation.round import run_round
from protofed.methods.fedavg import FedAvg
from protofed.testing import toy_sites

STEP = RoundContext(0, 1)


def plain_sgd(site: Site, context: RoundContext) -> Model:
    """A centralised loop as everybody writes it, on the site's own net."""
    net = site.net
    start = {**site.initial_model().weights, **site.initial_model().buffers}
    net.load_state_dict(start)
    optimiser = torch.optim.SGD(
        net.parameters(),
        lr=site.training.lr,
        momentum=site.training.momentum,
        weight_decay=site.training.weight_decay,
    )
    for batch in site.batches(context):
        net.train(len(batch.y) > 1)
        optimiser.zero_grad()
        F.cross_entropy(net(batch.x).logits, batch.y).backward()
        optimiser.step()
    trained = site.initial_model()
    net.load_state_dict(start)
    return trained


def test_with_one_client_it_is_plain_sgd_bit_for_bit() -> None:
    server_site, sites = toy_sites(FedAvg())
    method = FedAvg()
    engine = LocalEngine(method, {2: sites[2]})
    merged = run_round(method, server_site, method.init_server(server_site), engine, [2], STEP)
    assert tree.equal(merged.model, plain_sgd(sites[2], STEP))


def test_weights_and_batch_norm_buffers_are_the_weighted_mean() -> None:
    server_site, sites = toy_sites(FedAvg())
    method = FedAvg()
    server = method.init_server(server_site)
    messages = method.send(server_site, server, sorted(sites), STEP)
    replies = require_replies(LocalEngine(method, sites).exchange(messages, STEP))
    merged = method.merge(server_site, server, replies, STEP).model
    total = sum(len(site.train) for site in sites.values())
    names = list(merged.weights) + list(merged.buffers)
    assert any("running_var" in name for name in names)
    for name in names:
        by_hand = sum(
            (r.model.weights | r.model.buffers)[name].double() * len(sites[c].train) / total
            for c, r in replies.items()
        )
        got = (merged.weights | merged.buffers)[name]
        assert isinstance(by_hand, torch.Tensor)
        expected = by_hand if got.is_floating_point() else by_hand.round()
        torch.testing.assert_close(got.double(), expected, rtol=1e-6, atol=1e-7)
        start = (server.model.weights | server.model.buffers)[name]
        assert not torch.equal(got, start), f"{name} never moved"


def test_sizes_one_and_three_with_weights_zero_and_four_give_three() -> None:
    server_site, _ = toy_sites(FedAvg())
    replies = {
        0: Message(Model({"w": torch.tensor(0.0)}, {"b": torch.tensor(0.0)}), size=1),
        1: Message(Model({"w": torch.tensor(4.0)}, {"b": torch.tensor(4.0)}), size=3),
    }
    method = FedAvg()
    merged = method.merge(server_site, method.init_server(server_site), replies, STEP).model
    assert merged.weights["w"].item() == merged.buffers["b"].item() == 3.0


def test_a_learning_rate_of_zero_leaves_the_weights() -> None:
    server_site, sites = toy_sites(FedAvg())
    still = {c: replace(s, training=Training(lr=0, batch=8)) for c, s in sites.items()}
    method = FedAvg()
    server = method.init_server(server_site)
    merged = run_round(method, server_site, server, LocalEngine(method, still), sorted(still), STEP)
    assert tree.equal(merged.model.weights, server.model.weights)


def test_clients_with_equal_data_average_to_each_of_them() -> None:
    server_site, sites = toy_sites(FedAvg())
    one = sites[3]
    method = FedAvg()
    reply, _ = method.train(one, method.publish(method.init_server(server_site)), None, STEP)
    merged = method.merge(
        server_site, method.init_server(server_site), {0: reply, 1: reply, 2: reply}, STEP
    )
    assert tree.equal(merged.model, reply.model)


@pytest.mark.parametrize("size", [1, 2, 8, 9])
def test_odd_client_sizes_stay_finite(size: int) -> None:
    server_site, sites = toy_sites(FedAvg())
    small = replace(sites[3], train=sites[3].train.take(torch.arange(size)))
    method = FedAvg()
    reply, _ = method.train(small, method.publish(method.init_server(server_site)), None, STEP)
    assert all(leaf.isfinite().all() for leaf in tree.leaves(reply))
    assert reply.size == size
