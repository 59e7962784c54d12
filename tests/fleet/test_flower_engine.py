"""Letters over a channel: deadlines, who is away, who is nameless."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

from protofed.core.serialization import pack_tree, unpack_tree
from protofed.engines.flower_engine import NoAnswer, OnlineSite, OutgoingRequest, SiteMessenger
from protofed.engines.site_protocol import SiteRequest, make_response


class Channel:
    """Sites that echo what they are asked; some are slow, broken or nameless."""

    def __init__(self, **names: str) -> None:
        self.names = names  # by number, as n1="site-a"; a name in brackets the site alone knows
        self.silent: set[int] = set()
        self.broken: set[int] = set()
        self.sent: dict[str, tuple[int, bytes]] = {}
        self.seconds: list[float] = []
        self.forgotten: list[str] = []

    def online(self) -> list[OnlineSite]:
        """Who is online."""
        return [
            OnlineSite(int(key[1:]), "" if name.startswith("(") else name)
            for key, name in self.names.items()
        ]

    def send(self, node: int, letter: bytes, seconds: float, most: int) -> str:
        """Take a letter."""
        number = f"letter {len(self.sent)}"
        self.sent[number] = node, letter
        self.seconds.append(seconds)
        return number

    def answers(self, waiting: Mapping[str, int]) -> dict[str, bytes | NoAnswer]:
        """The answers that are there."""
        there = {number: self.sent[number] for number in waiting}
        return {
            number: self.answer(node, letter)
            for number, (node, letter) in there.items()
            if node not in self.silent
        }

    def forget(self, letters: Iterable[str]) -> None:
        """Nobody waits for them any more."""
        self.forgotten.extend(letters)

    def answer(self, node: int, letter: bytes) -> bytes | NoAnswer:
        """One answer."""
        if node in self.broken:
            return NoAnswer("it went offline")
        ask = unpack_tree(letter)
        told = self.names[f"n{node}"].strip("()") if ask.what == "hello" else "echo"
        return pack_tree(make_response(ask, told=told))


LETTER = OutgoingRequest(pack_tree(SiteRequest("score")), 1000)


def test_answers_come_back_by_name() -> None:
    answers = SiteMessenger(Channel(n1="site-a", n2="site-b")).ask(
        {"site-a": LETTER, "site-b": LETTER}, 5
    )
    told = {name: unpack_tree(a).told for name, a in answers.items() if isinstance(a, bytes)}
    assert told == {"site-a": "echo", "site-b": "echo"}


def test_a_silent_site_costs_the_deadline_and_no_more() -> None:
    channel = Channel(n1="site-a", n2="site-b")
    channel.silent = {2}
    began = time.monotonic()
    answers = SiteMessenger(channel).ask({"site-a": LETTER, "site-b": LETTER}, 1)
    assert 1 <= time.monotonic() - began < 3
    assert isinstance(answers["site-a"], bytes)
    assert answers["site-b"] == NoAnswer("no answer within 1 s")
    assert {round(seconds) for seconds in channel.seconds} == {1}
    assert channel.forgotten == ["letter 1"]


def test_a_site_that_is_away_is_not_waited_for_unless_it_is_needed() -> None:
    post, letters = SiteMessenger(Channel(n1="site-a")), {"site-a": LETTER, "site-b": LETTER}
    began = time.monotonic()
    assert post.ask(letters, 60)["site-b"] == NoAnswer("is not online")
    assert time.monotonic() - began < 30
    assert post.ask(letters, 1, least=2)["site-b"] == NoAnswer("is not online")


def test_a_site_that_breaks_off_is_told_of() -> None:
    channel = Channel(n1="site-a")
    channel.broken = {1}
    assert SiteMessenger(channel).ask({"site-a": LETTER}, 5) == {
        "site-a": NoAnswer("it went offline")
    }


def test_nodes_without_a_registered_name_are_asked_and_the_newer_one_counts() -> None:
    channel = Channel(n1="(site-a)")
    post = SiteMessenger(channel)
    channel.silent = {1}
    assert post.online() == {}
    assert post.nameless == 1
    channel.silent.clear()
    assert post.online() == {"site-a": 1}
    assert post.nameless == 0
    channel.names["n2"] = "(site-a)"  # started anew; Flower has not yet missed the old one
    post.online()
    assert post.online() == {"site-a": 2}
