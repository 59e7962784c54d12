from __future__ import annotations

from dataclasses import replace
from itertools import chain

import torch

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import Method
from protofed.core.site import ClientId, RoundContext, Site
from protofed.core.training import fit_model
from protofed.engines.local_engine import LocalEngine
from protofed.federation.round import Messages, run_round
from protofed.methods.fedexg import FedExg
from protofed.ops.model_exchange import ExchangeServer
from protofed.testing import check_method, toy_sites
from tests.methods.playing import after


def one_round(
    sites: dict[ClientId, Site], site: Site
) -> tuple[ExchangeServer, list[tuple[Messages, Messages]]]:
    method, exchanges = FedExg(), list[tuple[Messages, Messages]]()
    start = method.init_server(site)
    engine = LocalEngine(method, sites)
    server = run_round(
        method,
        site,
        start,
        engine,
        sorted(sites),
        RoundContext(0, 1),
        lambda *both: exchanges.append(both),
    )
    return server, exchanges


def test_it_holds_the_contract() -> None:
    check_method(FedExg())


def test_every_model_is_trained_on_at_another_client() -> None:
    site, sites = toy_sites(FedExg())
    server, [(_, first), (second, _)] = one_round(sites, site)
    for client in sites:
        givers = [c for c in sites if tree.equal(first[c].model, second[client].model)]
        assert len(givers) == 1
        assert givers != [client]
    assert len({float(m.model.weights["head.bias"][0]) for m in second.values()}) == len(sites)
    assert server.pending_replies == {}


def test_the_mean_is_by_the_hosts_sizes() -> None:
    site, sites = toy_sites(FedExg())
    server, [_, (_, last)] = one_round(sites, site)
    sizes = {client: len(sites[client].train) for client in sites}
    for name, leaf in server.model.weights.items():
        total = torch.zeros_like(leaf, dtype=torch.float64)
        for client, size in sizes.items():
            total += size * last[client].model.weights[name]
        assert torch.allclose(leaf.double(), total / sum(sizes.values()), atol=1e-6)


def test_the_first_leg_leaves_the_product_alone() -> None:
    method = FedExg()
    site, sites = toy_sites(method)
    start = method.init_server(site)
    reply, _ = method.train(sites[1], method.publish(start), None, RoundContext(0, 1))
    between = method.merge(site, start, {1: reply}, RoundContext(0, 1))
    assert tree.equal(between.model, start.model)
    assert tree.equal(between.pending_replies, {1: reply})


def test_alone_and_without_momentum_it_is_one_training_over_both_legs() -> None:
    """An identity exchange is FedAvg with the epochs of both legs; only momentum starts anew."""
    method = FedExg()
    site, sites = toy_sites(method)
    client = replace(sites[2], training=replace(sites[2].training, epochs=1, momentum=0.0))
    server, _ = one_round({2: client}, site)
    batches = chain(client.batches(RoundContext(0, 1, 0)), client.batches(RoundContext(0, 1, 1)))
    received = Message(site.initial_model())
    plain = fit_model(
        site.initial_model(),
        batches,
        lambda model, batch: Method().loss(client, received, None, model, batch),
        client.training,
    )
    assert tree.equal(server.model, plain.trained)


def test_a_box_left_over_by_a_lost_round_is_thrown_away() -> None:
    method = FedExg()
    site, sites = toy_sites(method)
    start = method.init_server(site)
    reply, _ = method.train(sites[1], method.publish(start), None, RoundContext(0, 2))
    stale = method.merge(site, start, {0: reply, 3: reply}, RoundContext(0, 2))
    assert list(method.merge(site, stale, {1: reply}, RoundContext(1, 2)).pending_replies) == [1]


def test_full_epochs_train_longer() -> None:
    assert not tree.equal(after(FedExg(phase_epochs="full")), after(FedExg()))
