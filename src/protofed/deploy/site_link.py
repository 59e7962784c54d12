"""The process of a site that speaks with the server; it holds no torch and cannot read the images.

This stands where Flower's SuperNode would. A SuperNode fetches the app of a run and starts it; here
no app is ever fetched, and letters of runs under any app but ours are refused unread.
"""

from __future__ import annotations

import argparse
import json
import os
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from flwr.app import Message
from flwr.common.serde import message_from_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    DeactivateNodeRequest,
    DeactivateNodeResponse,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
    RegisterNodeFleetRequest,
    RegisterNodeFleetResponse,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest, SendNodeHeartbeatResponse
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    ObjectTree,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.run_pb2 import GetRunRequest, GetRunResponse

from protofed.deploy.console import NETWORK, print_line
from protofed.deploy.flower_client import (
    OBJECT_FRAME,
    CallError,
    FlowerClient,
    LetterCollector,
    ProtobufMessage,
    T,
    as_parcel,
    as_record,
    bundle_hash,
    call_patiently,
    error_reply,
)
from protofed.deploy.site_keyring import SiteKey
from protofed.deploy.worker_socket import NO_QUESTION, ask_worker
from protofed.errors import ProtofedError
from protofed.runtime.child_process import exit_with_pipe, stop_on_sigterm

HEARTBEAT = 12.0  # seconds; who misses two of them is gone
BEAT_EVERY = 5.0  # seconds
PARTS_SECONDS = 60.0  # for the parts of a message that is announced
PAUSE = 0.05  # seconds between two looks for them
LONGEST_REPLY = 3600.0  # seconds for which a reply is offered to a server that is away
REFUSED = 6  # Flower's number for an app that was not accepted


class WaitingRequest(NamedTuple):
    """A message that waits at the server; its content is not here yet."""

    message: Message
    tree: ObjectTree

    @property
    def run(self) -> int:
        """Flower's number of the run that it belongs to."""
        return int(self.message.metadata.run_id)


class FleetConnection:
    """One site that is online at one server, from `open` to `close`."""

    def __init__(self, server: str, keys: Path | None):
        self.key = SiteKey(keys / "site.key" if keys else None)
        self.registers = keys is None  # who has no key from the coordinator brings its own
        trust = ssl.create_default_context(cafile=str(keys / "ca.crt")) if keys else None
        scheme = "https" if keys else "http"
        self.client = FlowerClient(f"{scheme}://{server}", "SuperNode", trust, self.key.headers)
        self.node = Node()
        self.left = threading.Event()

    def open(self, before: int = 0) -> int:
        """Go online; this site's number. `before` is the number it had, if it may not have left.

        A server lets nobody in under the key of a site that it takes to be there.
        """
        if self.registers:
            asked = RegisterNodeFleetRequest(public_key=self.key.public)
            self.client.call("fleet/register-node", asked, RegisterNodeFleetResponse)
        if before:
            with suppress(CallError):
                self._leave(before)
        asked_in = ActivateNodeRequest(public_key=self.key.public, heartbeat_interval=HEARTBEAT)
        found = self.client.call("fleet/activate-node", asked_in, ActivateNodeResponse)
        self.node = Node(node_id=found.node_id)
        threading.Thread(target=self._beat, daemon=True).start()
        return int(found.node_id)

    def _leave(self, number: int) -> None:
        asked = DeactivateNodeRequest(node_id=number)
        self.client.call("fleet/deactivate-node", asked, DeactivateNodeResponse)

    def _beat(self) -> None:
        """Say every few seconds that this site is still there; a lost word is said again."""
        asked = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=HEARTBEAT)
        while not self.left.wait(BEAT_EVERY):
            with suppress(ProtofedError):
                self.client.call("fleet/send-node-heartbeat", asked, SendNodeHeartbeatResponse)

    def next_letter(self) -> WaitingRequest | None:
        """The next letter to this site, if one waits."""
        asked = PullMessagesRequest(node=self.node)
        found = self.client.call("fleet/pull-messages", asked, PullMessagesResponse)
        if not found.messages_list or not found.message_object_trees:
            return None
        try:
            message = message_from_proto(found.messages_list[0])
        except Exception as fault:  # a stranger's message may fail in any way
            raise ProtofedError(f"a message that is none: {type(fault).__name__}") from fault
        return WaitingRequest(message, found.message_object_trees[0])

    def app_of(self, run: int) -> tuple[str, str]:
        """The app of a run as the server tells it: its name, and the SHA-256 of its bundle."""
        asked = GetRunRequest(node=self.node, run_id=run)
        told = self.client.call("fleet/get-run", asked, GetRunResponse).run
        return told.fab_id, told.fab_hash

    def content(self, letter: WaitingRequest, most: int) -> bytes:
        """What a letter says; more than `most` bytes are not taken."""

        def pull(name: str, allowed: int) -> bytes | None:
            asked = PullObjectRequest(node=self.node, run_id=letter.run, object_id=name)
            found = self.client.call(
                "fleet/pull-object", asked, PullObjectResponse, allowed + OBJECT_FRAME
            )
            if not found.object_found:
                raise ProtofedError("a part of the message is gone")
            return found.object_content if found.object_available else None

        found = self._collected(LetterCollector(letter.tree, most), pull)
        number = letter.message.metadata.message_id
        asked = ConfirmMessageReceivedRequest(
            node=self.node, run_id=letter.run, message_object_id=number
        )
        self.client.call("fleet/confirm-message-received", asked, ConfirmMessageReceivedResponse)
        return found

    def _collected(self, parts: LetterCollector, pull: Callable[[str, int], bytes | None]) -> bytes:
        """A letter, which can be fetched while the coordinator still hands in its parts."""
        end = time.monotonic() + PARTS_SECONDS
        while (found := parts.collect(pull)) is None:
            if time.monotonic() > end:
                raise ProtofedError("a part of the message did not come")
            time.sleep(PAUSE)
        return found

    def answer(self, letter: WaitingRequest, content: bytes, seconds: float) -> None:
        """Hand in the answer to a letter, which took some seconds to make."""
        self._push(letter, Message(as_record(content), reply_to=letter.message), seconds)

    def refuse(self, letter: WaitingRequest, reason: str) -> None:
        """Say in words that there is no answer."""
        self._push(letter, error_reply(letter.message, REFUSED, reason), 0.0)

    def _push(self, letter: WaitingRequest, reply: Message, seconds: float) -> None:
        parcel = as_parcel(reply)
        asked = PushMessagesRequest(
            node=self.node,
            messages_list=[parcel.head],
            message_object_trees=[parcel.tree],
            clientapp_runtime_list=[seconds],
        )
        wait = min(LONGEST_REPLY, letter.message.metadata.ttl)
        taken = self._patiently("fleet/push-messages", asked, PushMessagesResponse, wait)
        for name in taken.objects_to_push:
            if name in parcel.objects:
                part = PushObjectRequest(
                    node=self.node,
                    run_id=letter.run,
                    object_id=name,
                    object_content=parcel.objects[name],
                    session_id=taken.session_id,
                )
                self._patiently("fleet/push-object", part, PushObjectResponse, wait)

    def _patiently(self, name: str, asked: ProtobufMessage, kind: type[T], wait: float) -> T:
        return call_patiently(lambda: self.client.call(name, asked, kind), wait)

    def close(self) -> None:
        """Go offline, if the server still hears it."""
        if not self.left.is_set() and self.node.node_id:
            with suppress(ProtofedError):
                self._leave(self.node.node_id)
        self.left.set()
        self.client.close()


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
