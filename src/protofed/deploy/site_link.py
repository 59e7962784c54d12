"""The process of a site that speaks with the server; it holds no torch and cannot read images.

It carries bytes between the server and the site's worker, which judges them. On Linux it gives up
the right to read the images before the first byte of the server reaches it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from contextlib import closing, suppress
from pathlib import Path

from protofed.core.errors import ProtofedError
from protofed.core.lifeline import end_with_the_pipe
from protofed.deploy import confine
from protofed.deploy.app_bundle import bundle_hash
from protofed.deploy.fleet_connection import FleetConnection, Letter
from protofed.deploy.flower_client import CallError
from protofed.deploy.hatch import NO_QUESTION, ask
from protofed.deploy.life import stop_on_sigterm
from protofed.deploy.lines import say
from protofed.deploy.reach import NETWORK

LOOK = 0.3  # seconds between two looks for letters
RETRY = 3.0  # seconds before a server is tried again
PATIENCE = 120.0  # seconds for a worker that is being started again
STILL_THERE = "2004"  # Flower's number for a site that it takes to be online
MOST_RECORDED = 10_000  # foreign apps
MOST_RUNS = 1_000  # of which the app is remembered
CHECK = "`protofed join` with --check looks closer"


class SiteLink:
    """Goes online, carries letters to the worker and answers back, and goes online again."""

    def __init__(self, server: str, name: str, keys: Path | None, home: Path, most: int):
        self.server, self.name, self.keys, self.most = server, name, keys, most
        self.number = open(home / "node-number", "a+", encoding="utf-8")  # noqa: SIM115
        self.record = open(home / "foreign-apps.jsonl", "a", encoding="utf-8")  # noqa: SIM115
        self.recorded = 0
        self.ours: dict[int, bool] = {}  # by Flower's number of a run
        self.last = ""

    def run(self, socket: Path) -> None:
        """Until this process is ended."""
        while True:
            line = FleetConnection(self.server, self.keys)
            try:
                self._remember(line.open(self._before()))
                self.tell(f"joined {self.server}")
                while True:
                    if not self._work(line, socket):
                        time.sleep(LOOK)
            except CallError as fault:
                self.tell(f"{self._reason(fault)}; trying again")
            finally:
                line.close()
            time.sleep(RETRY)

    def _before(self) -> int:
        """The number under which an earlier process of this site was online."""
        self.number.seek(0)
        told = self.number.read(30).strip()
        return int(told) if told.isdecimal() and self.keys else 0

    def _remember(self, number: int) -> None:
        self.number.truncate(0)
        self.number.write(f"{number}\n")
        self.number.flush()

    def _work(self, line: FleetConnection, socket: Path) -> bool:
        """Carry one letter, if one waits."""
        try:
            letter = line.next_letter()
            if letter is None:
                return False
            self._carry(line, letter, socket)
        except CallError as fault:
            if fault.status in (0, 401) or fault.may_pass:
                raise  # the server has gone, or does not know this site any more
            self.tell(f"a message was lost: {fault}")
        except ProtofedError as fault:
            self.tell(f"a message was refused: {fault}")
        return True

    def _carry(self, line: FleetConnection, letter: Letter, socket: Path) -> None:
        if not self._is_ours(line, letter):
            line.refuse(letter, "this site runs no app but protofed's own")
            return
        began = time.monotonic()
        try:
            content = line.content(letter, self.most)
            answer = ask(socket, content, PATIENCE)
            if answer == NO_QUESTION:
                raise ProtofedError("not a question of protofed's")
        except (ProtofedError, TimeoutError) as fault:
            if not isinstance(fault, CallError):
                line.refuse(letter, str(fault))
            raise
        line.answer(letter, answer, time.monotonic() - began)

    def _is_ours(self, line: FleetConnection, letter: Letter) -> bool:
        """Whether a run was started with our bundle; any other app is told of and recorded."""
        if letter.run not in self.ours:
            app, found = line.app_of(letter.run)
            while len(self.ours) >= MOST_RUNS:
                self.ours.pop(next(iter(self.ours)))
            self.ours[letter.run] = found == bundle_hash()
            if not self.ours[letter.run]:
                self._report(app, found)
        return self.ours[letter.run]

    def _report(self, app: str, found: str) -> None:
        say(f"REFUSED: the server asked this site to run a foreign app ({app[:80]}, {found[:12]})")
        if self.recorded < MOST_RECORDED:
            self.recorded += 1
            now = time.strftime("%FT%TZ", time.gmtime())
            told = {"time": now, "app": app[:200], "sha256": found[:64], "ours": bundle_hash()}
            with suppress(OSError):  # a full disk does not let anything in
                self.record.write(json.dumps(told) + "\n")
                self.record.flush()

    def _reason(self, fault: CallError) -> str:
        if fault.status == 0 and "CERTIFICATE" in str(fault).upper():
            return f"{self.server} does not show the certificate of this federation; {CHECK}"
        if fault.status == 0 or fault.may_pass:
            return f"{self.server} does not answer ({NETWORK})"
        if STILL_THERE in str(fault):
            return (
                f"{self.server} takes {self.name} to be there already: after a crash that lasts "
                f"half a minute; if it stays so, another `join` has the same keys"
            )
        if fault.status == 401:
            return (
                f"{self.server} refuses the key of {self.name}: it is not registered there, or "
                f"the clocks differ; ask who runs the server; {CHECK}"
            )
        return f"{self.server} {fault}"

    def close(self) -> None:
        """Let go of the files that were opened before the rest was given up."""
        self.number.close()
        self.record.close()

    def tell(self, text: str) -> None:
        """Say something, unless it was the last thing said."""
        if text != self.last:
            self.last = text
            say(text)


def shield(images: Path, folders: list[Path]) -> None:
    """Give up the right to read the images, where the system can do that."""
    allowed = [folder.resolve() for folder in [*confine.interpreter_folders(), *folders]]
    around = [folder for folder in allowed if images.resolve().is_relative_to(folder)]
    if around:
        say(f"note: the images lie below {around[0]}, where the process that speaks with the")
        say("server must be able to read; at another place it would be shut out from them")
    elif not confine.read_only(allowed):
        say("note: this system cannot shut the process that speaks with the server out of the")
        say("images (that takes Linux with Landlock); that it does not read them rests on its code")


def main() -> None:
    """Speak with the server until the parent ends."""
    parser = argparse.ArgumentParser()
    for name in ("server", "name", "home", "socket", "data", "most", "life", "keys"):
        parser.add_argument(f"--{name}", required=name != "keys")
    given = parser.parse_args()
    end_with_the_pipe(int(given.life))
    stop_on_sigterm()
    keys = Path(given.keys) if given.keys else None
    link = SiteLink(given.server, given.name, keys, Path(given.home), int(given.most))
    socket = Path(given.socket)
    shield(Path(given.data), [socket.parent, *([keys] if keys else [])])
    os.chdir("/")
    with closing(link):
        link.run(socket)


if __name__ == "__main__":
    main()
