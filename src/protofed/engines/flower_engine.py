"""The engine of a real federation: requests to sites by name, and their answers."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Generic, NamedTuple, Protocol

from protofed.core.message import Failure, Message
from protofed.core.method import C, Method, S
from protofed.core.metrics import CorrectCounts
from protofed.core.reply_validation import FRAME, decode_reply
from protofed.core.serialization import pack_tree, unpack_tree
from protofed.core.site import SERVER, ClientId, RoundContext, Site
from protofed.engines.engine import expected_reply
from protofed.engines.site_protocol import (
    SITE_NAME,
    SiteRequest,
    SiteResponse,
    check_response,
    counts_from_json,
)
from protofed.errors import ProtofedError, printable_text

PAUSE = 0.1  # seconds between two looks for answers
LOOK = 1.0  # seconds between two looks at who is online
HELLO_SECONDS = 60.0


class NoAnswer(NamedTuple):
    """Why there is no answer."""

    reason: str


class OnlineSite(NamedTuple):
    """A site that is connected, by its number; its name is "" if nobody vouches for it."""

    node: int
    name: str


class OutgoingRequest(NamedTuple):
    """What a site is sent, and how many bytes its answer may have."""

    content: bytes
    max_answer_bytes: int


class RequestChannel(Protocol):
    """What carries letters."""

    def online(self) -> Iterable[OnlineSite]:
        """The sites that are connected now."""

    def send(self, node: int, letter: bytes, seconds: float, most: int) -> str:
        """Send a letter that is worth nothing after some seconds; its number, "" if not taken."""

    def answers(self, waiting: Mapping[str, int]) -> dict[str, bytes | NoAnswer]:
        """The answers that have come by now, each once; to each letter, the bytes it may have."""

    def forget(self, letters: Iterable[str]) -> None:
        """Let go of letters whose answers nobody waits for any more."""


class SiteMessenger:
    """Knows which sites are online, and brings letters to them and answers back.

    Sites whose keys are registered have the names that they were registered with. Others are
    asked for their names, and believed: only for a federation on one machine.
    """

    def __init__(self, channel: RequestChannel):
        self.channel = channel
        self.names: dict[int, str] = {}  # by a site's number, in the order of arrival
        self.hellos: dict[str, int] = {}  # letters to nodes without a name that are on their way
        self.nameless = 0  # nodes that were online at the last look, and had not said their names

    def online(self) -> dict[str, int]:
        """The sites that are online now; of two nodes of one name the newer one."""
        nodes = list(self.channel.online())
        self.names.update({each.node: each.name for each in nodes if each.name})
        asked = {*self.names, *self.hellos.values()}
        hello = pack_tree(SiteRequest("hello"))
        for node in [each.node for each in nodes if each.node not in asked]:
            if number := self.channel.send(node, hello, HELLO_SECONDS, FRAME):
                self.hellos[number] = node
        for number, answer in self._answers(dict.fromkeys(self.hellos, FRAME)).items():
            node = self.hellos.pop(number)
            if name := _name(answer):
                self.names[node] = name
        here = {each.node for each in nodes}
        self.nameless = len(here - self.names.keys())
        return {name: node for node, name in self.names.items() if node in here}

    def _answers(self, waiting: Mapping[str, int]) -> dict[str, bytes | NoAnswer]:
        return self.channel.answers(waiting) if waiting else {}

    def ask(
        self, letters: Mapping[str, OutgoingRequest], deadline: float, least: int = 1
    ) -> dict[str, bytes | NoAnswer]:
        """Each site's answer, or why there is none, after at most `deadline` seconds.

        Who is not online is not waited for, unless there would be fewer than `least` answers.
        """
        end, looked = time.monotonic() + deadline, -LOOK
        absent, waiting = list(letters), dict[str, str]()
        answers: dict[str, bytes | NoAnswer] = {}
        while (left := end - time.monotonic()) > 0:
            if absent and time.monotonic() - looked >= LOOK:
                looked = time.monotonic()
                self._send(letters, absent, waiting, answers, left)
            most = {number: letters[name].max_answer_bytes for number, name in waiting.items()}
            for number, answer in self._answers(most).items():
                answers[waiting.pop(number)] = answer
            good = sum(not isinstance(answer, NoAnswer) for answer in answers.values())
            if not waiting and (not absent or good >= least):
                break
            time.sleep(PAUSE)
        self.channel.forget(waiting)
        missing = dict.fromkeys(absent, NoAnswer("is not online"))
        slow = dict.fromkeys(waiting.values(), NoAnswer(f"no answer within {deadline:g} s"))
        return {**answers, **missing, **slow}

    def _send(
        self,
        letters: Mapping[str, OutgoingRequest],
        absent: list[str],
        waiting: dict[str, str],
        answers: dict[str, bytes | NoAnswer],
        seconds: float,
    ) -> None:
        """Send their letters to those who have come online; they are absent no more."""
        online = self.online()
        for name in [name for name in absent if name in online]:
            absent.remove(name)
            letter = letters[name]
            if number := self.channel.send(
                online[name], letter.content, seconds, letter.max_answer_bytes
            ):
                waiting[number] = name
            else:
                answers[name] = NoAnswer("the message could not be sent")


def _name(answer: bytes | NoAnswer) -> str:
    """The name in an answer to a hello; none if it is no such answer."""
    if isinstance(answer, NoAnswer):
        return ""
    try:
        name = check_response(unpack_tree(answer, most=FRAME), SiteRequest("hello").question).told
    except ProtofedError:
        return ""
    return name if SITE_NAME.fullmatch(name) else ""


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
    ):
        self.post, self.method, self.server, self.fleet, self.run = post, method, server, fleet, run
        self.deadline, self.least = deadline, least
        self.news: list[str] = []
        self.session = secrets.token_hex(8)
        self.start: int | None = None  # the first round of this session
        self.finished = 0
        self.saved: list[int] = []  # rounds behind the checkpoints of this session

    def exchange(
        self, messages: Mapping[ClientId, Message], context: RoundContext
    ) -> dict[ClientId, Message | Failure]:
        self.finished = context.round + 1
        if self.start is None:
            self.start = context.round
        different = {
            id(received): received for received in messages.values()
        }  # a broadcast is packed once
        packed = {
            key: self._letter("train", received, context) for key, received in different.items()
        }
        names = {client: self.fleet.clients[client] for client in messages}
        held = {
            client: expected_reply(self.method, self.server, client, received, context)
            for client, received in messages.items()
        }
        letters = {
            names[client]: OutgoingRequest(packed[id(received)], held[client].max_bytes)
            for client, received in messages.items()
        }
        answers = self.post.ask(letters, self.deadline, self.least)
        replies: dict[ClientId, Message | Failure] = {}
        for client in messages:
            try:
                blob = _there(answers[names[client]])
                answer = self._checked(decode_reply(blob, held[client]), "train", context)
                replies[client] = _plain_reply(answer.reply, names[client])
            except ProtofedError as fault:
                replies[client] = _failure(names[client], str(fault))
        return replies

    def _letter(self, what: str, received: Message, context: RoundContext) -> bytes:
        floor = self.saved[-2] if len(self.saved) > 1 else 0
        start = self.start or 0
        run, session = self.run.name, self.session
        return pack_tree(
            SiteRequest(what, self.run.brief, run, session, start, floor, *context, received)
        )

    def _checked(self, answer: object, what: str, context: RoundContext) -> SiteResponse:
        return check_response(
            answer, (what, self.run.name, self.session, context.round, context.exchange)
        )

    def score(
        self, received: Message, who: Sequence[ClientId]
    ) -> dict[ClientId, dict[str, CorrectCounts]]:
        """Each site counts on its own test images; of a client's own model only there."""
        clients = {name: client for client, name in self.fleet.clients.items()}
        everyone = [*self.fleet.tests] if SERVER in who else [self.fleet.clients[c] for c in who]
        step = RoundContext(self.finished, self.run.rounds)
        letter = OutgoingRequest(self._letter("score", received, step), FRAME)
        answers = self.post.ask(dict.fromkeys(everyone, letter), self.deadline)
        rows: dict[ClientId, dict[str, CorrectCounts]] = {client: {} for client in who}
        for name in everyone:
            try:
                told = self._checked(
                    unpack_tree(_there(answers[name]), most=FRAME), "score", step
                ).told
                row = rows[SERVER if SERVER in rows else clients[name]]
                row[name] = counts_from_json(told, self.fleet.tests[name])
            except ProtofedError as fault:
                self.news.append(_failure(name, f"has not scored: {fault}").reason)
        return rows

    def save(self, folder: Path) -> None:
        """Nothing to write: each site has kept its own states under their rounds."""
        self.saved.append(self.finished)

    def load(self, folder: Path) -> None:
        """Nothing to read: the next message's round tells the sites where the run stands."""

    def close(self) -> None:
        """Nothing runs here; the sites go on waiting for messages."""


def _failure(site: str, reason: str, diverged: bool = False) -> Failure:
    """A site's failure on one printable line."""
    return Failure(printable_text(f"{site}: {reason}", MOST_REASON), diverged)


def _plain_reply(reply: Message | Failure, site: str) -> Message | Failure:
    """A site's reply; its own report of a failure is a stranger's text."""
    if isinstance(reply, Message):
        return reply
    if type(reply.reason) is not str or type(reply.diverged) is not bool:
        return _failure(site, "its report of a failure cannot be read")
    return _failure(site, reply.reason, reply.diverged)


def _there(answer: bytes | NoAnswer) -> bytes:
    if isinstance(answer, NoAnswer):
        raise ProtofedError(answer.reason)
    return answer
