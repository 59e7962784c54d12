"""What a site is told of its SuperNode, by the words in Flower's log."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the flower extra")

from protofed.deploy.node import JOINED, NO_TRUST, REACHED, RETRIES, STILL_THERE, NodeWatch

SERVER = "fed.example.org:8443"


class Log:
    """A SuperNode's log, and what was said of it."""

    def __init__(self, file: Path):
        self.file, self.there, self.said = file, True, list[str]()
        file.write_text("SuperNode ID: of an earlier life\n")
        self.watch = NodeWatch(SERVER, "north", file, lambda _: self.there, self.said.append)

    def add(self, *lines: str) -> list[str]:
        """Lines that Flower writes; what is said to them."""
        with self.file.open("a") as stream:
            stream.writelines(f"INFO :  {line}\n" for line in lines)
        return self.look()

    def look(self) -> list[str]:
        before = len(self.said)
        self.watch.look()
        return self.said[before:]


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "node.log")


def test_the_words_are_flowers() -> None:
    def source(name: str) -> str:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        return Path(spec.origin).read_text()

    retry = source("flwr.supercore.retry.http_retry")
    assert all(words in retry for words in (RETRIES, REACHED, NO_TRUST))
    assert JOINED in source("flwr.supernode.start_client_internal")
    assert 'f"[code: {flower_error.code}]' in source("flwr.supernode.fleet_http_connection")
    assert STILL_THERE == "[code: 2004]"


def test_joining_is_told_once_it_is_true(log: Log) -> None:
    assert log.look() == []
    assert log.add("Starting Flower SuperNode") == []
    with log.file.open("a") as stream:
        stream.write("INFO : SuperNode")  # half a line
    assert log.look() == []
    with log.file.open("a") as stream:
        stream.write(" ID: 7\n")
    assert log.look() == [f"joined {SERVER}"]
    assert log.look() == []


def test_a_server_that_is_gone_is_told_of_once_and_again_when_it_is_back(log: Log) -> None:
    log.add("SuperNode ID: 7")
    assert log.add(f"{RETRIES}, retrying in 0.5 seconds") == []  # of Flower's own processes
    log.there = False
    (told,) = log.add(f"{RETRIES}, retrying in 0.5 seconds")
    assert f"{SERVER} does not answer; trying again" in told
    assert "is the server running" in told
    assert log.add(*[f"{RETRIES}, retrying in 9 seconds"] * 5) == []
    log.there = True
    assert log.add(f"{REACHED} 9.00 seconds and 3 tries.") == [f"joined {SERVER}"]


def test_a_wrong_address_is_told_at_once(log: Log) -> None:
    log.there = False
    log.watch.probe()
    log.watch.probe()
    assert len(log.said) == 1


@pytest.mark.parametrize(
    ("lines", "code", "words"),
    [
        (["SuperNode terminated gracefully."], 0, "refuses the key of north: it is not registered"),
        (
            [f"{STILL_THERE} Failed to activate"],
            1,
            "takes north to be there already: after a crash",
        ),
        ([f"{NO_TRUST} detected."], 1, "does not show the certificate of this federation"),
        (["?"], 1, r"ended (exit code 1, see "),
        (["SuperNode ID: 7"], 0, f"the connection to {SERVER} ended"),
    ],
)
def test_why_a_node_ended_is_told_in_words_and_once(
    log: Log, lines: list[str], code: int, words: str
) -> None:
    for life in range(2):
        log.watch.begin()
        log.add(*lines)
        log.watch.ended(code)
        told = [text for text in log.said if words in text]
        assert told[0].endswith("trying again")
        assert len(told) == 1 or lines == ["SuperNode ID: 7"], life
