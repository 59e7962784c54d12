"""Connections by the thousand, and connections that never get as far as a request."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import pytest

pytest.importorskip("flwr", reason="needs the flower extra")

from protofed.deploy.keys import make
from protofed.deploy.known import signed_headers
from protofed.deploy.listening import MOST_CONNECTIONS, MOST_OF_ADDRESS, home_of
from tests.deploy.flower import Guarded, await_port, free_port, running, status

if not sys.platform.startswith("linux"):
    pytest.skip("needs /proc, and more than one address of this machine", allow_module_level=True)

MANY = 1500
HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
HURRIED = """
from protofed.deploy import listening, proxy
listening.SHAKE_SECONDS = listening.HEAD_SECONDS = listening.LEAVE_SECONDS = {seconds}
proxy.main()
"""


class Gate(NamedTuple):
    """A gate's process."""

    made: Guarded
    pid: int

    def files(self) -> list[str]:
        """What its open files are."""
        found = []
        for file in Path(f"/proc/{self.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.append(os.readlink(file))
        return found

    def connections(self) -> int:
        """How many of its open files are connections to the public port, in whatever state."""
        rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        own = [row for row in rows if int(row[1].split(":")[1], 16) == self.made.public]
        names = {f"socket:[{row[9]}]" for row in own if row[3] != "0A"}  # who listens
        return len(names.intersection(self.files()))

    def plain(self, source: str = HERE) -> socket.socket:
        """A connection on which nothing was said yet."""
        return socket.create_connection((HERE, self.made.public), 20, (source, 0))

    def shaken(self, source: str = HERE) -> ssl.SSLSocket:
        """A connection whose TLS handshake is done."""
        context = ssl.create_default_context(cafile=str(self.made.ca))
        return context.wrap_socket(self.plain(source), server_hostname="localhost")

    def site(self, source: str) -> int:
        """The status that a signed request gets."""
        key = self.made.keys / "north" / "site.key"
        lines = ["POST /v1/fleet/nothing HTTP/1.1", "Host: localhost", "Connection: close"]
        lines += [f"{n}: {v}" for n, v in signed_headers(key, f"{datetime.now(UTC)}").items()]
        with self.shaken(source) as stream:
            stream.sendall("\r\n".join([*lines, "Content-Length: 0", "", ""]).encode())
            return status(stream.recv(1000))


class Upstream(BaseHTTPRequestHandler):
    """Answers as Flower's server might."""

    def do_POST(self) -> None:
        self.send_response_only(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextlib.contextmanager
def standing(home: Path, seconds: int) -> Iterator[Gate]:
    """A gate that knows the site north, before a server that answers 200 to everything."""
    make(home / "keys", "localhost", ["north"])
    behind = ThreadingHTTPServer((HERE, 0), Upstream)
    threading.Thread(target=behind.serve_forever, daemon=True).start()
    made, own = Guarded(home / "keys", home, free_port(), 0), home / "keys" / "server"
    words = [sys.executable, "-c", HURRIED.format(seconds=seconds), "--host=127.0.0.1"]
    words += [f"--port={made.public}", f"--upstream=http://127.0.0.1:{behind.server_port}"]
    words += [f"--cert={own}/server.crt", f"--key={own}/server.key", f"--sites={own}/sites"]
    log = home / "gate.log"
    with log.open("wb") as stream, running(words, home / "run", stream) as process:
        await_port(made.public, process, log)
        yield Gate(made, process.pid)
    behind.shutdown()
    behind.server_close()


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


@contextlib.contextmanager
def flood(gate: Gate, sources: Sequence[str]) -> Iterator[list[socket.socket]]:
    """Many connections on which nothing is said."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(gate.plain(sources[number % len(sources)]))
            for number in range(MANY)
        ]


def soon(seen: Callable[[], bool], seconds: float = 10) -> bool:
    """Whether something comes true in time."""
    end = time.monotonic() + seconds
    while not seen():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def ended(stream: socket.socket, seconds: float = 10) -> bool:
    """Whether the other side has closed a connection, or does so in time."""
    stream.settimeout(seconds)
    try:
        while stream.recv(1000):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


def held(gate: Gate, streams: list[socket.socket], most: int) -> None:
    """The gate has so many connections of a flood, and has closed all others."""
    assert soon(lambda: gate.connections() == most), gate.connections()
    assert sum(not ended(stream, 0.001) for stream in streams) == most


def test_one_address_cannot_keep_the_others_out(patient: Gate) -> None:
    assert patient.site(HERE) == patient.site(ELSEWHERE) == 200
    with flood(patient, [HERE]) as streams:
        assert patient.site(ELSEWHERE) == 200
        held(patient, streams, MOST_OF_ADDRESS)
        assert patient.site(ELSEWHERE) == 200
        with pytest.raises(OSError):  # noqa: PT011, several ways to see that it was hung up on
            patient.site(HERE)
    began = time.monotonic()
    assert soon(lambda: patient.connections() == 0)
    assert patient.site(HERE) == 200
    assert time.monotonic() - began < 5


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


def hello() -> bytes:
    """The first words of a TLS handshake."""
    context, sent = ssl.create_default_context(), ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


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
    assert home_of("192.0.2.7") == "192.0.2.7"
    assert home_of("2001:db8::7") == home_of("2001:db8::1:2:3:4") != home_of("2001:db8:0:1::7")
    assert home_of("fe80::1%eth0") == "fe80::/64"
