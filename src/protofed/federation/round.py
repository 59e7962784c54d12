"""One round, the same for every method and every engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import cast

from protofed.core import tree
from protofed.core.hook_results import check_sent, check_server_state, explain_hook_faults
from protofed.core.message import Failure, Message
from protofed.core.method import C, Method, S
from protofed.core.reply_validation import rejection_reason
from protofed.core.site import ClientId, RoundContext, Site
from protofed.engines.engine import Engine, RoundEvent, expected_reply
from protofed.errors import DivergedError, ProtofedError
from protofed.runtime.resources import explain_oom

Messages = Mapping[ClientId, Message]


class LazySubset(Mapping[ClientId, Message]):
    """Some of the replies, in a given order; each is fetched when it is asked for.

    Replies may lie on disk, so they need not all be in memory.
    """

    def __init__(self, replies: Mapping[ClientId, Message | Failure], who: Sequence[ClientId]):
        self.replies, self.who = replies, who

    def __getitem__(self, client: ClientId) -> Message:
        if client not in self.who:
            raise KeyError(client)
        return cast(Message, self.replies[client])

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self.who)

    def __len__(self) -> int:
        return len(self.who)


class WeightedReplies(Mapping[ClientId, Message]):
    """Replies whose sizes are the weights that the federation gives them; see `Site.weight`.

    So every method that averages by size follows the spec's `weights`.
    """

    def __init__(self, replies: Messages, site: Site):
        self.replies, self.site = replies, site

    def __getitem__(self, client: ClientId) -> Message:
        reply = self.replies[client]
        return replace(reply, size=self.site.weight(reply.size))

    def __iter__(self) -> Iterator[ClientId]:
        return iter(self.replies)

    def __len__(self) -> int:
        return len(self.replies)


def raise_event(event: RoundEvent) -> None:
    """The default of `run_round`'s `note`: raise the event as an error, so that none is missed.

    A run that keeps a record passes its own function instead.
    """
    raise ProtofedError(event.describe)


def run_round(
    method: Method[S, C],
    site: Site,
    server: S,
    engine: Engine,
    who: Sequence[ClientId],
    context: RoundContext,
    tell: Callable[[Messages, Messages], None] = lambda sent, received: None,
    note: Callable[[RoundEvent], None] = raise_event,
    least: int = 1,
) -> S:
    """Run all exchanges of a round; returns the server's new state.

    Each exchange sends messages, lets the clients train, checks their replies and merges the valid
    ones. `tell` gets what was sent and received, `note` each event. A client whose reply is missing
    or refused takes no part in the exchanges that follow. If fewer than `least` clients are left,
    or the merged state is not finite, the round fails and the state from before it is returned.
    """
    before, site = server, site.at_round(context)
    for exchange in range(method.exchanges):
        now = context._replace(exchange=exchange)
        with explain_hook_faults(method, "send"):
            messages = check_sent(method, method.send(site, server, who, now))
        replies = valid_replies(method, site, messages, engine.exchange(messages, now), now, note)
        tell(messages, replies)
        replies = WeightedReplies(replies, site)
        who, failed = list(replies), ""
        if len(who) < least:
            failed = f"{len(who)} of {len(messages)} replies are left, and {least} are needed"
        else:
            server, failed = merge_replies(method, site, server, replies, now)
        if failed:
            note(RoundEvent(now, None, f"{failed}: the server's state stays"))
            return before
    return server


def valid_replies(
    method: Method[S, C],
    site: Site,
    messages: Messages,
    replies: Mapping[ClientId, Message | Failure],
    context: RoundContext,
    note: Callable[[RoundEvent], None],
) -> Messages:
    """The replies that may be merged, in the order of `messages`.

    Every failure, refused reply and reply of a client that was not asked is reported to `note`.
    """
    for client in replies:
        if client not in messages:
            note(RoundEvent(context, client, "was not asked"))
    good: list[ClientId] = []
    for client in messages:
        reply = replies.get(client, Failure("sent no reply"))
        if isinstance(reply, Failure):
            note(RoundEvent(context, client, reply.reason, reply.diverged))
            continue
        expected = expected_reply(method, site, client, messages[client], context)
        if reason := rejection_reason(reply, expected):
            note(RoundEvent(context, client, reason, refused=True))
        else:
            good.append(client)
    return LazySubset(replies, good)


def merge_replies(
    method: Method[S, C], site: Site, server: S, replies: Messages, context: RoundContext
) -> tuple[S, str]:
    """The server's new state and ""; or the old state and the reason why merging failed.

    Merging fails if the method diverges or if a tensor of the new state is not finite.
    """
    try:
        with (
            explain_oom(f"the server, in round {context.round + 1},"),
            explain_hook_faults(method, "merge"),
        ):
            merged = method.merge(site, server, replies, context)
            new = check_server_state(method, "merge", merged)
    except DivergedError as fault:
        return server, f"at the server, {fault}"
    bad = tree.not_finite(new)
    return (server, f"at the server, {bad} turned NaN or infinite") if bad else (new, "")
