"""What a run asks of an engine, and the events that a round reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from protofed.core.hook_results import check_trained, explain_hook_faults
from protofed.core.message import Failure, Message
from protofed.core.method import C, Method, S
from protofed.core.metrics import CorrectCounts
from protofed.core.reply_validation import ReplyTemplate
from protofed.core.site import ClientId, RoundContext, Site
from protofed.errors import DivergedError, ProtofedError, printable_text
from protofed.runtime.resources import explain_oom

# Told how many of the clients of an exchange have replied; a library that nobody watches is silent.
reply_progress: ContextVar[Callable[[int, int], None]] = ContextVar(
    "reply_progress", default=lambda done, asked: None
)
MOST_ID = 60  # characters of a client's id that are shown


class RoundEvent(NamedTuple):
    """Something that went wrong in an exchange: one client's reply, or (no client) the whole round.

    The context counts from 0; texts and events.jsonl count rounds and exchanges from 1.
    """

    context: RoundContext
    client: ClientId | None
    reason: str
    diverged: bool = False  # the client reports that its own training became NaN or infinite
    refused: bool = False  # a reply came, but it does not fit the method's schema

    @property
    def describe(self) -> str:
        """The event on one line, for people."""
        where = f"round {self.context.round + 1}, exchange {self.context.exchange + 1}"
        who = "" if self.client is None else f"client {printable_text(str(self.client), MOST_ID)}: "
        return f"{where}: {who}{self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """As plain data: a line of events.jsonl; rounds and exchanges count from 1."""
        known = self.client is None or type(self.client) is int
        return {
            "round": self.context.round + 1,
            "leg": self.context.exchange + 1,
            "client": self.client if known else printable_text(str(self.client), MOST_ID),
            "reason": self.reason,
        }


def expected_reply(
    method: Method[S, C], site: Site, client: ClientId, received: Message, context: RoundContext
) -> ReplyTemplate:
    """What a client's reply to `received` is compared with; `site` is the server's.

    Combines the method's `reply_schema` and optional parts with the client's declared size.
    """
    template = method.reply_schema(site, received, context)
    return ReplyTemplate(template, method.payload.optional, site.sizes[client])


def require_replies(replies: Mapping[ClientId, Message | Failure]) -> dict[ClientId, Message]:
    """The replies of an exchange in which no client may fail; the first failure is raised."""
    for client, reply in replies.items():
        if isinstance(reply, Failure):
            raise ProtofedError(f"client {client}: {reply.reason}")
    return {client: reply for client, reply in replies.items() if isinstance(reply, Message)}


def try_training(
    method: Method[S, C], site: Site, received: Message, state: C, context: RoundContext
) -> tuple[Message | Failure, C]:
    """Let a client train at the learning rate of the round; returns its reply and its new state.

    If its training diverges, returns a `Failure` and the old state. Running out of memory is raised
    as a `ProtofedError` that names the client.
    """
    try:
        with (
            explain_oom(f"client {site.id}, in round {context.round + 1},"),
            explain_hook_faults(method, "train"),
        ):
            trained = method.train(site.at_round(context), received, state, context)
            return check_trained(method, trained)
    except DivergedError as fault:
        return Failure(str(fault), diverged=True), state


class Engine(Protocol):
    """Brings messages to the clients and replies back, and keeps the clients' private states.

    A method and `run_round` see no difference between engines: in one process, in several, or over
    a network. `news` collects lines for people; whoever shows them empties the list.
    """

    news: list[str]  # lines for people about what happened since it was last emptied

    def exchange(
        self, messages: Mapping[ClientId, Message], context: RoundContext
    ) -> Mapping[ClientId, Message | Failure]:
        """Let each addressed client train: a reply or a failure for each, in any order."""

    def score(
        self, received: Message, who: Sequence[ClientId]
    ) -> dict[ClientId, dict[str, CorrectCounts]]:
        """Score clients' models, or the server's (id `SERVER`), on every test set within reach.

        Returns the counts by client and by domain; domains that could not be scored are left out.
        No state changes.
        """

    def save(self, folder: Path) -> None:
        """Write the private states of all clients into a folder."""

    def load(self, folder: Path) -> None:
        """Read the private states from a folder that `save` wrote."""

    def close(self) -> None:
        """Stop all processes and release resources; the engine cannot be used afterwards."""
