"""A round with clients that lie, fail, repeat themselves, or were never asked."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from protofed.core import tree
from protofed.core.message import Failure, Message
from protofed.core.method import AnyMethod, ServerState
from protofed.core.model import Model
from protofed.core.serialization import pack_tree
from protofed.core.site import ClientId, RoundContext, Site
from protofed.engines.engine import RoundEvent, require_replies
from protofed.engines.local_engine import LocalEngine
from protofed.errors import DivergedError, ProtofedError
from protofed.federation.round import run_round
from protofed.methods import METHODS
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedexg import FedExg
from protofed.methods.fedproto import FedProto
from protofed.methods.local import Local
from protofed.testing import toy_sites
from tests.methods.test_every_method import QUICK

STEP = RoundContext(0, 2)
Twist = Callable[[dict[ClientId, Message]], Mapping[Any, Any]]


class TwistedEngine(LocalEngine[Any, Any]):
    """An engine whose replies are tampered with on their way."""

    twist: Twist = staticmethod(lambda replies: replies)
    legs: tuple[int, ...] = (0, 1)  # in which it happens

    def exchange(
        self, messages: Mapping[ClientId, Message], context: RoundContext
    ) -> dict[ClientId, Message | Failure]:
        replies: dict[ClientId, Any] = dict(super().exchange(messages, context))
        return dict(self.twist(replies)) if context.exchange in self.legs else replies


def played(
    method: AnyMethod, twist: Twist, least: int = 1, legs: tuple[int, ...] = (0, 1)
) -> tuple[Any, Any, list[RoundEvent]]:
    """The server's state before and after a round with tampered mail, and what was noted."""
    site, sites = toy_sites(method)
    engine, events = TwistedEngine(method, sites), list[RoundEvent]()
    engine.twist, engine.legs = twist, legs
    start = method.init_server(site)
    end = run_round(
        method, site, start, engine, sorted(sites), STEP, note=events.append, least=least
    )
    return start, end, events


def ruined(reply: Message) -> Message:
    """A reply whose first tensor is NaN; one without tensors gets a loss that is."""
    if not list(tree.leaves(reply)):
        return replace(reply, metrics={"loss": math.nan})
    return tree.map(
        lambda leaf: torch.full_like(leaf, math.nan) if leaf.is_floating_point() else leaf, reply
    )


@pytest.mark.parametrize("name", METHODS)
def test_the_round_goes_on_with_the_rest_as_if_the_bad_client_had_been_lost(name: str) -> None:
    method = QUICK.get(name) or METHODS[name]()
    _, bad, events = played(method, lambda r: {c: ruined(m) if c == 2 else m for c, m in r.items()})
    _, lost, none = played(method, lambda r: {c: m for c, m in r.items() if c != 2})
    assert tree.finite(bad)
    assert tree.equal(bad, lost)
    assert {event.client for event in events} == {2}
    assert {(event.client, event.reason) for event in none} == {(2, "sent no reply")}


@pytest.mark.parametrize("name", METHODS)
def test_a_round_of_bad_replies_leaves_the_state_as_it_was(name: str) -> None:
    method = QUICK.get(name) or METHODS[name]()
    for legs in {(0,), (method.exchanges - 1,)}:
        start, end, events = played(
            method, lambda r: {c: ruined(m) for c, m in r.items()}, legs=legs
        )
        assert end is start, "also where an earlier leg had been merged"
        *refused, failed = events
        assert [event.client for event in refused] == [0, 1, 2, 3]
        assert (failed.client, failed.context.exchange) == (None, legs[0])
        assert "0 of 4 replies are left, and 1 are needed" in failed.reason


@pytest.mark.parametrize(("least", "fails"), [(3, False), (4, True)])
def test_fewer_replies_than_needed_fail_the_round(least: int, fails: bool) -> None:
    start, end, _ = played(
        FedAvg(), lambda r: {c: ruined(m) if c == 1 else m for c, m in r.items()}, least
    )
    assert (end is start) == fails


def test_who_was_not_asked_is_not_heard() -> None:
    def joined(replies: dict[ClientId, Message]) -> dict[Any, Message]:
        return {"../\x1b[31m" + "x" * 500: replies[0], 9: replies[0], **replies}

    _, end, events = played(FedAvg(), joined)
    _, clean, _ = played(FedAvg(), lambda replies: replies)
    assert tree.equal(end, clean)
    assert [event.reason for event in events] == ["was not asked"] * 2
    shown = events[0].to_dict()["client"]
    assert shown.isprintable()
    assert len(shown) < 80
    assert events[0].describe.isprintable()
    assert events[1].to_dict()["client"] == 9


def test_replies_repeated_and_in_any_order_count_once() -> None:
    """A thousand deliveries, each reply one to three times and shuffled, give the same bits."""
    method, dice = FedAvg(), random.Random(0)
    site, sites = toy_sites(method)
    start = method.init_server(site)
    messages = method.send(site, start, sorted(sites), STEP)
    once = require_replies(LocalEngine(method, sites).exchange(messages, STEP))

    class Postman(LocalEngine[Any, Any]):
        def exchange(
            self, messages: Mapping[ClientId, Message], context: RoundContext
        ) -> dict[int, Message | Failure]:
            deliveries = [pair for pair in once.items() for _ in range(dice.randint(1, 3))]
            dice.shuffle(deliveries)
            return dict(deliveries)

    def bits() -> bytes:
        return pack_tree(
            run_round(method, site, start, Postman(method, sites), sorted(sites), STEP)
        )

    clean = pack_tree(method.merge(site, start, once, STEP))
    assert {bits() for _ in range(1000)} == {clean}


def diverging(*clients: ClientId) -> Callable[[Mapping[ClientId, Site]], dict[ClientId, Site]]:
    """Sites of which some train with a learning rate that no net survives."""

    def make(sites: Mapping[ClientId, Site]) -> dict[ClientId, Site]:
        wild = {c: replace(s, training=replace(s.training, lr=1e30)) for c, s in sites.items()}
        return {client: (wild if client in clients else sites)[client] for client in sites}

    return make


@pytest.mark.parametrize("name", ["fedavg", "fedbn", "local", "moon", "scaffold", "fedseproto"])
def test_a_client_whose_training_diverges_says_so_and_keeps_its_state(name: str) -> None:
    method, events = METHODS[name](), list[RoundEvent]()
    site, sites = toy_sites(method)
    engine, start = LocalEngine(method, diverging(1)(sites)), method.init_server(site)
    before = tree.clone(engine.state(1))
    end = run_round(method, site, start, engine, sorted(sites), STEP, note=events.append)
    assert tree.finite([end, dict(engine.states)])
    assert tree.equal(engine.state(1), before)
    assert [(event.client, event.diverged) for event in events] == [(1, True)]
    assert "turned NaN or infinite in step " in events[0].reason


def test_without_anybody_to_note_it_an_event_is_an_error() -> None:
    method = Local()
    site, sites = toy_sites(method)
    engine = LocalEngine(method, diverging(3)(sites))
    with pytest.raises(ProtofedError, match=r"round 1, exchange 1: client 3: .* in step "):
        run_round(method, site, method.init_server(site), engine, sorted(sites), STEP)


class BadServer(FedExg):
    """Merges into infinity in the second leg, or finds that its own training diverged."""

    how = ""

    def merge(
        self, site: Site, server: Any, replies: Mapping[int, Message], context: RoundContext
    ) -> Any:
        if self.how == "diverged":
            raise DivergedError(7, "the loss")
        merged = super().merge(site, server, replies, context)
        scaled = tree.map(lambda leaf: leaf * (1e38 if leaf.is_floating_point() else 1), merged)
        return tree.map(lambda leaf: leaf * 10, scaled) if context.exchange else merged


@pytest.mark.parametrize(("how", "word"), [("", "model.weights"), ("diverged", "the loss")])
def test_a_merge_that_is_not_finite_is_not_kept(how: str, word: str) -> None:
    bad = type("Bad", (BadServer,), {"how": how})()
    start, end, events = played(bad, lambda replies: replies)
    assert end is start
    assert [event.client for event in events] == [None]
    assert f"at the server, {word}" in events[0].reason


def test_a_reply_that_is_no_message_at_all_is_refused() -> None:
    start, end, events = played(FedProto(), lambda r: {**r, 1: "hello", 2: None, 3: Model()})
    assert isinstance(end, ServerState)
    assert [event.client for event in events] == [1, 2, 3]
    assert not tree.equal(start, end)
