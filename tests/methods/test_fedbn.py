from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch
from torch import nn

from protofed.core import tree
from protofed.core.site import RoundContext
from protofed.engines.engine import require_replies
from protofed.engines.local_engine import LocalEngine
from protofed.federation.round import run_round
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedbn import FedBN, batch_norm_names
from protofed.testing import toy_sites

BN = ("encoder.1", "encoder.5")


def test_it_finds_the_batch_norm_layers() -> None:
    assert tuple(batch_norm_names(toy_sites(FedBN())[0].net)) == BN


def test_it_warns_where_it_would_do_nothing() -> None:
    net = toy_sites(FedBN())[0].net
    assert FedBN().warning(net) == ""
    net.encoder = nn.Flatten()
    assert "FedBN is FedAvg" in FedBN().warning(net)


def test_no_batch_norm_entry_ever_travels() -> None:
    site, sites = toy_sites(FedBN())
    method = FedBN()
    server = method.init_server(site)
    messages = method.send(site, server, sorted(sites), RoundContext(0, 1))
    replies = require_replies(LocalEngine(method, sites).exchange(messages, RoundContext(0, 1)))
    for message in (*messages.values(), *replies.values()):
        assert tree.nbytes(message.model.only(*BN)) == 0
        assert message.model.buffers == {}
        assert set(message.model.weights) == set(site.initial_model().without(*BN).weights)


def test_clients_share_everything_but_their_batch_norm() -> None:
    site, sites = toy_sites(FedBN())
    method, engine = FedBN(), LocalEngine(FedBN(), sites)
    run_round(method, site, method.init_server(site), engine, sorted(sites), RoundContext(0, 1))
    shared = method.init_server(site).model.weights.keys()
    assert shared.isdisjoint(engine.states[0].weights)
    assert shared | engine.states[0].weights.keys() == site.initial_model().weights.keys()
    states = [engine.states[client] for client in sorted(sites)]
    for one, other in pairwise(states):
        assert one.weights.keys() == other.weights.keys() != set()
        for name in one.buffers:
            if "running" in name:
                assert not torch.equal(one.buffers[name], other.buffers[name])


def test_on_one_client_it_equals_fedavg() -> None:
    site, sites = toy_sites(FedBN())
    only = {1: sites[1]}
    bn, avg = LocalEngine(FedBN(), only), LocalEngine(FedAvg(), only)
    private, shared = FedBN().init_server(site), FedAvg().init_server(site)
    for number in range(2):
        step = RoundContext(number, 2)
        private = run_round(FedBN(), site, private, bn, [1], step)
        shared = run_round(FedAvg(), site, shared, avg, [1], step)
    assert tree.equal(
        dict(sorted((private.model | bn.states[1]).weights.items())),
        dict(sorted(shared.model.weights.items())),
    )


def test_a_client_is_scored_with_its_own_statistics() -> None:
    site, sites = toy_sites(FedBN())
    method, engine = FedBN(), LocalEngine(FedBN(), sites)
    server = run_round(
        method, site, method.init_server(site), engine, sorted(sites), RoundContext(0, 1)
    )
    x, _ = next(sites[0].eval_batches(sites[0].train))
    answers = [
        method.predict(replace(sites[0]), method.publish(server), engine.states[c], x)
        for c in (0, 3)
    ]
    assert not torch.equal(*answers)
