"""The process of a site that speaks with the server; it holds no torch and cannot read images.

It carries bytes between the server and the site's worker, which judges them. `join` starts it by
`confine`: where Linux can do that, it has given up the right to read the images by now.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from contextlib import suppress
from pathlib import Path

from protofed.core.errors import ProtofedError
from protofed.core.lifeline import exit_with_pipe
from protofed.deploy.app_bundle import bundle_hash
from protofed.deploy.fleet_connection import FleetConnection, WaitingRequest
from protofed.deploy.flower_client import CallError
from protofed.deploy.hatch import NO_QUESTION, ask_worker
from protofed.deploy.life import stop_on_sigterm
from protofed.deploy.lines import print_line
from protofed.deploy.reach import NETWORK

LOOK = 0.3  # seconds between two looks for letters
RETRY = 3.0  # seconds before a server is tried again
PATIENCE = 120.0  # seconds for a worker that is being started again
STILL_THERE = "2004"  # Flower's number for a site that it takes to be online
MOST_RECORDED = 2 << 20  # bytes of lines on foreign apps
FOREIGN_APPS = "foreign-apps.jsonl"
MOST_RUNS = 1_000  # of which the app is remembered
CHECK = "`protofed join` with --check looks closer"


class SiteLink:
    """Goes online, carries letters to the worker and answers back, and goes online again."""

    def __init__(self, server: str, name: str, keys: Path | None, folder: Path, most: int):
        self.server, self.name, self.keys, self.most = server, name, keys, most
        self.number, self.record = folder / "node-number", folder / FOREIGN_APPS
        self.ours: dict[int, bool] = {}  # by Flower's number of a run
        self.last = ""

    def run(self, socket: Path) -> None:
        """Until this process is ended."""
        while True:
            line = FleetConnection(self.server, self.keys)
            try:
                self.number.write_text(f"{line.open(self._before())}\n")
                self.tell(f"joined {self.server}")
                while True:
                    if not self._work(line, socket):
                        time.sleep(LOOK)
            except CallError as fault:
                self.tell(f"{self._reason(fault)}; trying again")
            except (ProtofedError, OSError) as fault:  # what a server sends must not end this
                self.tell(f"{self.server}: {fault}; trying again")
            finally:
                line.close()
            time.sleep(RETRY)

    def _before(self) -> int:
        """The number under which an earlier process of this site was online."""
        try:
            told = self.number.read_text()[:30].strip()
        except (OSError, ValueError):
            return 0
        return int(told) if told.isdecimal() and self.keys else 0

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
            return False  # which is followed by a pause
        except (ProtofedError, TimeoutError) as fault:
            self.tell(f"a message was refused: {fault}")
            return False
        return True

    def _carry(self, line: FleetConnection, letter: WaitingRequest, socket: Path) -> None:
        if not self._is_ours(line, letter):
            line.refuse(letter, "this site runs no app but protofed's own")
            return
        began = time.monotonic()
        try:
            content = line.content(letter, self.most)
            answer = ask_worker(socket, content, PATIENCE)
            if answer == NO_QUESTION:
                raise ProtofedError("not a question of protofed's")
        except (ProtofedError, TimeoutError) as fault:
            if not isinstance(fault, CallError):
                line.refuse(letter, str(fault))
            raise
        line.answer(letter, answer, time.monotonic() - began)

    def _is_ours(self, line: FleetConnection, letter: WaitingRequest) -> bool:
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
        print_line(
            f"REFUSED: the server asked this site to run a foreign app ({app[:80]}, {found[:12]})"
        )
        now = time.strftime("%FT%TZ", time.gmtime())
        told = {"time": now, "app": app[:200], "sha256": found[:64], "ours": bundle_hash()}
        with suppress(OSError):  # a full disk does not let anything in
            if not self.record.exists() or self.record.stat().st_size < MOST_RECORDED:
                with self.record.open("a", encoding="utf-8") as stream:
                    stream.write(json.dumps(told) + "\n")

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

    def tell(self, text: str) -> None:
        """Say something, unless it was the last thing said."""
        if text != self.last:
            self.last = text
            print_line(text)


def link_main() -> None:
    """Speak with the server until the parent ends."""
    parser = argparse.ArgumentParser()
    for name in ("server", "name", "folder", "socket", "most", "life", "keys"):
        parser.add_argument(f"--{name}", required=name != "keys")
    given = parser.parse_args()
    exit_with_pipe(int(given.life))
    stop_on_sigterm()
    keys = Path(given.keys) if given.keys else None
    link = SiteLink(given.server, given.name, keys, Path(given.folder), int(given.most))
    os.chdir("/")
    link.run(Path(given.socket))


if __name__ == "__main__":
    link_main()
