"""A site's line to Flower's server: fetch a letter, hand in the answer, and nothing else.

This stands where Flower's SuperNode would. A SuperNode fetches the app of a run and starts it; here
no app is ever fetched, and letters of runs under any app but ours are refused unread.
"""

from __future__ import annotations

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

from protofed.core.errors import ProtofedError
from protofed.deploy.flower_client import (
    OBJECT_FRAME,
    CallError,
    FlowerClient,
    LetterCollector,
    ProtobufMessage,
    T,
    as_parcel,
    as_record,
    call_patiently,
    error_reply,
)
from protofed.deploy.known import SiteKey

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
