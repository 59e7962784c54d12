"""Everything that depends on Flower's internals: its protobuf calls, its objects, its server.

Flower offers no public API for what a federation of protofed needs (a site that runs no app, a
coordinator that is one), so protofed speaks Flower's protocol itself. Only this module imports
``flwr``; a new release of Flower means reading this file against it, and no other. It does not
import torch, because the process that speaks with the server must not.

The classes :class:`FleetCalls` (for a site) and :class:`RuntimeCalls` (for the coordinator) have a
method for each call. Both share :class:`ObjectTransfer`, which moves the content of messages.
"""

from __future__ import annotations

import io
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, Error, Message, Metadata, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.constant import SUPERLINK_NODE_ID, SubStatus
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.control_pb2 import (
    RegisterNodeRequest,
    RegisterNodeResponse,
    StartRunRequest,
    StartRunResponse,
)
from flwr.proto.fab_pb2 import Fab
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
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_body,
    get_object_children_ids_from_object_content,
    get_object_head_values_from_object_content,
    get_object_id,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

from protofed.errors import ProtofedError, printable_text

SMALL_ANSWER = 1 << 20  # bytes; every answer that is not an object
RUN_ANSWER = 1 << 24  # bytes; answers on all messages of a run at once
CHUNK = 5 << 20  # bytes into which Flower cuts an array
OBJECT_FRAME = 1 << 16  # bytes around a chunk
STRUCTURE = 8  # objects of a message that are no chunks: the message, its records, the array
QUERY = "query"  # the one type of Flower message in use; the content says what is asked
REFUSED = 6  # Flower's error code for an app that was not accepted
ALREADY_ONLINE = "2004"  # Flower's error code for a site that it believes to be online
OFFLINE = 5  # Flower's error code for a site that is not online any more
ERROR_REASONS = {  # by Flower's error code
    3: "the message or its answer expired",
    OFFLINE: "it went offline",
    REFUSED: "it refused the message",
}


class ProtobufMessage(Protocol):
    """A request or an answer, as Flower's generated protobuf classes are."""

    def SerializeToString(self, *, deterministic: bool = ...) -> bytes:  # noqa: N802
        """Return it as bytes."""

    @classmethod
    def FromString(cls, serialized: bytes) -> Self:  # noqa: N802
        """Read it from bytes."""


T = TypeVar("T", bound=ProtobufMessage)


class ServerCall(Protocol):
    """Makes one call and returns its answer, as ``FlowerClient.call`` does.

    `name` is a path such as ``fleet/pull-messages``, `kind` the class of the answer, and `most` the
    largest answer in bytes.
    """

    def __call__(
        self, name: str, request: ProtobufMessage, kind: type[T], most: int = SMALL_ANSWER
    ) -> T:
        """Call the server."""


class TooLargeError(ProtofedError):
    """Something larger than its receiver allows; it was not taken into memory."""


def version_headers(component: str) -> dict[str, str]:
    """The headers by which Flower's server recognises a client of its own version.

    `component` is the kind of client, such as ``SuperNode`` or ``flwr-serverapp``.
    """
    return dict(RuntimeVersionMetadata.from_local_component(component).as_metadata())


class SplitMessage(NamedTuple):
    """A message as Flower moves it: a head, and objects named by their SHA-256.

    `objects` maps each name to its bytes, `tree` says which object contains which.
    """

    head: Any  # flwr.proto.message_pb2.Message, without the content
    tree: ObjectTree
    objects: dict[str, bytes]


def split_message(message: Message) -> SplitMessage:
    """Cut a message into the head and the objects that Flower moves one by one.

    An object is named by its SHA-256, so content that several messages share is moved once.
    """
    with no_object_id_recompute():
        message.metadata.__dict__["_message_id"] = message.object_id
        objects = {name: each.deflate() for name, each in get_all_nested_objects(message).items()}
        return SplitMessage(
            message_to_proto(remove_content_from_message(message)),
            get_object_tree(message),
            objects,
        )


def bytes_to_record(content: bytes) -> RecordDict:
    """Wrap bytes as the content of a Flower message: one record with one array.

    A single array, because Flower moves every array and every record in a transfer of its own.
    """
    return RecordDict({"a": ArrayRecord({"b": Array(np.frombuffer(content, dtype=np.uint8))})})


def max_object_count(most: int) -> int:
    """How many objects a message of at most `most` bytes can have.

    An honest message has no more, so one that announces more is refused unread.
    """
    return -(-most // CHUNK) + STRUCTURE


def has_more_objects(tree: ObjectTree, most: int) -> bool:
    """Whether a tree has more than `most` objects; the walk stops there.

    A hostile tree may have millions.
    """
    return any(number >= most for number, _ in enumerate(_nodes(tree)))


class ObjectCollector:
    """Assembles the content of a message from its objects.

    Stops with a TooLargeError before more than `most` bytes are taken. :meth:`collect` can be
    called again and again while objects are still on their way to the server::

        collector = ObjectCollector(tree, most=1 << 20)
        while (content := collector.collect(pull)) is None:
            time.sleep(0.1)
    """

    def __init__(self, tree: ObjectTree, most: int):
        self.most = most
        self.names = _object_names(tree, max_object_count(most))
        self.left = most + len(self.names) * OBJECT_FRAME
        self.contents: dict[str, bytes] = {}

    def collect(self, pull: Callable[[str, int], bytes | None]) -> bytes | None:
        """Return the content, or None while an object is still on its way to the server.

        `pull` is called with the name of an object and the bytes that it may have; it returns None
        for an object that has not arrived.
        """
        for name in self.names:
            if name in self.contents:
                continue
            content = pull(name, min(self.left, CHUNK + OBJECT_FRAME))
            if content is None:
                return None
            self.left -= len(content)
            if self.left < 0:
                raise TooLargeError(f"more than {self.most} bytes")
            self.contents[name] = content
        return self._assembled()

    def _assembled(self) -> bytes:
        try:
            data = _array_data(list(self.contents.values()), self.most + OBJECT_FRAME)
            content = _row_of_bytes(data)
        except TooLargeError:
            raise
        except Exception as fault:  # a stranger's objects may fail in any way
            raise ProtofedError(f"not one of our messages: {type(fault).__name__}") from fault
        if len(content) > self.most:
            raise TooLargeError(f"{len(content)} bytes, at most {self.most} are allowed")
        return content


def _array_data(objects: list[bytes], most: int) -> bytes:
    """The data of the one array among some objects.

    An array may name the same chunk a thousand times, so few bytes could become many.
    """
    arrays = [each for each in objects if _kind(each) == Array.__qualname__]
    if len(arrays) != 1:
        raise ValueError("not one array")
    chunks = {get_object_id(each): each for each in objects if each is not arrays[0]}
    order = json.loads(get_object_body(arrays[0], Array))["arraychunk_ids"]
    names = get_object_children_ids_from_object_content(arrays[0])
    bodies = [get_object_body(chunks[name], ArrayChunk) for name in names]
    if len(order) > max_object_count(most) or sum(len(bodies[number]) for number in order) > most:
        raise TooLargeError(f"more than {most} bytes")
    return b"".join(bodies[number] for number in order)


def _kind(content: bytes) -> str:
    return get_object_head_values_from_object_content(content)[0]


def _row_of_bytes(data: bytes) -> bytes:
    """What `bytes_to_record` was given; a header's claim of a size allocates nothing."""
    stream = io.BytesIO(data)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("another kind of array")
    shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype != np.uint8 or shape != (len(data) - stream.tell(),):
        raise ValueError("no row of bytes")
    return bytes(memoryview(data)[stream.tell() :])


def _object_names(tree: ObjectTree, most: int) -> list[str]:
    """The names of all objects of a tree, each once."""
    if has_more_objects(tree, most):
        raise TooLargeError(f"more than {most} objects")
    return list(dict.fromkeys(node.object_id for node in _nodes(tree)))


def _nodes(tree: ObjectTree) -> Iterator[ObjectTree]:
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(node.children)


class Heartbeat:
    """A thread that calls `beat` every few seconds until :meth:`stop`.

    A beat that fails is not reported: the next one follows soon, and whoever misses several of
    them draws the conclusion.
    """

    def __init__(self, beat: Callable[[], object], seconds: float):
        self.beat, self.seconds = beat, seconds
        self.stopped = threading.Event()

    def start(self) -> None:
        """Begin in the background."""
        threading.Thread(target=self._run, daemon=True).start()

    def stop(self) -> None:
        """End it; may be called twice, or before :meth:`start`."""
        self.stopped.set()

    def _run(self) -> None:
        while not self.stopped.wait(self.seconds):
            with suppress(ProtofedError):
                self.beat()


class ObjectTransfer:
    """Moves the objects of messages to and from Flower's server, for a site or the coordinator.

    `interface` is ``fleet`` for a site and ``runtime`` for the coordinator: Flower has the same
    three calls under both. `node` is the number of the caller.
    """

    def __init__(self, call: ServerCall, interface: str, node: int):
        self.call, self.interface = call, interface
        self.node = Node(node_id=node)

    def push_objects(
        self,
        run: int,
        message: SplitMessage,
        wanted: Iterable[str],
        session: str,
        call: ServerCall | None = None,
    ) -> None:
        """Send those objects of a message that the server asked for.

        The server names them, and the session they belong to, in its answer to the message's head;
        names that are not of this message are ignored.
        """
        for name in wanted:
            if name in message.objects:
                part = PushObjectRequest(
                    node=self.node,
                    run_id=run,
                    object_id=name,
                    object_content=message.objects[name],
                    session_id=session,
                )
                (call or self.call)(f"{self.interface}/push-object", part, PushObjectResponse)

    def pull_object(self, run: int, name: str, most: int) -> bytes | None:
        """Return an object of at most `most` bytes; None while its sender is still at it."""
        asked = PullObjectRequest(node=self.node, run_id=run, object_id=name)
        place, allowed = f"{self.interface}/pull-object", most + OBJECT_FRAME
        found = self.call(place, asked, PullObjectResponse, allowed)
        if not found.object_found:
            raise ProtofedError("a part of the message is gone")
        return found.object_content if found.object_available else None

    def confirm(self, run: int, message: str) -> None:
        """Report that a message is complete, so the server can drop it."""
        asked = ConfirmMessageReceivedRequest(node=self.node, run_id=run, message_object_id=message)
        place = f"{self.interface}/confirm-message-received"
        self.call(place, asked, ConfirmMessageReceivedResponse)


class WaitingRequest(NamedTuple):
    """A request that waits for a site at the server; its content is not fetched yet.

    `message` is its head, `tree` names the objects of its content.
    """

    message: Message
    tree: ObjectTree

    @property
    def run(self) -> int:
        """Flower's number of the run that it belongs to."""
        return int(self.message.metadata.run_id)

    @property
    def number(self) -> str:
        """Flower's name of the message."""
        return str(self.message.metadata.message_id)

    @property
    def seconds(self) -> float:
        """How long an answer is of use, counted from when the request was sent."""
        return float(self.message.metadata.ttl)


class FleetCalls(ObjectTransfer):
    """The calls of a site: go online, take requests, hand in replies.

    Flower knows a site by a node number, which :meth:`activate` sets.
    """

    def __init__(self, call: ServerCall):
        super().__init__(call, "fleet", 0)

    def register(self, public: bytes) -> None:
        """Bring a new public key; only a server without registered keys takes it."""
        asked = RegisterNodeFleetRequest(public_key=public)
        self.call("fleet/register-node", asked, RegisterNodeFleetResponse)

    def activate(self, public: bytes, interval: float) -> int:
        """Go online; the node's number. `interval` is that of the heartbeats, in seconds."""
        asked = ActivateNodeRequest(public_key=public, heartbeat_interval=interval)
        found = self.call("fleet/activate-node", asked, ActivateNodeResponse)
        self.node = Node(node_id=found.node_id)
        return int(found.node_id)

    def deactivate(self, node: int) -> None:
        """Go offline."""
        asked = DeactivateNodeRequest(node_id=node)
        self.call("fleet/deactivate-node", asked, DeactivateNodeResponse)

    def beat(self, interval: float) -> None:
        """Send a heartbeat; the next follows within `interval` seconds."""
        asked = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=interval)
        self.call("fleet/send-node-heartbeat", asked, SendNodeHeartbeatResponse)

    def next_request(self) -> WaitingRequest | None:
        """The next request to this site, if one waits; the server hands out each once."""
        asked = PullMessagesRequest(node=self.node)
        found = self.call("fleet/pull-messages", asked, PullMessagesResponse)
        if not found.messages_list or not found.message_object_trees:
            return None
        try:
            message = message_from_proto(found.messages_list[0])
        except Exception as fault:  # a stranger's message may fail in any way
            raise ProtofedError(f"a malformed message: {type(fault).__name__}") from fault
        return WaitingRequest(message, found.message_object_trees[0])

    def app_of_run(self, run: int) -> tuple[str, str]:
        """The app of a run as the server states it: its name, and the SHA-256 of its bundle."""
        asked = GetRunRequest(node=self.node, run_id=run)
        found = self.call("fleet/get-run", asked, GetRunResponse).run
        return found.fab_id, found.fab_hash

    def push_reply(
        self, request: WaitingRequest, content: bytes | str, seconds: float, call: ServerCall
    ) -> None:
        """Hand in a reply that took some seconds to make; text is the reason why there is none.

        `call` makes the calls, which may have to be repeated for longer than others.
        """
        if isinstance(content, str):
            reply = Message(Error(REFUSED, content), reply_to=request.message)
        else:
            reply = Message(bytes_to_record(content), reply_to=request.message)
        split = split_message(reply)
        asked = PushMessagesRequest(
            node=self.node,
            messages_list=[split.head],
            message_object_trees=[split.tree],
            clientapp_runtime_list=[seconds],
        )
        taken = call("fleet/push-messages", asked, PushMessagesResponse)
        self.push_objects(request.run, split, taken.objects_to_push, taken.session_id, call)


class OnlineNode(NamedTuple):
    """A node that is connected to the server.

    `name` is "" for a node without a registered key; `since` changes each time it goes online.
    """

    node: int
    name: str  # "" where no key is registered
    since: str


class ArrivedReply(NamedTuple):
    """The head of a reply that has arrived at the server.

    It says which request it answers, which node sent it, and, if it brings no content, why.
    """

    request: str  # Flower's name of the request
    number: str  # Flower's name of the reply
    sender: int
    tree: ObjectTree
    error: str  # "" if content follows
    offline: bool  # the error is that the sender went offline


class RuntimeCalls(ObjectTransfer):
    """The calls of the coordinator, which stands where Flower would start a server app.

    In this order: :meth:`start_run`, :meth:`acquire_task`, :meth:`open_task`, then requests and
    replies with a :meth:`beat` every few seconds, and :meth:`end_task`.
    """

    def __init__(self, call: ServerCall):
        super().__init__(call, "runtime", SUPERLINK_NODE_ID)
        self.run = 0

    def start_run(self, bundle: bytes, digest: str) -> None:
        """Start a run under an app bundle, whose SHA-256 is given as text."""
        fab = Fab(hash_str=digest, content=bundle)
        self.call("control/start-run", StartRunRequest(fab=fab), StartRunResponse, RUN_ANSWER)

    def acquire_task(self) -> str:
        """Take the task of the run; the token for all later calls, "" if there is no task."""
        asked = AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP])
        return str(self.call("runtime/acquire-task", asked, AcquireTaskResponse, RUN_ANSWER).token)

    def open_task(self) -> None:
        """Fetch the number of the run, which :attr:`run` is from then on."""
        place, asked = "runtime/pull-task-input", PullTaskInputRequest()
        self.run = int(self.call(place, asked, PullTaskInputResponse, RUN_ANSWER).run.run_id)

    def end_task(self, failed: bool) -> None:
        """Report the end of the run."""
        how = SubStatus.FAILED if failed else SubStatus.COMPLETED
        asked = PushTaskOutputRequest(sub_status=how, details="")
        self.call("runtime/push-task-output", asked, PushTaskOutputResponse)

    def beat(self) -> None:
        """Send a heartbeat of the run."""
        asked = SendTaskHeartbeatRequest()
        self.call("runtime/send-task-heartbeat", asked, SendTaskHeartbeatResponse)

    def nodes(self) -> list[OnlineNode]:
        """The nodes that are online now."""
        found = self.call("runtime/get-nodes", GetNodesRequest(), GetNodesResponse, RUN_ANSWER)
        return [OnlineNode(each.node_id, each.name, each.last_activated_at) for each in found.nodes]

    def push_request(self, node: int, content: bytes, seconds: float, group: str) -> str:
        """Send a request that expires after some seconds; its name, "" if it was not taken.

        `group` is a short text that the server keeps with the request.
        """
        head = Metadata(
            run_id=self.run,
            message_id="",
            src_node_id=SUPERLINK_NODE_ID,
            dst_node_id=node,
            reply_to_message_id="",
            group_id=group,
            created_at=time.time(),
            ttl=seconds,
            message_type=QUERY,
        )
        split = split_message(make_message(metadata=head, content=bytes_to_record(content)))
        asked = PushAppMessagesRequest(
            messages_list=[split.head], message_object_trees=[split.tree]
        )
        taken = self.call("runtime/push-messages", asked, PushAppMessagesResponse, RUN_ANSWER)
        self.push_objects(self.run, split, taken.objects_to_push, taken.session_id)
        return str(taken.message_ids[0]) if taken.message_ids else ""

    def pull_replies(self, requests: Iterable[str]) -> Iterator[ArrivedReply]:
        """The heads of the replies that are at the server by now; each is handed out once."""
        asked = PullAppMessagesRequest(message_ids=list(requests))
        found = self.call("runtime/pull-messages", asked, PullAppMessagesResponse, RUN_ANSWER)
        for head, tree in zip(found.messages_list, found.message_object_trees, strict=True):
            about = head.metadata
            failed = head.HasField("error")
            yield ArrivedReply(
                request=about.reply_to_message_id,
                number=about.message_id,
                sender=about.src_node_id,
                tree=tree,
                error=_error_reason(head.error) if failed else "",
                offline=failed and head.error.code == OFFLINE,
            )


def _error_reason(error: Any) -> str:
    """Why there is no reply, in our own words; a site that refuses gives its own reason."""
    reason = ERROR_REASONS.get(error.code, f"Flower error {error.code}")
    if error.code in ERROR_REASONS and error.code != REFUSED:
        return reason
    return f"{reason} ({printable_text(str(error.reason or ''), 200)})"


def register_site(call: ServerCall, name: str, public: bytes) -> None:
    """Let Flower's server know the public key of a site, under the site's name.

    Flower takes a key once; a second registration is an error.
    """
    asked = RegisterNodeRequest(public_key=public, name=name)
    call("control/register-node", asked, RegisterNodeResponse)


Handler = Callable[..., Any]


class ServerHandlers(NamedTuple):
    """Those functions of Flower's server that protofed guards.

    Flower looks each of them up in its module at every call, so they can be replaced there.
    """

    start_run: Handler  # (request, ...), of control
    push_messages: Handler  # (request, state), of fleet
    push_object: Handler  # (request, state), of fleet


def server_handlers() -> ServerHandlers:
    """The handlers of the installed Flower, as they are now.

    To be taken before :func:`replace_server_handlers` puts others in their place.
    """
    from flwr.superlink.servicer.control import control_handlers
    from flwr.superlink.servicer.fleet import fleet_handlers

    fleet = fleet_handlers
    return ServerHandlers(control_handlers.start_run, fleet.push_messages, fleet.push_object)


def replace_server_handlers(handlers: ServerHandlers, middleware: tuple[Any, ...]) -> None:
    """Put other handlers in the place of Flower's own, and middleware before its server.

    `middleware` are Starlette's descriptions of ASGI middleware, the outermost first.
    """
    from flwr.superlink import extensions
    from flwr.superlink.servicer.control import control_handlers
    from flwr.superlink.servicer.fleet import fleet_handlers

    control_handlers.start_run = handlers.start_run
    fleet_handlers.push_messages = handlers.push_messages
    fleet_handlers.push_object = handlers.push_object
    extensions.get_middleware = lambda: middleware


class PushedReply(NamedTuple):
    """The head of a reply as a site hands it in at the server.

    `group` is the text that the coordinator put into the head of the request, see `limit_text`.
    """

    pushed_by: int  # the node that made the call
    claimed_by: int  # the node that the head names as its sender
    group: str  # of the request that it answers, "" if there is no such request
    tree: ObjectTree


def read_pushed_reply(request: Any, state: Any) -> PushedReply | None:
    """What a call of ``fleet/push-messages`` brings; None unless it is just one reply.

    `request` and `state` are what Flower passes to its handler.
    """
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        return None
    head = request.messages_list[0].metadata
    asked = state.message_ins_store.get(head.reply_to_message_id)
    group = asked.metadata.group_id if asked else ""
    tree = request.message_object_trees[0]
    return PushedReply(request.node.node_id, head.src_node_id, group, tree)


def run_superlink(arguments: list[str]) -> None:
    """Be ``flower-superlink`` in this process, until it ends.

    Its log has no colours, because it goes to a file.
    """
    from flwr.supercore.logger import update_console_handler
    from flwr.superlink.cli import flower_superlink

    update_console_handler(colored=False)
    sys.argv = ["flower-superlink", *arguments]
    flower_superlink()
