"""Letters over Flower's grid: deadlines, who is away, who is nameless, what is no letter."""

from __future__ import annotations

import time
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from protofed.core.errors import ProtofedError
from protofed.core.pack import pack, unpack
from protofed.engines.letters import as_bytes, as_record
from protofed.engines.post import Lost, Post
from protofed.engines.wire import Ask, answer_to


@pytest.fixture(autouse=True)
def _in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower makes messages only in a process that plays a run."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


class Grid:
    """Flower's grid as far as a post uses it; some nodes are slow, broken or nameless."""

    def __init__(self, **names: str) -> None:
        self.names = names  # by number, as n1="site-a"
        self.silent: set[int] = set()
        self.broken: set[int] = set()
        self.sent: dict[str, Message] = {}

    def get_nodes(self) -> list[Any]:
        """Who is online; a name in brackets is known to the node alone."""
        return [
            SimpleNamespace(node_id=int(key[1:]), name="" if name.startswith("(") else name)
            for key, name in self.names.items()
        ]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Take letters."""
        numbers = []
        for message in messages:
            numbers.append(str(len(self.sent)))
            self.sent[numbers[-1]] = message
        return numbers

    def pull_messages(self, numbers: Iterable[str]) -> list[Any]:
        """The answers that are there; an echo of what was asked."""
        return [
            self.answer(number, self.sent[number])
            for number in numbers
            if self.sent[number].metadata.dst_node_id not in self.silent
        ]

    def answer(self, number: str, message: Message) -> Any:
        """One answer."""
        node = message.metadata.dst_node_id
        ask = unpack(as_bytes(message.content))
        told = self.names[f"n{node}"].strip("()") if ask.what == "hello" else "echo"
        content, bad = as_record(pack(answer_to(ask, told=told))), node in self.broken
        return SimpleNamespace(
            metadata=SimpleNamespace(reply_to_message_id=number),
            has_error=lambda: bad,
            error=Error(2, "boom\x1b[31m"),
            content=content,
        )


def posted(grid: Grid) -> Post:
    carrier: Any = grid
    return Post(carrier)


LETTER = pack(Ask("score"))


def test_answers_come_back_by_name() -> None:
    answers = posted(Grid(n1="site-a", n2="site-b")).ask({"site-a": LETTER, "site-b": LETTER}, 5)
    told = {name: unpack(a).told for name, a in answers.items() if isinstance(a, bytes)}
    assert told == {"site-a": "echo", "site-b": "echo"}


def test_a_silent_site_costs_the_deadline_and_no_more() -> None:
    grid = Grid(n1="site-a", n2="site-b")
    grid.silent = {2}
    began = time.monotonic()
    answers = posted(grid).ask({"site-a": LETTER, "site-b": LETTER}, 1)
    assert 1 <= time.monotonic() - began < 3
    assert isinstance(answers["site-a"], bytes)
    assert answers["site-b"] == Lost("no answer within 1 s")
    assert {round(m.metadata.ttl) for m in grid.sent.values()} == {1}


def test_a_site_that_is_away_is_not_waited_for_unless_it_is_needed() -> None:
    post, letters = posted(Grid(n1="site-a")), {"site-a": LETTER, "site-b": LETTER}
    began = time.monotonic()
    assert post.ask(letters, 60)["site-b"] == Lost("is not online")
    assert time.monotonic() - began < 30
    assert post.ask(letters, 1, least=2)["site-b"] == Lost("is not online")


def test_errors_of_flower_are_told_in_words_that_cannot_steer_a_terminal() -> None:
    grid = Grid(n1="site-a")
    grid.broken = {1}
    answer = posted(grid).ask({"site-a": LETTER}, 5)["site-a"]
    assert answer == Lost("its client app failed (boom\\x1b[31m)")


def test_nodes_without_a_registered_name_are_asked_and_the_newer_one_counts() -> None:
    grid = Grid(n1="(site-a)")
    post = posted(grid)
    grid.silent = {1}
    assert post.online() == {}
    assert post.nameless == 1
    grid.silent.clear()
    assert post.online() == {"site-a": 1}
    assert post.nameless == 0
    grid.names["n2"] = "(site-a)"  # started anew; Flower has not yet missed the old one
    post.online()
    assert post.online() == {"site-a": 2}


@pytest.mark.parametrize(
    "record",
    [
        RecordDict(),
        RecordDict({"a": ArrayRecord({"b": Array(np.zeros(3))})}),
        RecordDict({"a": ArrayRecord({"b": Array(np.zeros((2, 2), dtype=np.uint8))})}),
        RecordDict({"a": ArrayRecord({"c": Array(np.zeros(2, dtype=np.uint8))})}),
    ],
)
def test_what_is_no_letter_is_refused(record: RecordDict) -> None:
    with pytest.raises(ProtofedError, match="not one of our messages"):
        as_bytes(record)
