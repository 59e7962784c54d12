"""Every method on federations that nobody would plan and everybody meets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch

from protofed.core import tree
from protofed.core.message import Failure, Message
from protofed.core.method import AnyMethod
from protofed.core.prototypes import Prototypes
from protofed.core.site import ArrayDataset, ClientId, RoundContext
from protofed.core.training import Training
from protofed.engines.engine import require_replies
from protofed.engines.local_engine import LocalEngine
from protofed.federation.round import run_round
from protofed.methods import METHODS
from protofed.testing import toy_sites
from protofed.testing.method_checks import CLASSES, toy_data
from tests.methods.test_every_method import QUICK

BATCH = 4
Twist = Callable[[Message, int], Message]
Data = dict[ClientId, ArrayDataset]


def only(client: ClientId, *labels: int) -> ArrayDataset:
    """The first images of a client's classes, one for each label that is named."""
    full = toy_data(client, 60)
    rows = []
    for place, label in enumerate(labels):
        found = (full.labels == label).nonzero().flatten()
        rows.append(found[place % len(found)])
    return full.take(torch.stack(rows))


def alike(client: ClientId) -> ArrayDataset:
    """The same image for every class."""
    data = only(client, *(label for label in range(CLASSES) if label != client))
    return ArrayDataset(data.images[:1].expand(len(data), -1, -1, -1).clone(), data.labels)


FEDERATIONS: dict[str, Data] = {
    "a class that nobody has": {c: only(c, *[x for x in (0, 1, 2) if x != c] * 2) for c in (0, 1)},
    "one class, the same for all": {c: only(c, 4, 4, 4) for c in (0, 1, 2)},
    "one class each": {c: only(c, *[(c + 1) % CLASSES] * 3) for c in (0, 1, 2)},
    "one image of each class": {c: only(c, *(x for x in range(5) if x != c)) for c in (0, 1)},
    "one image": {c: only(c, 4) for c in (0, 1)},
    "sizes around a batch": {c: toy_data(c, n) for c, n in enumerate((1, 2, BATCH, BATCH + 1))},
    "one client": {2: toy_data(2, 9)},
    "two clients": {c: toy_data(c, 9) for c in (0, 3)},
    "three clients": {c: toy_data(c, 9) for c in (0, 1, 3)},
    "images that are all alike": {c: alike(c) for c in (0, 1, 2)},
}


def played(name: str, data: Data, twist: Twist = lambda reply, number: reply) -> tuple[Any, Any]:
    """Server and clients after two rounds in which every reply was admitted."""
    method: AnyMethod = QUICK.get(name) or METHODS[name]()
    site, toys = toy_sites(method)
    training = Training(epochs=1, batch=BATCH, lr=0.003)
    site = replace(site, sizes={c: len(d) for c, d in data.items()}, training=training)
    sites = {c: replace(site, id=c, domain=toys[c].domain, train=d) for c, d in data.items()}

    class Twisting(LocalEngine[Any, Any]):
        def exchange(
            self, messages: Mapping[int, Message], context: RoundContext
        ) -> dict[int, Message | Failure]:
            replies = require_replies(super().exchange(messages, context))
            return {client: twist(reply, context.round) for client, reply in replies.items()}

    engine, server = Twisting(method, sites), method.init_server(site)
    for number in range(2):
        server = run_round(method, site, server, engine, sorted(sites), RoundContext(number, 2))
    for client, its in sites.items():
        x, _ = next(its.eval_batches(its.train))
        scores = method.predict(its, method.publish(server), engine.state(client), x)
        assert scores.shape == (len(x), CLASSES)
        assert scores.isfinite().all()
    return server, engine.states


@pytest.mark.parametrize("case", FEDERATIONS)
@pytest.mark.parametrize("name", METHODS)
def test_it_stays_finite(name: str, case: str) -> None:
    assert tree.finite(list(played(name, FEDERATIONS[case])))


def all_zero(table: Prototypes) -> Prototypes:
    return replace(table, vectors=torch.zeros_like(table.vectors))


def all_equal(table: Prototypes) -> Prototypes:
    return replace(table, vectors=torch.full_like(table.vectors, 0.3))


@pytest.mark.parametrize("made", [all_zero, all_equal])
@pytest.mark.parametrize(
    "name", [n for n in METHODS if {"protos", "prototypes"} & {*METHODS[n]().payload.up}]
)
def test_prototypes_that_are_all_zero_or_all_the_same_break_nothing(
    name: str, made: Callable[[Prototypes], Prototypes]
) -> None:
    """As they come from dead or collapsed features, in the first round of two."""

    def twist(reply: Message, number: int) -> Message:
        if number:
            return reply
        protos = None if reply.protos is None else made(reply.protos)
        extras = {n: made(p) if isinstance(p, Prototypes) else p for n, p in reply.extras.items()}
        return replace(reply, protos=protos, extras=extras)

    data = {client: toy_data(client, 9) for client in (0, 1, 2)}
    assert tree.finite(list(played(name, data, twist)))


def test_a_class_that_nobody_has_gets_no_prototype() -> None:
    for name in ("fpl", "fedproto", "fedproc", "fedtgp", "fedmlp", "fedseproto"):
        server, _ = played(name, FEDERATIONS["a class that nobody has"])
        assert set(server.protos.labels.tolist()) == {0, 1, 2}
