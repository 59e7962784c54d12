"""A real Flower server on this machine alone, and our gate before it."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

BIN = Path(sys.executable).parent
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}",
}
CONFIG = """
[superlink]
default = "here"
[superlink.here]
address = "{address}"
root-certificates = "{ca}"
"""


class Guarded(NamedTuple):
    """A federation's server: the public port, and the one behind it."""

    keys: Path
    home: Path
    public: int
    inner: int

    @property
    def ca(self) -> Path:
        return self.keys / "server" / "ca.crt"

    def gate(self, *more: str) -> list[str]:
        """The command that guards the inner port."""
        server = self.keys / "server"
        words = [sys.executable, "-m", "protofed.deploy.gate", "--host=127.0.0.1"]
        words += [f"--port={self.public}", f"--upstream=https://127.0.0.1:{self.inner}"]
        words += [f"--cert={server}/server.crt", f"--key={server}/server.key", f"--ca={self.ca}"]
        return [*words, *more]

    def say(self, sent: bytes, port: int | None = None, tls: bool = True) -> bytes:
        """All that comes back for some bytes, until the other side hangs up."""
        with socket.create_connection(("127.0.0.1", port or self.public), timeout=20) as plain:
            context = ssl.create_default_context(cafile=str(self.ca))
            stream = context.wrap_socket(plain, server_hostname="localhost") if tls else plain
            with stream:
                stream.sendall(sent)
                found = b""
                with contextlib.suppress(ConnectionError):
                    while piece := stream.recv(1 << 16):
                        found += piece
        return found

    def ask(self, method: str, target: str, *more: str, port: int | None = None) -> int:
        """The status that a request of these very bytes gets."""
        lines = [f"{method} {target} HTTP/1.1", "Host: localhost", "Connection: close"]
        size = [] if any("Content-Length" in m or "chunked" in m for m in more) else ["0"]
        lines += [*more, *(f"Content-Length: {n}" for n in size), "", ""]
        return status(self.say("\r\n".join(lines).encode("latin-1"), port))


def status(answer: bytes) -> int:
    return int(answer.split()[1])


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port: int = held.getsockname()[1]
        return port


@contextlib.contextmanager
def running(words: list[str], home: Path, log: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """A command in a process group of its own, all of which is gone afterwards."""
    home.mkdir(exist_ok=True)
    environment = {**os.environ, **OFFLINE, "FLWR_HOME": str(home)}
    started = subprocess.Popen(
        words, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait(timeout=20)


def called(words: list[str], home: Path) -> str:
    """What a command of Flower's prints."""
    environment = {**os.environ, **OFFLINE, "FLWR_HOME": str(home)}
    ended = subprocess.run(
        [str(BIN / words[0]), *words[1:]],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def await_port(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until somebody listens."""
    end = time.monotonic() + 240
    while time.monotonic() < end:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise AssertionError(f"nobody listens on {port}:\n{log.read_text()}")


@contextlib.contextmanager
def guarded(keys: Path, home: Path) -> Iterator[Guarded]:
    """Flower's server and the gate, both with the keys of `protofed keys`."""
    home.mkdir()
    made, server = Guarded(keys, home, free_port(), free_port()), keys / "server"
    tls = [f"--ssl-certfile={server}/server.crt", f"--ssl-keyfile={server}/server.key"]
    link = [f"{BIN}/flower-superlink", *tls, f"--ssl-ca-certfile={made.ca}"]
    link += ["--enable-supernode-auth", "--host=127.0.0.1", f"--port={made.inner}"]
    logs = home / "link.log", home / "gate.log"
    with (
        logs[0].open("wb") as first,
        logs[1].open("wb") as second,
        running(link, home / "server", first) as upstream,
        running(made.gate(), home / "server", second) as proxy,
    ):
        await_port(made.public, proxy, logs[1])
        await_port(made.inner, upstream, logs[0])
        here = CONFIG.format(address=f"127.0.0.1:{made.inner}", ca=made.ca)
        (home / "server" / "config.toml").write_text(here)
        yield made
