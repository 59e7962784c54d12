"""Letters to sites by name, and their answers, over whatever channel carries them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from protofed.core.admission import FRAME
from protofed.core.errors import ProtofedError
from protofed.core.pack import pack_tree, unpack_tree
from protofed.engines.wire import SITE_NAME, SiteRequest, check_response

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
