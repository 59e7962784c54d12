"""One round, the same for every method and every engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from protofed.core import tree
from protofed.core.errors import ProtofedError
from protofed.core.message import Message
from protofed.core.method import C, Method, S
from protofed.core.site import ClientId, Site, Step
from protofed.engines.base import Engine

Mail = Mapping[ClientId, Message]


def play_round(
    method: Method[S, C],
    site: Site,
    server: S,
    engine: Engine,
    who: Sequence[ClientId],
    step: Step,
    tell: Callable[[Mail, Mail], None] = lambda sent, received: None,
) -> S:
    """Each leg sends, lets train and merges; `tell` sees what travelled down and up.

    Who does not reply is left out of the legs that follow; without any reply nothing changes.
    """
    for leg in range(method.legs):
        now = step._replace(leg=leg)
        inboxes = method.send(site, server, who, now)
        replies = engine.exchange(inboxes, now)
        tell(inboxes, replies)
        who = [client for client in who if client in replies]
        if not who:
            return server
        for client, reply in replies.items():
            _check_finite(client, reply, now)
        server = method.merge(site, server, replies, now)
    return server


def _check_finite(client: ClientId, reply: Message, step: Step) -> None:
    """Stop before a diverged client spoils the federation."""
    if not tree.finite(reply):
        raise ProtofedError(
            f"client {client} sent NaN or infinity in round {step.round + 1}: its training "
            f"diverged\nlower training.lr (or the method's weights) and run again"
        )
