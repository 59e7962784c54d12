"""A gate's process, and what can be done to it with connections alone."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

from protofed.deploy.keys import SiteKey, make_keys
from tests.deploy.flower import Guarded, await_port, free_port, running, status

MANY = 1500
HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
HURRIED = """
from protofed.deploy import gate
gate.SHAKE_SECONDS = gate.HEAD_SECONDS = gate.LEAVE_SECONDS = {seconds}
gate.gate_main()
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
        lines += [f"{n}: {v}" for n, v in SiteKey(key).headers().items()]
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
    make_keys(home / "keys", "localhost", ["north"])
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


@contextlib.contextmanager
def flood(gate: Gate, sources: Sequence[str]) -> Iterator[list[socket.socket]]:
    """Many connections on which nothing is said."""
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(gate.plain(sources[number % len(sources)]))
            for number in range(MANY)
        ]


def soon(seen: Callable[[], bool], seconds: float = 60) -> bool:
    """Whether something comes true in time."""
    end = time.monotonic() + seconds
    while not seen():
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def ended(stream: socket.socket, seconds: float = 60) -> bool:
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


def hello() -> bytes:
    """The first words of a TLS handshake."""
    context, sent = ssl.create_default_context(), ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()
