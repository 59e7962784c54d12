"""What a site's SuperNode is at, told in words; Flower tells it only in its log, in its own."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

from protofed.deploy.lines import say
from protofed.deploy.reach import NETWORK

# Flower's words
JOINED = "SuperNode ID:"
RETRIES = "Connection attempt failed"  # also of its other processes, about one another
REACHED = "Connection successful after"
STILL_THERE = "[code: 2004]"  # the server takes this node to be online
NO_TRUST = "SSL/TLS handshake error"

SECONDS = 3.0  # for a connection
CHECK = "`protofed join` with --check looks closer"


def answers(server: str) -> bool:
    """Whether somebody listens there."""
    host, _, port = server.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), SECONDS).close()
    except (OSError, OverflowError):  # the second for ports that there are not
        return False
    return True


class NodeWatch:
    """Reads the log of a SuperNode as it grows; what is the case is told once, not again."""

    def __init__(
        self,
        server: str,
        name: str,
        log: Path,
        answers: Callable[[str], bool] = answers,
        tell: Callable[[str], None] = say,
    ):
        self.server, self.name, self.log, self.answers, self.say = server, name, log, answers, tell
        self.last = ""
        self.begin()

    def begin(self) -> None:
        """A new SuperNode starts: what stands in the log by now is not of it."""
        self.place = self.log.stat().st_size if self.log.exists() else 0
        self.joined, self.words = False, ""

    def look(self) -> None:
        """Tell what has happened since the last look."""
        if not self.log.exists():
            return
        with self.log.open("rb") as stream:
            stream.seek(self.place)
            *lines, part = stream.read().decode(errors="replace").split("\n")
            self.place = stream.tell() - len(part.encode())
        for line in lines:
            self._heard(line)
        if any(RETRIES in line for line in lines[-1:]):
            self.probe()

    def _heard(self, line: str) -> None:
        self.words = f"{self.words}{line}\n"[-4000:]
        if JOINED in line:
            self.joined = True
            self.tell(f"joined {self.server}")
        elif REACHED in line and self.joined:
            self.tell(f"joined {self.server}")

    def probe(self) -> None:
        """Tell it if nobody answers at the server's address."""
        if not self.answers(self.server):
            self.tell(f"{self.server} does not answer; trying again ({NETWORK})")

    def ended(self, code: int) -> None:
        """Tell why a SuperNode has ended that should not have; it is started again."""
        self.look()
        self.tell(f"{self._reason(code)}; trying again")

    def _reason(self, code: int) -> str:
        if self.joined:
            return f"the connection to {self.server} ended (exit code {code}, see {self.log})"
        if STILL_THERE in self.words:
            return (
                f"{self.server} takes {self.name} to be there already: after a crash that lasts "
                f"half a minute; if it stays so, another `join` has the same keys"
            )
        if NO_TRUST in self.words:
            return f"{self.server} does not show the certificate of this federation; {CHECK}"
        if code == 0:
            return (
                f"{self.server} refuses the key of {self.name}: it is not registered there, or "
                f"the clocks differ; ask who runs the server; {CHECK}"
            )
        return f"Flower's SuperNode ended (exit code {code}, see {self.log})"

    def tell(self, text: str) -> None:
        """Say something, unless it was the last thing said."""
        if text != self.last:
            self.last = text
            self.say(text)
