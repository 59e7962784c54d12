"""The engine of a real federation: Flower moves the messages, sites keep their states."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Generic, NamedTuple

from protofed.core.admission import FRAME, decode_reply
from protofed.core.errors import ProtofedError, printable_text
from protofed.core.message import Message
from protofed.core.method import C, Method, S
from protofed.core.pack import pack_tree, unpack_tree
from protofed.core.site import SERVER, ClientId, RoundContext, Site
from protofed.core.tally import Tallies
from protofed.engines.post import NoAnswer, OutgoingRequest, SiteMessenger
from protofed.engines.rounds import RoundEvent, expected_reply
from protofed.engines.wire import SiteRequest, SiteResponse, check_response, counts_from_json

MOST_REASON = 300


class RunInfo(NamedTuple):
    """What the sites are told of a run with every message."""

    name: str  # states are kept under it
    brief: str  # JSON: the spec and what the sites have agreed on
    rounds: int


class SiteRoster(NamedTuple):
    """Who takes part: the clients' sites by name, and how many test images each site has."""

    clients: Mapping[ClientId, str]
    tests: Mapping[str, int]


class FlowerEngine(Generic[S, C]):
    """Asks sites by name; one that does not answer within the deadline is left out of the leg."""

    def __init__(
        self,
        post: SiteMessenger,
        method: Method[S, C],
        server: Site,
        fleet: SiteRoster,
        run: RunInfo,
        deadline: float,
        least: int,
        note: Callable[[RoundEvent], None],
        tell: Callable[[str], None],
    ):
        self.post, self.method, self.server, self.fleet, self.run = post, method, server, fleet, run
        self.deadline, self.least, self.note, self.tell = deadline, least, note, tell
        self.session = secrets.token_hex(8)
        self.start: int | None = None  # the first round of this session
        self.finished = 0
        self.saved: list[int] = []  # rounds behind the checkpoints of this session

    def exchange(
        self, inboxes: Mapping[ClientId, Message], step: RoundContext
    ) -> dict[ClientId, Message]:
        self.finished = step.round + 1
        if self.start is None:
            self.start = step.round
        different = {id(inbox): inbox for inbox in inboxes.values()}  # a broadcast is packed once
        packed = {key: self._letter("train", inbox, step) for key, inbox in different.items()}
        names = {client: self.fleet.clients[client] for client in inboxes}
        held = {
            client: expected_reply(self.method, self.server, client, inbox, step)
            for client, inbox in inboxes.items()
        }
        letters = {
            names[client]: OutgoingRequest(packed[id(inbox)], held[client].max_bytes)
            for client, inbox in inboxes.items()
        }
        answers = self.post.ask(letters, self.deadline, self.least)
        replies = {}
        for client in inboxes:
            try:
                blob = _there(answers[names[client]])
                replies[client] = self._checked(
                    decode_reply(blob, held[client]), "train", step
                ).reply
            except ProtofedError as fault:
                self._note(step, client, str(fault))
        return replies

    def _letter(self, what: str, inbox: Message, step: RoundContext) -> bytes:
        floor = self.saved[-2] if len(self.saved) > 1 else 0
        start = self.start or 0
        run, session = self.run.name, self.session
        return pack_tree(
            SiteRequest(what, self.run.brief, run, session, start, floor, *step, inbox)
        )

    def _checked(self, answer: object, what: str, step: RoundContext) -> SiteResponse:
        return check_response(
            answer, (what, self.run.name, self.session, step.round, step.exchange)
        )

    def _note(self, step: RoundContext, client: ClientId, reason: str) -> None:
        site = self.fleet.clients[client]
        self.note(RoundEvent(step, client, printable_text(f"{site}: {reason}", MOST_REASON)))

    def score(self, inbox: Message, who: Sequence[ClientId]) -> dict[ClientId, dict[str, Tallies]]:
        """Each site counts on its own test images; of a client's own model only there."""
        clients = {name: client for client, name in self.fleet.clients.items()}
        everyone = [*self.fleet.tests] if SERVER in who else [self.fleet.clients[c] for c in who]
        step = RoundContext(self.finished, self.run.rounds)
        letter = OutgoingRequest(self._letter("score", inbox, step), FRAME)
        answers = self.post.ask(dict.fromkeys(everyone, letter), self.deadline)
        rows: dict[ClientId, dict[str, Tallies]] = {client: {} for client in who}
        for name in everyone:
            try:
                told = self._checked(
                    unpack_tree(_there(answers[name]), most=FRAME), "score", step
                ).told
                row = rows[SERVER if SERVER in rows else clients[name]]
                row[name] = counts_from_json(told, self.fleet.tests[name])
            except ProtofedError as fault:
                self.tell(printable_text(f"{name} has not scored: {fault}", MOST_REASON))
        return rows

    def save(self, folder: Path) -> None:
        """Nothing to write: each site has kept its own states under their rounds."""
        self.saved.append(self.finished)

    def load(self, folder: Path) -> None:
        """Nothing to read: the next message's round tells the sites where the run stands."""

    def close(self) -> None:
        """Nothing runs here; the sites go on waiting for messages."""


def _there(answer: bytes | NoAnswer) -> bytes:
    if isinstance(answer, NoAnswer):
        raise ProtofedError(answer.reason)
    return answer
