"""Every method with other optimisers and schedules, or why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from pydantic.dataclasses import dataclass

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import AnyMethod, Method, ServerState
from protofed.core.site import ClientId, RoundContext, Site
from protofed.core.training import Training
from protofed.errors import ProtofedError
from protofed.federation.round import run_round
from protofed.methods import METHODS
from protofed.methods.fedavg import FedAvg
from protofed.methods.scaffold import SCAFFOLD
from protofed.spec.spec_parser import parse_experiment
from protofed.testing import toy_sites
from tests.experiment.conftest import quick
from tests.methods.playing import Played, play

NEEDS_SGD = {"scaffold", "feddc"}
COSINE = Training(epochs=2, batch=8, lr=0.003, schedule="cosine", warmup=1)


def made(name: str) -> AnyMethod:
    method: AnyMethod = parse_experiment({"method": quick(name)}).method
    return method


def played(
    method: AnyMethod, training: Training, rounds: int, planned: int | None = None
) -> Played:
    _, sites = toy_sites(method)
    sites = {client: replace(site, training=training) for client, site in sites.items()}
    return play(method, rounds, planned, sites=sites)


def result(name: str, **more: Any) -> list[Any]:
    end = played(made(name), Training(epochs=1, batch=8, lr=0.003, **more), rounds=2)
    return [end.server, end.states]


@pytest.mark.parametrize("name", METHODS)
def test_it_trains_with_adam_or_says_why_not(name: str) -> None:
    raw = {"method": quick(name), "training": {"optimizer": "adam"}}
    assert ("sgd" in made(name).needs) == (name in NEEDS_SGD)
    if name in NEEDS_SGD:
        words = r"training\.optimizer: .* needs sgd, got adam: .* how far a client moved"
        with pytest.raises(ProtofedError, match=words):
            parse_experiment(raw)
        return
    parse_experiment(raw)
    adam = result(name, optimizer="adam")
    assert tree.finite(adam)
    assert not tree.equal(adam, result(name))


@pytest.mark.parametrize("name", METHODS)
def test_it_trains_with_a_schedule_and_clipped_gradients(name: str) -> None:
    plain, training = result(name), {"schedule": "cosine", "clip_norm": 0.5}
    parse_experiment({"method": quick(name), "training": training})
    for more in ({"schedule": "cosine"}, {"clip_norm": 0.5}):
        other = result(name, **more)
        assert tree.finite(other)
        assert not tree.equal(other, plain)


def test_a_method_built_on_one_that_needs_sgd_needs_it_too() -> None:
    raw = {"method": {"name": "pgct", "base": "scaffold"}, "training": {"optimizer": "adamw"}}
    with pytest.raises(ProtofedError, match="PGCT needs sgd, got adamw"):
        parse_experiment(raw)


def test_every_round_is_one_with_the_scheduled_rate_written_out() -> None:
    method = FedAvg()
    site, toys = toy_sites(method)
    server = method.init_server(site)
    for number, factor in enumerate([0.5, 1.0, 0.75, 0.25]):  # warm-up, then a cosine over three
        rate = COSINE.lr * factor
        training = replace(COSINE, lr=rate, schedule="constant", warmup=0)
        context = RoundContext(number, 4)
        replies = {
            c: method.train(replace(toy, training=training), method.publish(server), None, context)[
                0
            ]
            for c, toy in toys.items()
        }
        server = method.merge(site, server, replies, context)
    torch.testing.assert_close(played(method, COSINE, 4).server.model.weights, server.model.weights)


def test_scaffold_divides_by_the_rate_of_the_round() -> None:
    # After a single step without momentum a variate is the gradient, whatever the rate was.
    training = Training(epochs=1, batch=64, lr=0.4, momentum=0, weight_decay=0)
    full = played(SCAFFOLD(), training, 1, planned=9)
    quarter = played(SCAFFOLD(), replace(training, warmup=3), 1, planned=9)
    assert not tree.equal(full.server.model, quarter.server.model)
    for client, variate in full.states.items():
        torch.testing.assert_close(quarter.states[client], variate, rtol=1e-4, atol=1e-5)


@dataclass(frozen=True)
class RateAtServer(Method):
    """Averages nothing: its model is the learning rate that the server sees."""

    def merge(
        self,
        site: Site,
        server: ServerState,
        replies: Mapping[ClientId, Message],
        context: RoundContext,
    ) -> ServerState:
        weights = tree.map(lambda w: torch.full_like(w, site.training.lr), server.model.weights)
        return replace(server, model=replace(server.model, weights=weights))


class SilentEngine:
    """Replies with what was sent."""

    def exchange(
        self, messages: Mapping[ClientId, Message], context: RoundContext
    ) -> Mapping[ClientId, Message]:
        return {c: replace(m, size=9) for c, m in messages.items()}


def test_hooks_at_the_server_see_the_rate_of_the_round_too() -> None:
    method, engine = RateAtServer(), SilentEngine()
    site, sites = toy_sites(method)
    site = replace(site, training=COSINE, sizes=dict.fromkeys(sites, 9))
    start, context = method.init_server(site), RoundContext(0, 4)
    end = run_round(method, site, start, engine, sorted(sites), context)  # type: ignore[arg-type]
    assert end.model.weights["head.bias"][0].item() == pytest.approx(COSINE.lr / 2)
