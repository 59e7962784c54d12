"""The process of a site that speaks with the server; it holds no torch and cannot read the images.

This stands where Flower's SuperNode would. A SuperNode fetches the app of a run and starts it; here
no app is ever fetched, and requests of runs under any app but ours are refused unread.
"""

from __future__ import annotations

import argparse
import json
import os
import ssl
import time
from contextlib import suppress
from pathlib import Path

from protofed.deploy.flower_client import CallError, FlowerClient, bundle_hash, call_patiently
from protofed.deploy.flower_compat import (
    ALREADY_ONLINE,
    SMALL_ANSWER,
    FleetCalls,
    Heartbeat,
    ObjectCollector,
    ProtobufMessage,
    T,
    WaitingRequest,
)
from protofed.deploy.keys import SiteKey
from protofed.deploy.worker_socket import NO_QUESTION, ask_worker
from protofed.errors import ProtofedError
from protofed.runtime.child_process import exit_with_pipe, stop_on_sigterm
from protofed.runtime.console import NETWORK, print_line

HEARTBEAT = 12.0  # seconds; a site that misses two of them is offline
BEAT_EVERY = 5.0  # seconds
PARTS_SECONDS = 60.0  # for the parts of a message that is announced
PAUSE = 0.05  # seconds between two looks for them
LONGEST_REPLY = 3600.0  # seconds for which a reply is offered to a server that is away


class FleetConnection:
    """One site that is online at one server, from :meth:`open` to :meth:`close`.

    `keys` is the site's folder of keys; without one, the site brings a key of its own, which only
    a server without registered keys takes, and speaks plain HTTP.
    """

    def __init__(self, server: str, keys: Path | None):
        self.key = SiteKey(keys / "site.key" if keys else None)
        self.registers = keys is None
        trust = ssl.create_default_context(cafile=str(keys / "ca.crt")) if keys else None
        scheme = "https" if keys else "http"
        self.client = FlowerClient(f"{scheme}://{server}", "SuperNode", trust, self.key.headers)
        self.calls = FleetCalls(self.client.call)
        self.heartbeat = Heartbeat(lambda: self.calls.beat(HEARTBEAT), BEAT_EVERY)
        self.online = 0  # this site's number while it is online

    def open(self, before: int = 0) -> int:
        """Go online; return this site's number. `before` is the number it had, if it crashed.

        A server admits nobody under the key of a site that it believes to be online, so an earlier
        process of this site is signed off first.
        """
        if self.registers:
            self.calls.register(self.key.public)
        if before:
            with suppress(CallError):
                self.calls.deactivate(before)
        self.online = self.calls.activate(self.key.public, HEARTBEAT)
        self.heartbeat.start()
        return self.online

    def next_request(self) -> WaitingRequest | None:
        """The next request to this site, if one waits."""
        return self.calls.next_request()

    def app_of_run(self, run: int) -> tuple[str, str]:
        """The app of a run as the server states it: its name, and the SHA-256 of its bundle."""
        return self.calls.app_of_run(run)

    def content(self, request: WaitingRequest, most: int) -> bytes:
        """Fetch the content of a request; more than `most` bytes are not taken.

        It can be fetched while the coordinator still hands in its parts.
        """
        parts, end = ObjectCollector(request.tree, most), time.monotonic() + PARTS_SECONDS

        def pull(name: str, allowed: int) -> bytes | None:
            return self.calls.pull_object(request.run, name, allowed)

        while (found := parts.collect(pull)) is None:
            if time.monotonic() > end:
                raise ProtofedError("a part of the message did not come")
            time.sleep(PAUSE)
        self.calls.confirm(request.run, request.number)
        return found

    def answer(self, request: WaitingRequest, content: bytes, seconds: float) -> None:
        """Hand in the answer to a request, which took some seconds to make."""
        self._push(request, content, seconds)

    def refuse(self, request: WaitingRequest, reason: str) -> None:
        """Hand in the reason why there is no answer."""
        self._push(request, reason, 0.0)

    def _push(self, waiting: WaitingRequest, content: bytes | str, seconds: float) -> None:
        """Hand in a reply; while the server is away, for as long as anybody may wait for it."""
        wait = min(LONGEST_REPLY, waiting.seconds)

        def call(name: str, request: ProtobufMessage, kind: type[T], most: int = SMALL_ANSWER) -> T:
            return call_patiently(lambda: self.client.call(name, request, kind, most), wait)

        self.calls.push_reply(waiting, content, seconds, call)

    def close(self) -> None:
        """Go offline, if the server can still be reached."""
        self.heartbeat.stop()
        if self.online:
            with suppress(ProtofedError):
                self.calls.deactivate(self.online)
        self.online = 0
        self.client.close()


LOOK = 0.3  # seconds between two looks for requests
RETRY = 3.0  # seconds before a server is tried again
PATIENCE = 120.0  # seconds for a worker that is being started again
MOST_RECORDED = 2 << 20  # bytes of lines on foreign apps
FOREIGN_APPS = "foreign-apps.jsonl"
MOST_RUNS = 1_000  # of which the app is remembered
CHECK = "the preflight check of `protofed join` says more"


class SiteLink:
    """Keeps a site online, and carries requests to its worker and answers back.

    `folder` is the only one it may write to; `most` is the largest request in bytes. It passes on
    bytes that it does not interpret. Requests of runs under any app but protofed's are refused,
    printed and recorded.
    """

    def __init__(self, server: str, name: str, keys: Path | None, folder: Path, most: int):
        self.server, self.name, self.keys, self.most = server, name, keys, most
        self.number, self.record = folder / "node-number", folder / FOREIGN_APPS
        self.ours: dict[int, bool] = {}  # by Flower's number of a run
        self.last = ""

    def run(self, socket: Path) -> None:
        """Work until this process is ended; a lost connection is made again."""
        while True:
            connection = FleetConnection(self.server, self.keys)
            try:
                self.number.write_text(f"{connection.open(self._before())}\n")
                self.report(f"joined {self.server}")
                while True:
                    if not self._work(connection, socket):
                        time.sleep(LOOK)
            except CallError as fault:
                self.report(f"{self._reason(fault)}; trying again")
            except (ProtofedError, OSError) as fault:  # what a server sends must not end this
                self.report(f"{self.server}: {fault}; trying again")
            finally:
                connection.close()
            time.sleep(RETRY)

    def _before(self) -> int:
        """The number under which an earlier process of this site was online."""
        try:
            told = self.number.read_text()[:30].strip()
        except (OSError, ValueError):
            return 0
        return int(told) if told.isdecimal() and self.keys else 0

    def _work(self, connection: FleetConnection, socket: Path) -> bool:
        """Carry one request, if one waits."""
        try:
            request = connection.next_request()
            if request is None:
                return False
            self._carry(connection, request, socket)
        except CallError as fault:
            if fault.status in (0, 401) or fault.may_pass:
                raise  # the server has gone, or does not know this site any more
            self.report(f"a message was lost: {fault}")
            return False  # which is followed by a pause
        except (ProtofedError, TimeoutError) as fault:
            self.report(f"a message was refused: {fault}")
            return False
        return True

    def _carry(self, connection: FleetConnection, request: WaitingRequest, socket: Path) -> None:
        if not self._is_ours(connection, request):
            connection.refuse(request, "this site runs no app but protofed's own")
            return
        began = time.monotonic()
        try:
            content = connection.content(request, self.most)
            answer = ask_worker(socket, content, PATIENCE)
            if answer == NO_QUESTION:
                raise ProtofedError("not a question of protofed's")
        except (ProtofedError, TimeoutError) as fault:
            if not isinstance(fault, CallError):
                connection.refuse(request, str(fault))
            raise
        connection.answer(request, answer, time.monotonic() - began)

    def _is_ours(self, connection: FleetConnection, request: WaitingRequest) -> bool:
        """Whether a run was started with our bundle; any other app is reported and recorded."""
        if request.run not in self.ours:
            app, found = connection.app_of_run(request.run)
            while len(self.ours) >= MOST_RUNS:
                self.ours.pop(next(iter(self.ours)))
            self.ours[request.run] = found == bundle_hash()
            if not self.ours[request.run]:
                self._report(app, found)
        return self.ours[request.run]

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
        if ALREADY_ONLINE in str(fault):
            return (
                f"{self.server} believes {self.name} to be online already: after a crash this "
                f"lasts half a minute; if it persists, another `join` uses the same keys"
            )
        if fault.status == 401:
            return (
                f"{self.server} refuses the key of {self.name}: it is not registered there, or "
                f"the clocks differ; ask the coordinator; {CHECK}"
            )
        return f"{self.server} {fault}"

    def report(self, text: str) -> None:
        """Print a line, unless it was the last one printed."""
        if text != self.last:
            self.last = text
            print_line(text)


def link_main() -> None:
    """Run the link of a site until its parent ends: ``python -m protofed.deploy.site_link``."""
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
