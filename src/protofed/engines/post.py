"""Letters to sites by name and back, carried by Flower; each is one array of bytes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from protofed.core.admission import FRAME
from protofed.core.errors import ProtofedError, printable
from protofed.core.pack import pack, unpack
from protofed.engines.letters import as_bytes, as_record
from protofed.engines.wire import SITE_NAME, Ask, checked

PAUSE = 0.2  # seconds between two looks for answers
QUERY = "query"  # the one type of message; what is asked stands in the letter
REASONS = {  # Flower's numbers of errors
    2: "its client app failed",
    3: "the message or its answer expired",
    5: "it went offline",
    8: "its client app died",
}


class Lost(NamedTuple):
    """Why there is no answer."""

    reason: str


class Post:
    """Knows which sites are online, and brings letters to them and answers back.

    Sites whose keys are registered have the names that they were registered with. Others are
    asked for their names, and believed: only for a federation on one machine.
    """

    def __init__(self, grid: Grid):
        self.grid = grid
        self.names: dict[int, str] = {}  # by Flower's number of a node, in the order of arrival
        self.hellos: dict[str, int] = {}  # letters to nodes without a name that are on their way
        self.nameless = 0  # nodes that were online at the last look, and had not said their names

    def online(self) -> dict[str, int]:
        """The sites that are online now; of two nodes of one name the newer one."""
        nodes = list(self.grid.get_nodes())
        self.names.update({node.node_id: node.name for node in nodes if node.name})
        asked = {*self.names, *self.hellos.values()}
        strangers = [node.node_id for node in nodes if node.node_id not in asked]
        hello = as_record(pack(Ask("hello")))
        for node in strangers:
            self.hellos.update(dict.fromkeys(self._push(hello, node, 60.0), node))
        for letter, answer in self._pull(self.hellos).items():
            node = self.hellos.pop(letter)
            if name := _name(answer):
                self.names[node] = name
        here = {node.node_id for node in nodes}
        self.nameless = len(here - self.names.keys())
        return {name: node for node, name in self.names.items() if node in here}

    def ask(
        self, letters: Mapping[str, bytes], deadline: float, least: int = 1
    ) -> dict[str, bytes | Lost]:
        """Each site's answer, or why there is none, after at most `deadline` seconds.

        Who is not online is not waited for, unless there would be fewer than `least` answers.
        """
        end = time.monotonic() + deadline
        records = {id(letter): as_record(letter) for letter in letters.values()}
        absent, waiting = list(letters), dict[str, str]()
        answers: dict[str, bytes | Lost] = {}
        while (left := end - time.monotonic()) > 0:
            online = self.online()
            for name in [name for name in absent if name in online]:
                absent.remove(name)
                sent = self._push(records[id(letters[name])], online[name], left)
                waiting.update(dict.fromkeys(sent, name))
                if not sent:
                    answers[name] = Lost("the message could not be sent")
            for letter, answer in self._pull(waiting).items():
                answers[waiting.pop(letter)] = answer
            good = sum(not isinstance(answer, Lost) for answer in answers.values())
            if not waiting and (not absent or good >= least):
                break
            time.sleep(PAUSE)
        missing = dict.fromkeys(absent, Lost("is not online"))
        slow = dict.fromkeys(waiting.values(), Lost(f"no answer within {deadline:g} s"))
        return {**answers, **missing, **slow}

    def _push(self, record: RecordDict, node: int, seconds: float) -> list[str]:
        """Send one letter that is worth nothing after some seconds; its number, if it was taken."""
        letter = Message(record, node, QUERY, ttl=seconds)
        return [number for number in self.grid.push_messages([letter]) if number]

    def _pull(self, waiting: Mapping[str, object]) -> dict[str, bytes | Lost]:
        """The answers to some letters that are there by now; each is given once."""
        found = self.grid.pull_messages(list(waiting)) if waiting else ()
        answers = {message.metadata.reply_to_message_id: _content(message) for message in found}
        return {letter: answer for letter, answer in answers.items() if letter in waiting}


def _content(message: Message) -> bytes | Lost:
    if message.has_error():
        code, why = message.error.code, printable(str(message.error.reason or ""), 200)
        return Lost(f"{REASONS.get(code, f'Flower error {code}')} ({why})")
    try:
        return as_bytes(message.content)
    except ProtofedError as fault:
        return Lost(str(fault))


def _name(answer: bytes | Lost) -> str:
    """The name in an answer to a hello; none if it is no such answer."""
    if isinstance(answer, Lost):
        return ""
    try:
        name = checked(unpack(answer, most=FRAME), Ask("hello").question).told
    except ProtofedError:
        return ""
    return name if SITE_NAME.fullmatch(name) else ""
