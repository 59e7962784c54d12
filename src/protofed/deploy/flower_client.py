"""Flower's server as a client sees it: protobuf over HTTP, with bounds of our own.

Flower starts no run without an app. A SuperNode would fetch that app and import what it names; a
site of ours never does, and takes letters only of runs that were started with this very bundle.
"""

from __future__ import annotations

import hashlib
import io
import json
import ssl
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import httpx
import numpy as np
from flwr.app import Array, ArrayRecord, Error, Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree
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

PROTOCOL = 2  # of the letters between coordinator and sites; both must speak the same
DATE = (2024, 1, 1, 0, 0, 0)
PROJECT = f"""\
[project]
name = "protofed-federation"
version = "{PROTOCOL}.0.0"
description = "Marks a run of protofed; holds no code"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "protofed"

[tool.flwr.app.components]
serverapp = "protofed:no_server_app"
clientapp = "protofed:no_client_app"

[tool.flwr.app.config]
"""


@cache
def app_bundle() -> bytes:
    """The bundle, the same bytes on every machine."""
    content = PROJECT.encode()
    listing = f"pyproject.toml,{hashlib.sha256(content).hexdigest()},{8 * len(content)}"
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name, text in (("pyproject.toml", content), (".info/CONTENT", listing.encode())):
            entry = zipfile.ZipInfo(name, DATE)
            entry.create_system = 3  # what zipfile says on Unix, everywhere
            archive.writestr(entry, text)
    return stream.getvalue()


@cache
def bundle_hash() -> str:
    """The name under which Flower knows the bundle: its SHA-256."""
    return hashlib.sha256(app_bundle()).hexdigest()


class ProtobufMessage(Protocol):
    """A call or an answer, as Flower's generated classes are."""

    def SerializeToString(self, *, deterministic: bool = ...) -> bytes:  # noqa: N802
        """As bytes."""

    @classmethod
    def FromString(cls, serialized: bytes) -> Self:  # noqa: N802
        """From bytes."""


T = TypeVar("T", bound=ProtobufMessage)

PROTOBUF = "application/protobuf"
SECONDS = 30.0  # for a connection, and between two pieces of an answer
SMALL_ANSWER = 1 << 20  # bytes; every answer that is not an object
CHUNK = 5 << 20  # bytes into which Flower cuts an array
OBJECT_FRAME = 1 << 16  # bytes around a chunk
STRUCTURE = 8  # objects of a letter that are no chunks: the message, its records, the array
BUSY = (502, 503, 504)  # answers of a server that may be back in a moment


class CallError(ProtofedError):
    """A call that Flower's server refused (its status), or that nobody answered (status 0)."""

    def __init__(self, status: int, reason: str):
        super().__init__(reason)
        self.status = status

    @property
    def may_pass(self) -> bool:
        """Whether the same call may succeed a moment later."""
        return self.status == 0 or self.status in BUSY


class TooLargeError(ProtofedError):
    """Something that was not taken into memory, as it is larger than its receiver allows."""


class FlowerClient:
    """Calls one server; `headers` is asked for the headers of each call, such as a signature."""

    def __init__(
        self,
        url: str,
        component: str,
        trust: ssl.SSLContext | None = None,
        headers: Callable[[], Mapping[str, str]] = dict,
    ):
        self.url, self.headers = url.rstrip("/"), headers
        self.fixed = {
            **dict(RuntimeVersionMetadata.from_local_component(component).as_metadata()),
            "content-type": PROTOBUF,
            "accept": PROTOBUF,
            "accept-encoding": "identity",  # nothing that could grow when it is unpacked
        }
        # trust_env: a proxy that somebody set for the web has no business here.
        self.http = httpx.Client(verify=trust or True, timeout=SECONDS, trust_env=False)

    def call(
        self, name: str, request: ProtobufMessage, kind: type[T], most: int = SMALL_ANSWER
    ) -> T:
        """The answer to one call, such as ``fleet/pull-messages``; more than `most` is refused."""
        headers = {**self.fixed, **self.headers()}
        try:
            with self.http.stream(
                "POST",
                f"{self.url}/v1/{name}",
                content=request.SerializeToString(deterministic=True),
                headers=headers,
            ) as answer:
                body = _body(answer, most if answer.status_code == 200 else SMALL_ANSWER)
        except httpx.HTTPError as fault:
            raise CallError(0, str(fault) or type(fault).__name__) from fault
        if answer.status_code != 200:
            words = printable_text(body.decode(errors="replace"), 300)
            raise CallError(answer.status_code, f"answered {answer.status_code}: {words}")
        try:
            return kind.FromString(body)
        except Exception as fault:  # protobuf's own error, which it does not type
            raise CallError(answer.status_code, f"what {name} answered cannot be read") from fault

    def close(self) -> None:
        """Hang up."""
        self.http.close()


def _body(answer: httpx.Response, most: int) -> bytes:
    body = bytearray()
    for piece in answer.iter_raw():
        body += piece
        if len(body) > most:
            raise TooLargeError(f"an answer of more than {most} bytes")
    return bytes(body)


def call_patiently(call: Callable[[], T], seconds: float, pause: float = 0.5) -> T:
    """Make a call again while the server is away or busy, for some seconds."""
    end = time.monotonic() + seconds
    while True:
        try:
            return call()
        except CallError as fault:
            if not fault.may_pass or time.monotonic() + pause > end:
                raise
        time.sleep(pause)


class FlowerParcel(NamedTuple):
    """A message as Flower moves it: a head, and objects that are named by their SHA-256."""

    head: Any  # flwr.proto.message_pb2.Message, without the content
    tree: ObjectTree
    objects: dict[str, bytes]


def as_parcel(message: Message) -> FlowerParcel:
    """Cut a message into what Flower moves."""
    with no_object_id_recompute():
        message.metadata.__dict__["_message_id"] = message.object_id
        objects = {name: each.deflate() for name, each in get_all_nested_objects(message).items()}
        return FlowerParcel(
            message_to_proto(remove_content_from_message(message)),
            get_object_tree(message),
            objects,
        )


def most_objects(most: int) -> int:
    """How many objects a letter of at most so many bytes can have."""
    return -(-most // CHUNK) + STRUCTURE


class LetterCollector:
    """Puts a letter together from its objects; refused before more than `most` bytes are taken."""

    def __init__(self, tree: ObjectTree, most: int):
        self.most = most
        self.names = _object_names(tree, most_objects(most))
        self.left = most + len(self.names) * OBJECT_FRAME
        self.contents: dict[str, bytes] = {}

    def collect(self, pull: Callable[[str, int], bytes | None]) -> bytes | None:
        """The letter, or None while an object is still on its way to the server.

        `pull` is asked for one object after the other, with the bytes that it may have.
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
        return self._put_together()

    def _put_together(self) -> bytes:
        try:
            data = _array_data(list(self.contents.values()), self.most + OBJECT_FRAME)
            letter = _row_of_bytes(data)
        except TooLargeError:
            raise
        except Exception as fault:  # a stranger's objects may fail in any way
            raise ProtofedError(f"not one of our messages: {type(fault).__name__}") from fault
        if len(letter) > self.most:
            raise TooLargeError(f"{len(letter)} bytes, at most {self.most} are allowed")
        return letter


def _array_data(objects: list[bytes], most: int) -> bytes:
    """The data of the one array among some objects.

    An array may name the same chunk a thousand times, so that few bytes would become many.
    """
    arrays = [each for each in objects if _kind(each) == Array.__qualname__]
    if len(arrays) != 1:
        raise ValueError("not one array")
    chunks = {get_object_id(each): each for each in objects if each is not arrays[0]}
    order = json.loads(get_object_body(arrays[0], Array))["arraychunk_ids"]
    names = get_object_children_ids_from_object_content(arrays[0])
    bodies = [get_object_body(chunks[name], ArrayChunk) for name in names]
    if len(order) > most_objects(most) or sum(len(bodies[number]) for number in order) > most:
        raise TooLargeError(f"more than {most} bytes")
    return b"".join(bodies[number] for number in order)


def _kind(content: bytes) -> str:
    return get_object_head_values_from_object_content(content)[0]


def _row_of_bytes(data: bytes) -> bytes:
    """What `as_record` was given; nothing is made that is as large as a header only claims."""
    stream = io.BytesIO(data)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError("another kind of array")
    shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype != np.uint8 or shape != (len(data) - stream.tell(),):
        raise ValueError("no row of bytes")
    return bytes(memoryview(data)[stream.tell() :])


def has_more_objects(tree: ObjectTree, most: int) -> bool:
    """Whether a tree has more objects than that; it is walked no further."""
    return any(number >= most for number, _ in enumerate(_nodes(tree)))


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


def as_record(letter: bytes) -> RecordDict:
    """Bytes in Flower's form: every array, and every record, is a transfer of its own."""
    return RecordDict({"a": ArrayRecord({"b": Array(np.frombuffer(letter, dtype=np.uint8))})})


def error_reply(message: Message, code: int, reason: str) -> Message:
    """A reply that says in words why there is no other."""
    return Message(Error(code, reason), reply_to=message)
