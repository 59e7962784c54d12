"""The coordinator's line to Flower's server on this machine: letters to sites, answers back.

This stands where Flower would start an app of a run. `protofed submit` starts a run under our empty
bundle, takes its task itself, and sends and receives in its own process.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, Self

from flwr.app import Metadata
from flwr.app.message import make_message
from flwr.common.constant import SUPERLINK_NODE_ID, SubStatus
from flwr.proto.control_pb2 import StartRunRequest, StartRunResponse
from flwr.proto.fab_pb2 import Fab
from flwr.proto.message_pb2 import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    PullObjectRequest,
    PullObjectResponse,
    PushObjectRequest,
    PushObjectResponse,
)
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    AcquireTaskResponse,
    GetNodesRequest,
    GetNodesResponse,
    PullAppMessagesRequest,
    PullAppMessagesResponse,
    PullTaskInputRequest,
    PullTaskInputResponse,
    PushAppMessagesRequest,
    PushAppMessagesResponse,
    PushTaskOutputRequest,
    PushTaskOutputResponse,
    SendTaskHeartbeatRequest,
    SendTaskHeartbeatResponse,
)
from flwr.supercore.constant import TaskType

from protofed.deploy.flower_client import (
    OBJECT_FRAME,
    CallError,
    FlowerClient,
    LetterCollector,
    ProtobufMessage,
    T,
    app_bundle,
    as_parcel,
    as_record,
    bundle_hash,
    call_patiently,
)
from protofed.deploy.flower_server import SECRET_HEADER, limit_text
from protofed.engines.flower_engine import NoAnswer, OnlineSite
from protofed.errors import ProtofedError, printable_text

PATIENCE = 10.0  # seconds for a server on this machine that does not answer
BEAT_EVERY = 5.0  # seconds
QUERY = "query"  # the one type of message; what is asked stands in the letter
GONE = "the server on this machine has ended, or has ended this run"
REASONS = {  # Flower's numbers of errors
    3: "the message or its answer expired",
    5: "it went offline",
    6: "it refused the message",
}


class ServerGoneError(ProtofedError):
    """The server itself does not answer any more: no site is to be blamed for that."""


class ArrivingAnswer(NamedTuple):
    """An answer whose parts come in."""

    number: str  # of the message that brings it
    parts: LetterCollector


class RunChannel:
    """One run at the server, from `with` to its end."""

    def __init__(self, url: str, secret: str, ca: str):
        trust = ssl.create_default_context(cafile=ca) if ca else None
        self.headers = {SECRET_HEADER: secret}
        self.client = FlowerClient(url, "flwr-serverapp", trust, lambda: self.headers)
        self.run = 0
        self.sent: dict[str, int] = {}  # to which node each letter went
        self.arriving: dict[str, ArrivingAnswer] = {}
        self.ended = threading.Event()
        self.own = Node(node_id=SUPERLINK_NODE_ID)

    def __enter__(self) -> Self:
        fab = Fab(hash_str=bundle_hash(), content=app_bundle())
        self._call("control/start-run", StartRunRequest(fab=fab), StartRunResponse)
        asked = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
        task = self._call("runtime/acquire-task", asked, AcquireTaskResponse)
        if not task.token:
            raise ProtofedError("Flower's server did not hand out the run; try again")
        self.headers["flwr-task-token"] = task.token
        given = self._call("runtime/pull-task-input", PullTaskInputRequest(), PullTaskInputResponse)
        self.run = given.run.run_id
        threading.Thread(target=self._beat, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self.ended.set()
        how = SubStatus.FAILED if kind else SubStatus.COMPLETED
        asked = PushTaskOutputRequest(sub_status=how, details="")
        with suppress(ProtofedError):
            self.client.call("runtime/push-task-output", asked, PushTaskOutputResponse)
        self.client.close()

    def _beat(self) -> None:
        """Say every few seconds that this process is still there."""
        while not self.ended.wait(BEAT_EVERY):
            with suppress(ProtofedError):
                self.client.call(
                    "runtime/send-task-heartbeat",
                    SendTaskHeartbeatRequest(),
                    SendTaskHeartbeatResponse,
                )

    def _call(self, name: str, asked: ProtobufMessage, kind: type[T], most: int = 1 << 24) -> T:
        try:
            return call_patiently(lambda: self.client.call(name, asked, kind, most), PATIENCE)
        except CallError as fault:
            raise ServerGoneError(f"{GONE}: {fault}") from fault

    def online(self) -> list[OnlineSite]:
        """The sites that are connected now; without a name those without a registered key."""
        found = self._call("runtime/get-nodes", GetNodesRequest(), GetNodesResponse)
        return [OnlineSite(node.node_id, node.name) for node in found.nodes]

    def send(self, node: int, letter: bytes, seconds: float, most: int) -> str:
        """Send a letter that is worth nothing after some seconds; its number, "" if not taken.

        The answer to it may have at most so many bytes.
        """
        head = Metadata(
            run_id=self.run,
            message_id="",
            src_node_id=SUPERLINK_NODE_ID,
            dst_node_id=node,
            reply_to_message_id="",
            group_id=limit_text(most),
            created_at=time.time(),
            ttl=seconds,
            message_type=QUERY,
        )
        parcel = as_parcel(make_message(metadata=head, content=as_record(letter)))
        asked = PushAppMessagesRequest(
            messages_list=[parcel.head], message_object_trees=[parcel.tree]
        )
        taken = self._call("runtime/push-messages", asked, PushAppMessagesResponse)
        for name in taken.objects_to_push:
            part = PushObjectRequest(
                node=self.own,
                run_id=self.run,
                object_id=name,
                object_content=parcel.objects[name],
                session_id=taken.session_id,
            )
            self._call("runtime/push-object", part, PushObjectResponse)
        number = taken.message_ids[0] if taken.message_ids else ""
        if number:
            self.sent[number] = node
        return number

    def answers(self, waiting: Mapping[str, int]) -> dict[str, bytes | NoAnswer]:
        """The answers to some letters that are there by now; each is given once.

        Each letter's number comes with the bytes that its answer may have.
        """
        found: dict[str, bytes | NoAnswer] = {}
        asked = PullAppMessagesRequest(message_ids=[n for n in waiting if n not in self.arriving])
        told = self._call("runtime/pull-messages", asked, PullAppMessagesResponse)
        for head, tree in zip(told.messages_list, told.message_object_trees, strict=True):
            letter = head.metadata.reply_to_message_id
            if letter not in waiting:
                continue
            if head.HasField("error"):
                found[letter] = _lost(head.error)
            elif head.metadata.src_node_id != self.sent.get(letter):
                found[letter] = NoAnswer("another site answered in its place")
            else:
                try:
                    parts = LetterCollector(tree, waiting[letter])
                    self.arriving[letter] = ArrivingAnswer(head.metadata.message_id, parts)
                except ProtofedError as fault:
                    found[letter] = NoAnswer(f"its answer was refused: {fault}")
        for letter in [letter for letter in self.arriving if letter in waiting]:
            answer = self._arrived(self.arriving[letter])
            if answer is not None:
                found[letter] = answer
        self.forget(found)
        return found

    def forget(self, letters: Iterable[str]) -> None:
        """Let go of what was kept for letters that nobody waits for any more."""
        for letter in letters:
            self.sent.pop(letter, None)
            self.arriving.pop(letter, None)

    def _arrived(self, answer: ArrivingAnswer) -> bytes | NoAnswer | None:
        """An answer, if all of its parts are at the server."""
        try:
            letter = answer.parts.collect(self._pull)
        except ServerGoneError:
            raise
        except ProtofedError as fault:
            return NoAnswer(f"its answer was refused: {fault}")
        if letter is not None:
            asked = ConfirmMessageReceivedRequest(
                node=self.own, run_id=self.run, message_object_id=answer.number
            )
            name = "runtime/confirm-message-received"
            self._call(name, asked, ConfirmMessageReceivedResponse)
        return letter

    def _pull(self, name: str, most: int) -> bytes | None:
        asked = PullObjectRequest(node=self.own, run_id=self.run, object_id=name)
        found = self._call("runtime/pull-object", asked, PullObjectResponse, most + OBJECT_FRAME)
        return found.object_content if found.object_available else None


def _lost(error: Any) -> NoAnswer:
    why = printable_text(str(error.reason or ""), 200)
    return NoAnswer(f"{REASONS.get(error.code, f'Flower error {error.code}')} ({why})")
