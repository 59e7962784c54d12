"""One round, the same for every method and every engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

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
    """Each leg sends, lets train and merges; `tell` sees what travelled down and up."""
    for leg in range(method.legs):
        now = step._replace(leg=leg)
        inboxes = method.send(site, server, who, now)
        replies = engine.exchange(inboxes, now)
        server = method.merge(site, server, replies, now)
        tell(inboxes, replies)
    return server
