"""Requests over a channel: deadlines, sites that are away, crash, rejoin or have no name."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping

import pytest

from protofed.core.serialization import pack_tree, unpack_tree
from protofed.engines import flower_engine
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
        self.since: dict[int, str] = {}  # changes when a site connects again

    def online(self) -> list[OnlineSite]:
        """Who is online."""
        return [
            OnlineSite(
                int(key[1:]), "" if name.startswith("(") else name, self.since.get(int(key[1:]), "")
            )
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
            return NoAnswer("it refused the message")
        ask = unpack_tree(letter)
        told = self.names[f"n{node}"].strip("()") if ask.what == "hello" else "echo"
        return pack_tree(make_response(ask, text=told))


LETTER = OutgoingRequest(pack_tree(SiteRequest("score")), 1000)


def test_answers_come_back_by_name() -> None:
    answers = SiteMessenger(Channel(n1="site-a", n2="site-b")).ask(
        {"site-a": LETTER, "site-b": LETTER}, 5
    )
    told = {name: unpack_tree(a).text for name, a in answers.items() if isinstance(a, bytes)}
    assert told == {"site-a": "echo", "site-b": "echo"}


def test_a_silent_site_costs_the_deadline_and_no_more() -> None:
    channel = Channel(n1="site-a", n2="site-b")
    channel.silent = {2}
    began = time.monotonic()
    answers = SiteMessenger(channel).ask({"site-a": LETTER, "site-b": LETTER}, 1)
    assert 1 <= time.monotonic() - began < 15
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
        "site-a": NoAnswer("it refused the message")
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


class Crashing(Channel):
    """Sites that crash with the first requests that they take, and connect again."""

    def __init__(self, crashes: int, offline: bool = False, **names: str) -> None:
        super().__init__(**names)
        self.crashes, self.offline = crashes, offline

    def answers(self, waiting: Mapping[str, int]) -> dict[str, bytes | NoAnswer]:
        """None to a request that a site crashed with; Flower may notice that it was away."""
        lost = [number for number in waiting if list(self.sent).index(number) < self.crashes]
        for number in lost:
            node, _ = self.sent[number]
            self.since[node] = number
        told = {number: NoAnswer("it went offline", offline=True) for number in lost}
        others = {number: most for number, most in waiting.items() if number not in lost}
        return (told if self.offline else {}) | super().answers(others)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_engine, "LOOK", 0.05)
    monkeypatch.setattr(flower_engine, "PAUSE", 0.01)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("offline", [False, True])
@pytest.mark.parametrize("crashes", [1, 3])
def test_a_site_that_rejoins_is_sent_its_request_again(crashes: int, offline: bool) -> None:
    channel, told = Crashing(crashes, offline, n1="site-a"), list[str]()
    began = time.monotonic()
    answers = SiteMessenger(channel, told.append).ask({"site-a": LETTER}, 60)
    assert time.monotonic() - began < 20
    assert isinstance(answers["site-a"], bytes)
    assert [content for _, content in channel.sent.values()] == [LETTER.content] * (crashes + 1)
    assert told == ["site-a has rejoined: what it had not answered is sent again"] * crashes
    assert offline or channel.forgotten == [f"letter {number}" for number in range(crashes)]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("offline", [False, True])
def test_a_site_that_crashes_each_time_is_not_asked_for_ever(offline: bool) -> None:
    channel = Crashing(1000, offline, n1="site-a")
    answers = SiteMessenger(channel).ask({"site-a": LETTER}, 2)
    assert isinstance(answers["site-a"], NoAnswer)
    assert len(channel.sent) == flower_engine.MOST_SENDS


@pytest.mark.usefixtures("quick")
def test_a_site_that_goes_offline_is_not_waited_for_while_there_are_answers_enough() -> None:
    channel = Channel(n1="site-a", n2="site-b")

    def answer(node: int, letter: bytes) -> bytes | NoAnswer:
        if node == 1:
            return Channel.answer(channel, node, letter)
        channel.names.pop("n2", None)
        return NoAnswer("it went offline", offline=True)

    channel.answer = answer  # type: ignore[method-assign]
    began = time.monotonic()
    answers = SiteMessenger(channel).ask({"site-a": LETTER, "site-b": LETTER}, 60)
    assert time.monotonic() - began < 20
    assert answers["site-b"] == NoAnswer("it went offline", offline=True)


@pytest.mark.usefixtures("quick")
def test_sites_that_keep_others_waiting_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_engine, "REPORT_AFTER", 0.1)
    channel, told = Channel(n1="site-a", n2="site-b"), list[str]()
    channel.silent = {2}
    messenger = SiteMessenger(channel, told.append)
    messenger.ask({"site-a": LETTER, "site-b": LETTER}, 1)
    assert 1 <= len(told) <= 4  # ever more rarely
    for line in told:
        assert re.fullmatch(r"waiting for site-b: no answer after [01] s of at most 1 s", line)
    told.clear()
    messenger.usual = 60.0  # answers have taken that long before, so this is nothing special
    messenger.ask({"site-a": LETTER, "site-b": LETTER}, 1)
    assert told == []
