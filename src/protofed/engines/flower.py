"""The engine of a real federation: Flower moves the messages, sites keep their states."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Generic, NamedTuple

from protofed.core.admission import FRAME, opened
from protofed.core.errors import ProtofedError, printable
from protofed.core.message import Message
from protofed.core.method import C, Method, S
from protofed.core.pack import pack, unpack
from protofed.core.site import SERVER, ClientId, Site, Step
from protofed.core.tally import Tallies
from protofed.engines.post import Letter, Lost, Post
from protofed.engines.rounds import Event, expected
from protofed.engines.wire import Answer, Ask, checked, tallies_from

MOST_REASON = 300


class Told(NamedTuple):
    """What the sites are told of a run with every message."""

    name: str  # states are kept under it
    brief: str  # JSON: the spec and what the sites have agreed on
    rounds: int


class Fleet(NamedTuple):
    """Who takes part: the clients' sites by name, and how many test images each site has."""

    clients: Mapping[ClientId, str]
    tests: Mapping[str, int]


class FlowerEngine(Generic[S, C]):
    """Asks sites by name; one that does not answer within the deadline is left out of the leg."""

    def __init__(
        self,
        post: Post,
        method: Method[S, C],
        server: Site,
        fleet: Fleet,
        run: Told,
        deadline: float,
        least: int,
        note: Callable[[Event], None],
        tell: Callable[[str], None],
    ):
        self.post, self.method, self.server, self.fleet, self.run = post, method, server, fleet, run
        self.deadline, self.least, self.note, self.tell = deadline, least, note, tell
        self.session = secrets.token_hex(8)
        self.start: int | None = None  # the first round of this session
        self.finished = 0
        self.saved: list[int] = []  # rounds behind the checkpoints of this session

    def exchange(self, inboxes: Mapping[ClientId, Message], step: Step) -> dict[ClientId, Message]:
        self.finished = step.round + 1
        if self.start is None:
            self.start = step.round
        different = {id(inbox): inbox for inbox in inboxes.values()}  # a broadcast is packed once
        packed = {key: self._letter("train", inbox, step) for key, inbox in different.items()}
        names = {client: self.fleet.clients[client] for client in inboxes}
        held = {
            client: expected(self.method, self.server, client, inbox, step)
            for client, inbox in inboxes.items()
        }
        letters = {
            names[client]: Letter(packed[id(inbox)], held[client].most_bytes)
            for client, inbox in inboxes.items()
        }
        answers = self.post.ask(letters, self.deadline, self.least)
        replies = {}
        for client in inboxes:
            try:
                blob = _there(answers[names[client]])
                replies[client] = self._checked(opened(blob, held[client]), "train", step).reply
            except ProtofedError as fault:
                self._note(step, client, str(fault))
        return replies

    def _letter(self, what: str, inbox: Message, step: Step) -> bytes:
        floor = self.saved[-2] if len(self.saved) > 1 else 0
        start = self.start or 0
        run, session = self.run.name, self.session
        return pack(Ask(what, self.run.brief, run, session, start, floor, *step, inbox))

    def _checked(self, answer: object, what: str, step: Step) -> Answer:
        return checked(answer, (what, self.run.name, self.session, step.round, step.leg))

    def _note(self, step: Step, client: ClientId, reason: str) -> None:
        site = self.fleet.clients[client]
        self.note(Event(step, client, printable(f"{site}: {reason}", MOST_REASON)))

    def score(self, inbox: Message, who: Sequence[ClientId]) -> dict[ClientId, dict[str, Tallies]]:
        """Each site counts on its own test images; of a client's own model only there."""
        clients = {name: client for client, name in self.fleet.clients.items()}
        everyone = [*self.fleet.tests] if SERVER in who else [self.fleet.clients[c] for c in who]
        step = Step(self.finished, self.run.rounds)
        letter = Letter(self._letter("score", inbox, step), FRAME)
        answers = self.post.ask(dict.fromkeys(everyone, letter), self.deadline)
        rows: dict[ClientId, dict[str, Tallies]] = {client: {} for client in who}
        for name in everyone:
            try:
                told = self._checked(unpack(_there(answers[name]), most=FRAME), "score", step).told
                row = rows[SERVER if SERVER in rows else clients[name]]
                row[name] = tallies_from(told, self.fleet.tests[name])
            except ProtofedError as fault:
                self.tell(printable(f"{name} has not scored: {fault}", MOST_REASON))
        return rows

    def save(self, folder: Path) -> None:
        """Nothing to write: each site has kept its own states under their rounds."""
        self.saved.append(self.finished)

    def load(self, folder: Path) -> None:
        """Nothing to read: the next message's round tells the sites where the run stands."""

    def close(self) -> None:
        """Nothing runs here; the sites go on waiting for messages."""


def _there(answer: bytes | Lost) -> bytes:
    if isinstance(answer, Lost):
        raise ProtofedError(answer.reason)
    return answer
