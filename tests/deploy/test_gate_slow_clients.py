"""Clients that are slow on purpose, and bodies that pass the gate piece by piece."""

from __future__ import annotations

import socket
import ssl
import sys
import threading
from collections.abc import Iterator

import pytest

pytest.importorskip("flwr", reason="needs the flower extra")

from protofed.deploy.gate import serve_gate
from protofed.deploy.keys import make_keys
from tests.deploy.flower import Guarded, await_port, free_port, running, status

HURRIED = """
from protofed.deploy import gate
gate.HEAD_SECONDS = 1
gate.PIECE_SECONDS = 2
gate.BODY_SECONDS = 4
gate.gate_main()
"""
HEAD = b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: localhost\r\nContent-Length: 10\r\n"


@pytest.fixture(scope="module")
def hurried(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A gate that waits for a second; behind it, whoever listens on the inner port."""
    home = tmp_path_factory.mktemp("hurried")
    make_keys(home / "keys", "localhost", ["north"])
    made, own = Guarded(home / "keys", home, free_port(), free_port()), home / "keys" / "server"
    words = [sys.executable, "-c", HURRIED, "--host=127.0.0.1", f"--port={made.public}"]
    words += [f"--upstream=http://127.0.0.1:{made.inner}"]
    words += [f"--cert={own}/server.crt", f"--key={own}/server.key"]
    log = home / "gate.log"
    with log.open("wb") as stream, running(words, home / "run", stream) as process:
        await_port(made.public, process, log)
        yield made


@pytest.mark.parametrize(
    "sent", [b"", b"POST /v1/fleet/activ", HEAD], ids=["nothing", "half a line", "half the headers"]
)
def test_who_never_ends_the_headers_is_hung_up_on(hurried: Guarded, sent: bytes) -> None:
    assert hurried.say(sent) == b""


def test_who_dribbles_headers_is_hung_up_on(hurried: Guarded) -> None:
    with connected(hurried) as stream:
        stream.settimeout(0.2)
        found: bytes | None = None
        for _ in range(50):  # a byte at a time would keep a plain time-out from ever passing
            try:
                stream.sendall(b"P")
                found = stream.recv(100)
            except TimeoutError:
                continue
            except OSError:
                found = b""
            break
        assert found == b""


def test_who_never_ends_a_body_is_refused(hurried: Guarded) -> None:
    with socket.create_server(("127.0.0.1", hurried.inner)):
        assert status(hurried.say(HEAD + b"\r\nhalf")) == 408


def test_without_flower_the_answer_is_one_that_sites_try_again_after(hurried: Guarded) -> None:
    assert status(hurried.say(HEAD + b"\r\n0123456789")) == 502


def test_a_body_passes_piece_by_piece_and_headers_are_cleaned(hurried: Guarded) -> None:
    arrived, got = threading.Event(), bytearray()

    def flower(server: socket.socket) -> None:
        link, _ = server.accept()
        with link:
            while not got.endswith(b"56789"):
                got.extend(link.recv(1000))
                if got.endswith(b"01234"):
                    arrived.set()
            link.sendall(b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 2\r\n\r\nok")

    with socket.create_server(("127.0.0.1", hurried.inner)) as server:
        behind = threading.Thread(target=flower, args=(server,))
        behind.start()
        with connected(hurried) as stream:
            extra = b"X-Forwarded-For: 10.0.0.1\r\nX-Drop: 1\r\nConnection: x-drop\r\nX-Keep: 1\r\n"
            stream.sendall(HEAD + extra + b"\r\n01234")
            assert arrived.wait(60)  # before the second half is sent
            stream.sendall(b"56789")
            answer = stream.recv(1000)
        behind.join()
    assert status(answer) == 200
    assert b"server:" not in answer.lower()
    head = bytes(got).lower()
    assert b"x-keep: 1" in head
    assert b"x-forwarded" not in head
    assert b"x-drop: 1" not in head


def connected(gate: Guarded) -> ssl.SSLSocket:
    plain = socket.create_connection(("127.0.0.1", gate.public), timeout=20)
    context = ssl.create_default_context(cafile=str(gate.ca))
    return context.wrap_socket(plain, server_hostname="localhost")


def test_a_port_that_is_taken_is_told(hurried: Guarded) -> None:
    own = hurried.keys / "server"
    address = "127.0.0.1", hurried.public
    with pytest.raises(OSError, match="Address already in use"):
        serve_gate(address, "http://127.0.0.1:1", own / "server.crt", own / "server.key")
