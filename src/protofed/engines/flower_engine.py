"""The engine of a real federation: requests to sites by name, and their answers."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    most_counts_bytes,
)
from protofed.errors import ProtofedError, printable_text

PAUSE = 0.1  # seconds between two looks for answers
LOOK = 1.0  # seconds between two looks at which sites are online
HELLO_SECONDS = 60.0
REPORT_AFTER = 20.0  # seconds without an answer after which those awaited are reported
MOST_SENDS = 5  # of one request to one site, which may crash on it each time
MOST_NAMED = 5  # sites in one report


class NoAnswer(NamedTuple):
    """Why a site has not answered.

    One that went `offline` may come back, and is then asked again.
    """

    reason: str
    offline: bool = False


class OnlineSite(NamedTuple):
    """A connected site.

    `node` is the number under which Flower knows it, `name` its registered name ("" without a
    registered key), and `since` a text that changes whenever it connects again.
    """

    node: int
    name: str
    since: str = ""


class OutgoingRequest(NamedTuple):
    """A packed request to a site, and how many bytes its answer may have."""

    content: bytes
    max_answer_bytes: int


class RequestChannel(Protocol):
    """What carries requests to sites and answers back; see `deploy.run_channel.RunChannel`."""

    def online(self) -> Iterable[OnlineSite]:
        """The sites that are connected now."""

    def send(self, node: int, content: bytes, seconds: float, most: int) -> str:
        """Send a request that expires after some seconds; its name, "" if it was not taken."""

    def answers(self, waiting: Mapping[str, int]) -> dict[str, bytes | NoAnswer]:
        """The answers that have come by now, each once.

        `waiting` maps the name of each request to the bytes that its answer may have.
        """

    def forget(self, requests: Iterable[str]) -> None:
        """Drop requests whose answers are not awaited any more."""


class PendingExchange:
    """The state of one exchange: which sites have yet to be sent their request, or to answer.

    `absent` sites are not online or were lost, `waiting` ones have been sent their request.
    """

    def __init__(self, requests: Mapping[str, OutgoingRequest]):
        self.requests = requests
        self.absent = list(requests)  # not sent, or lost with a connection
        self.waiting: dict[str, str] = {}  # the site, by the request's name in the channel
        self.connections: dict[str, OnlineSite] = {}  # to which a site's request was sent
        self.answers: dict[str, bytes | NoAnswer] = {}
        self.lost: dict[str, NoAnswer] = {}  # sites that went offline with their request
        self.sends: Counter[str] = Counter()
        self.began = time.monotonic()
        self.last_answer = 0.0  # seconds from the beginning

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return time.monotonic() - self.began

    @property
    def awaited(self) -> list[str]:
        """The sites without an answer."""
        return [name for name in self.requests if name not in self.answers]

    def complete(self, least: int) -> bool:
        """Whether there is nothing to wait for; absent sites count while answers are too few."""
        good = sum(not isinstance(answer, NoAnswer) for answer in self.answers.values())
        return not self.waiting and (not self.absent or good >= least)

    def take(self, number: str, answer: bytes | NoAnswer) -> None:
        """File an answer; a site that went offline is absent, and may be sent the request again."""
        name = self.waiting.pop(number)
        if isinstance(answer, NoAnswer) and answer.offline and self.sends[name] < MOST_SENDS:
            self.lost[name] = answer
            self.absent.append(name)
        else:
            self.answers[name] = answer
            self.last_answer = self.seconds


class SiteMessenger:
    """Knows which sites are online, sends them requests, and returns their answers.

    Sites with registered keys have the names that they were registered with. Others are asked for
    their names, and believed, which is for trials on one machine only. `report` receives a line for
    people when an answer is long in coming, or a request is sent again.
    """

    def __init__(self, channel: RequestChannel, report: Callable[[str], None] = lambda text: None):
        self.channel, self.report = channel, report
        self.names: dict[int, str] = {}  # by node number, in the order of arrival
        self.hellos: dict[str, int] = {}  # requests to nodes without a name, not answered yet
        self.nameless = 0  # nodes that were online at the last look without a known name
        self.connections: dict[str, OnlineSite] = {}  # by name, as of the last look
        self.usual = 0.0  # the longest time after which an answer came, in seconds

    def online(self) -> dict[str, int]:
        """The node numbers of the sites that are online now, by name.

        Of two nodes of one name the newer one counts: the older one has crashed.
        """
        nodes = {each.node: each for each in self.channel.online()}
        self.names.update({each.node: each.name for each in nodes.values() if each.name})
        asked = {*self.names, *self.hellos.values()}
        hello = pack_tree(SiteRequest("hello"))
        for node in [node for node in nodes if node not in asked]:
            if number := self.channel.send(node, hello, HELLO_SECONDS, FRAME):
                self.hellos[number] = node
        for number, answer in self._answers(dict.fromkeys(self.hellos, FRAME)).items():
            node = self.hellos.pop(number)
            if name := _name(answer):
                self.names[node] = name
        self.nameless = len(nodes.keys() - self.names.keys())
        self.connections = {name: nodes[node] for node, name in self.names.items() if node in nodes}
        return {name: site.node for name, site in self.connections.items()}

    def _answers(self, waiting: Mapping[str, int]) -> dict[str, bytes | NoAnswer]:
        return self.channel.answers(waiting) if waiting else {}

    def ask(
        self, requests: Mapping[str, OutgoingRequest], deadline: float, least: int = 1
    ) -> dict[str, bytes | NoAnswer]:
        """Send each site its request; each site's answer, or why there is none.

        Takes at most `deadline` seconds. Sites that are not online are not waited for, unless there
        would be fewer than `least` answers. A site that connects again before it has answered is
        sent its request again: it may have crashed with it. It answers a request that it has
        answered before from its disk.
        """
        pending, looked = PendingExchange(requests), -LOOK
        report_after = max(REPORT_AFTER, 2 * self.usual)
        while (left := deadline - pending.seconds) > 0:
            if time.monotonic() - looked >= LOOK:
                looked = time.monotonic()
                self._send(pending, left)
            self._receive(pending)
            if pending.complete(least):
                break
            if pending.seconds > report_after:
                report_after = 2 * pending.seconds
                self._report_awaited(pending, deadline)
            time.sleep(PAUSE)
        self.usual = max(self.usual, pending.last_answer)
        self.channel.forget(pending.waiting)
        missing = dict.fromkeys(pending.absent, NoAnswer("is not online")) | pending.lost
        late = NoAnswer(f"no answer within {deadline:g} s")
        slow = dict.fromkeys(pending.waiting.values(), late)
        return {**missing, **slow, **pending.answers}

    def _receive(self, pending: PendingExchange) -> None:
        """Take the answers that are there."""
        most = {
            number: pending.requests[name].max_answer_bytes
            for number, name in pending.waiting.items()
        }
        for number, answer in self._answers(most).items():
            pending.take(number, answer)

    def _send(self, pending: PendingExchange, seconds: float) -> None:
        """Send their requests to sites that have come online, or come online again."""
        self.online()
        self._drop_broken(pending)
        for name in [name for name in pending.absent if name in self.connections]:
            pending.absent.remove(name)
            pending.sends[name] += 1
            request, site = pending.requests[name], self.connections[name]
            if number := self.channel.send(
                site.node, request.content, seconds, request.max_answer_bytes
            ):
                pending.waiting[number], pending.connections[name] = name, site
            else:
                pending.answers[name] = NoAnswer("the message could not be sent")
            if pending.sends[name] > 1:
                self.report(f"{name} has rejoined: what it had not answered is sent again")

    def _drop_broken(self, pending: PendingExchange) -> None:
        """Give up requests that went to an earlier connection of a site that has a new one."""
        for number, name in list(pending.waiting.items()):
            now = self.connections.get(name, pending.connections[name])
            if now != pending.connections[name] and pending.sends[name] < MOST_SENDS:
                del pending.waiting[number]
                pending.absent.append(name)
                self.channel.forget([number])

    def _report_awaited(self, pending: PendingExchange, deadline: float) -> None:
        names = pending.awaited
        more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
        self.report(
            f"waiting for {', '.join(names[:MOST_NAMED])}{more}: no answer after "
            f"{pending.seconds:.0f} s of at most {deadline:g} s"
        )


def _name(answer: bytes | NoAnswer) -> str:
    """The name in an answer to a hello; none if it is no such answer."""
    if isinstance(answer, NoAnswer):
        return ""
    try:
        name = check_response(unpack_tree(answer, most=FRAME), SiteRequest("hello").question).text
    except ProtofedError:
        return ""
    return name if SITE_NAME.fullmatch(name) else ""


MOST_REASON = 300


class RunInfo(NamedTuple):
    """What every site learns of a run with every request.

    `name` is the one under which they keep their states, `brief` is JSON: the spec, and what the
    sites have agreed on.
    """

    name: str  # states are kept under it
    brief: str  # JSON: the spec and what the sites have agreed on
    rounds: int


class SiteRoster(NamedTuple):
    """Which sites take part: each client's site by name, and each site's number of test images."""

    clients: Mapping[ClientId, str]
    tests: Mapping[str, int]


class FlowerEngine(Generic[S, C]):
    """The engine of a real federation: asks sites by name, over a `SiteMessenger`.

    A site that does not answer within `deadline` seconds is left out of the exchange; sites that
    are offline are waited for only while there are fewer than `least` answers. Private states stay
    at the sites, so there is nothing to save or load here.
    """

    def __init__(
        self,
        messenger: SiteMessenger,
        method: Method[S, C],
        server: Site,
        roster: SiteRoster,
        run: RunInfo,
        deadline: float,
        least: int,
    ):
        self.messenger, self.method, self.server = messenger, method, server
        self.roster, self.run = roster, run
        self.deadline, self.least = deadline, least
        self.news: list[str] = []
        self.session = secrets.token_hex(8)
        self.start: int | None = None  # the first round of this session
        self.finished = 0
        self.saved: list[int] = []  # rounds behind the checkpoints of this session
        self.reported: set[str] = set()  # what was reported, to report it once

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
            key: self._packed("train", received, context) for key, received in different.items()
        }
        names = {client: self.roster.clients[client] for client in messages}
        held = {
            client: expected_reply(self.method, self.server, client, received, context)
            for client, received in messages.items()
        }
        requests = {
            names[client]: OutgoingRequest(packed[id(received)], held[client].max_bytes)
            for client, received in messages.items()
        }
        answers = self.messenger.ask(requests, self.deadline, self.least)
        replies: dict[ClientId, Message | Failure] = {}
        for client in messages:
            try:
                blob = _there(answers[names[client]])
                answer = self._checked(decode_reply(blob, held[client]), "train", context)
                replies[client] = _plain_reply(answer.reply, names[client])
            except ProtofedError as fault:
                replies[client] = _failure(names[client], str(fault))
        return replies

    def _packed(self, what: str, received: Message, context: RoundContext) -> bytes:
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
        """Let each site count right answers on its own test images.

        A client's own model is scored at its site only. A site that does not answer is missing from
        the result, and is reported once.
        """
        clients = {name: client for client, name in self.roster.clients.items()}
        everyone = [*self.roster.tests] if SERVER in who else [self.roster.clients[c] for c in who]
        step = RoundContext(self.finished, self.run.rounds)
        packed = self._packed("score", received, step)
        tests, classes = self.roster.tests, self.server.classes
        most = {name: most_counts_bytes(tests[name], classes) for name in everyone}
        requests = {name: OutgoingRequest(packed, most[name]) for name in everyone}
        answers = self.messenger.ask(requests, self.deadline)
        rows: dict[ClientId, dict[str, CorrectCounts]] = {client: {} for client in who}
        for name in everyone:
            try:
                answer = unpack_tree(_there(answers[name]), most=most[name])
                text = self._checked(answer, "score", step).text
                row = rows[SERVER if SERVER in rows else clients[name]]
                row[name] = counts_from_json(text, tests[name], classes)
            except ProtofedError as fault:
                self._tell_once(f"{name} has not scored: {fault}")
        return rows

    def _tell_once(self, text: str) -> None:
        """Report something that may be so in every round; it stands in the scores each time."""
        if text not in self.reported:
            self.reported.add(text)
            self.news.append(printable_text(text, MOST_REASON))

    def save(self, folder: Path) -> None:
        """Nothing to write: each site has kept its own states under their rounds."""
        self.saved.append(self.finished)

    def load(self, folder: Path) -> None:
        """Nothing to read: the next message's round tells the sites where the run stands."""

    def close(self) -> None:
        """Nothing runs here; the sites keep waiting for requests."""


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
