"""Honest mail: what every method sends on the toy federation, and what it is held against."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.method import AnyMethod
from protofed.core.reply_validation import ReplyTemplate
from protofed.core.site import RoundContext
from protofed.engines.engine import expected_reply
from protofed.methods import METHODS
from protofed.methods.fedproto import FedProto
from protofed.methods.fedseproto import FedSeProto
from protofed.methods.fpl import FPL
from protofed.methods.pgct import PGCT
from tests.methods.playing import play
from tests.methods.test_every_method import QUICK

ROUNDS = 2
VARIANTS: dict[str, AnyMethod] = {
    "fedproto alone": FedProto(param_avg=False),
    "fedseproto alone": FedSeProto(param_avg=False),
    "fpl online": FPL(collect="online"),
    "pgct multi": PGCT(proto_mode="multi", clusters=2),
    "pgct bootstrap": PGCT(proto_mode="bootstrap"),
    "pgct on fpl": PGCT(base=FPL()),
}
NAMES = [*METHODS, *VARIANTS]


class Letter(NamedTuple):
    """A reply and what it is held against."""

    reply: Message
    expected: ReplyTemplate


@cache
def letters(name: str) -> list[Letter]:
    """Two clients' replies in every leg of two rounds of a method."""
    method = VARIANTS.get(name) or QUICK.get(name) or METHODS[name]()
    played = play(method, ROUNDS)
    found = []
    for number, (sent, received) in enumerate(played.exchanges):
        step = RoundContext(number // method.exchanges, ROUNDS, number % method.exchanges)
        for client in (0, 3):
            held = expected_reply(method, played.site, client, sent[client], step)
            found.append(Letter(received[client], held))
    return found


def change(thing: Any, place: int, fn: Callable[[Tensor], object]) -> Any:
    """A copy of a tree in which the tensor number `place` is another thing."""
    seen = -1

    def one(leaf: Tensor) -> Tensor:
        nonlocal seen
        seen += 1
        return fn(leaf.clone()) if seen == place else leaf  # type: ignore[return-value]

    return tree.map(one, thing)


def poke(leaf: Tensor, draw: torch.Generator, value: float) -> Tensor:
    """The tensor with one number, anywhere in it, replaced."""
    flat = leaf.flatten()
    flat[int(torch.randint(len(flat), (), generator=draw))] = value
    return flat.reshape(leaf.shape)
