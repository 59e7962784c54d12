"""Connections by the thousand, and connections that never get as far as a request."""

from __future__ import annotations

import contextlib
import resource
import socket
import sys
import time
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("flwr", reason="needs the flower extra")

from protofed.deploy.gate import MOST_CONNECTIONS, MOST_OF_ADDRESS, client_network
from tests.deploy.flooding import (
    ELSEWHERE,
    HERE,
    MANY,
    Gate,
    ended,
    flood,
    held,
    hello,
    soon,
    standing,
)
from tests.deploy.flower import status

pytestmark = pytest.mark.long

if not sys.platform.startswith("linux"):
    pytest.skip("needs /proc, and more than one address of this machine", allow_module_level=True)


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    """A gate that waits longer than any test here."""
    with standing(tmp_path_factory.mktemp("patient"), 200) as gate:
        yield gate


@pytest.fixture(scope="module")
def hurried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    """A gate that waits for a second."""
    with standing(tmp_path_factory.mktemp("hurried"), 1) as gate:
        yield gate


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    """Let this process open as many files as these tests need."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != resource.RLIM_INFINITY and before[1] < 2 * MANY:
        pytest.skip("too few files may be open at a time")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * MANY, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_one_address_cannot_keep_the_others_out(patient: Gate) -> None:
    assert patient.site(HERE) == patient.site(ELSEWHERE) == 200
    with flood(patient, [HERE]) as streams:
        assert patient.site(ELSEWHERE) == 200
        held(patient, streams, MOST_OF_ADDRESS)
        assert patient.site(ELSEWHERE) == 200
        with pytest.raises(OSError):  # noqa: PT011, several ways to see that it was hung up on
            patient.site(HERE)
    assert soon(lambda: patient.connections() == 0)
    assert patient.site(HERE) == 200


def test_no_more_than_the_stated_connections_are_held(patient: Gate) -> None:
    with flood(patient, [f"127.0.1.{number}" for number in range(1, 16)]) as streams:
        held(patient, streams, MOST_CONNECTIONS)
        with patient.plain(ELSEWHERE) as another:
            assert ended(another)  # at once, not when a place is free
    assert soon(lambda: patient.connections() == 0)
    assert patient.site(ELSEWHERE) == 200


def test_one_who_is_inside_stays_so_in_a_flood(patient: Gate) -> None:
    with patient.shaken(ELSEWHERE) as inside, flood(patient, [HERE, ELSEWHERE]):
        inside.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert status(inside.recv(1000)) == 403


def nothing(gate: Gate) -> socket.socket:
    return gate.plain()


def half_a_hello(gate: Gate) -> socket.socket:
    stream = gate.plain()
    stream.sendall(hello()[:100])
    return stream


def whole_hello(gate: Gate) -> socket.socket:
    """A handshake that the client never ends."""
    stream = gate.plain()
    stream.sendall(hello())
    return stream


def half_closed(gate: Gate) -> socket.socket:
    stream = gate.plain()
    stream.shutdown(socket.SHUT_WR)
    return stream


def silent_after_tls(gate: Gate) -> socket.socket:
    return gate.shaken()


def half_closed_after_tls(gate: Gate) -> socket.socket:
    stream = gate.shaken()
    stream.shutdown(socket.SHUT_WR)
    return stream


def deaf(gate: Gate) -> socket.socket:
    """Asks, and then does not take part in ending the connection."""
    stream = gate.shaken()
    stream.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return stream


KINDS = [
    *(nothing, half_a_hello, whole_hello, half_closed),
    *(silent_after_tls, half_closed_after_tls, deaf),
]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_who_never_comes_to_a_request_is_hung_up_on(
    hurried: Gate, kind: Callable[[Gate], socket.socket]
) -> None:
    before = len(hurried.files())
    with contextlib.ExitStack() as stack:
        streams = [stack.enter_context(kind(hurried)) for _ in range(30)]
        assert soon(lambda: hurried.connections() == 0)  # though nobody has closed anything here
        assert all(ended(stream) for stream in streams)
    assert len(hurried.files()) <= before


def test_a_handshake_byte_by_byte_is_hung_up_on(hurried: Gate) -> None:
    with hurried.plain() as stream:
        began = time.monotonic()
        try:
            for byte in hello():  # would take more than a minute
                stream.sendall(bytes([byte]))
                time.sleep(0.2)
        except OSError:
            pass
        assert 0.5 < time.monotonic() - began < 10


def test_a_network_of_ipv6_counts_as_one_address() -> None:
    assert client_network("192.0.2.7") == "192.0.2.7"
    assert (
        client_network("2001:db8::7")
        == client_network("2001:db8::1:2:3:4")
        != client_network("2001:db8:0:1::7")
    )
    assert client_network("fe80::1%eth0") == "fe80::/64"
