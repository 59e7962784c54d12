"""What comes from a server is bounded before it is in memory, and is never more than bytes."""

from __future__ import annotations

import contextlib
import threading
import tracemalloc
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the flower extra")

from flwr.app import Array, ArrayRecord, ConfigRecord, Metadata, RecordDict
from flwr.app.message import make_message
from flwr.proto.fleet_pb2 import PullMessagesRequest, PullMessagesResponse
from flwr.proto.message_pb2 import ObjectTree

from protofed.deploy.flower_client import CallError, FlowerClient
from protofed.deploy.flower_compat import (
    CHUNK,
    OBJECT_FRAME,
    ObjectCollector,
    TooLargeError,
    bytes_to_record,
    has_more_objects,
    max_object_count,
    split_message,
)
from protofed.errors import ProtofedError


def message(content: RecordDict) -> Any:
    head = Metadata(1, "", 1, 2, "", "", 1.0, 60.0, "query")
    return make_message(metadata=head, content=content)


@contextlib.contextmanager
def answering(status: int, body: Iterator[bytes]) -> Iterator[FlowerClient]:
    """A server that answers every call with a stream of pieces."""

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.end_headers()
            with contextlib.suppress(OSError):
                for piece in body:
                    self.wfile.write(piece)

        def log_message(self, *words: object) -> None:
            """Nothing on stderr."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    client = FlowerClient(f"http://127.0.0.1:{server.server_port}", "SuperNode")
    try:
        yield client
    finally:
        client.close()
        server.shutdown()
        server.server_close()


def endless(size: int = 1 << 16) -> Iterator[bytes]:
    for _ in range(1 << 14):  # a gigabyte
        yield b"\0" * size


@pytest.mark.parametrize("status", [200, 500])
def test_an_endless_answer_is_broken_off(status: int) -> None:
    with answering(status, endless()) as client:
        tracemalloc.start()
        with pytest.raises(TooLargeError, match="more than 1048576 bytes"):
            client.call("fleet/pull-messages", PullMessagesRequest(), PullMessagesResponse)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 16 << 20


def test_what_is_no_answer_is_told_in_words_that_cannot_steer_a_terminal() -> None:
    with answering(200, iter([b"\xff\xff\xff"])) as client, pytest.raises(CallError) as fault:
        client.call("fleet/pull-messages", PullMessagesRequest(), PullMessagesResponse)
    assert "cannot be read" in str(fault.value)
    with answering(403, iter([b"no \x1b[31m"])) as client, pytest.raises(CallError) as fault:
        client.call("fleet/pull-messages", PullMessagesRequest(), PullMessagesResponse)
    assert str(fault.value) == "answered 403: no \\x1b[31m"
    assert not fault.value.may_pass


@pytest.mark.parametrize("size", [0, 1, CHUNK - 200, CHUNK, 3 * CHUNK + 7])
def test_letters_of_any_size_come_out_as_they_went_in(size: int) -> None:
    letter = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8).tobytes()
    split = split_message(message(bytes_to_record(letter)))
    collector = ObjectCollector(split.tree, size)
    assert collector.collect(lambda name, most: split.objects[name]) == letter
    assert not has_more_objects(split.tree, max_object_count(size))
    assert all(len(part) <= CHUNK + OBJECT_FRAME for part in split.objects.values())


def test_a_letter_whose_parts_are_on_their_way_is_gone_on_with_later() -> None:
    letter = bytes(range(256)) * (CHUNK // 64)
    split, pulled = split_message(message(bytes_to_record(letter))), []

    def pull(name: str, most: int) -> bytes | None:
        pulled.append(name)
        return split.objects[name] if len(pulled) != 4 else None

    collector = ObjectCollector(split.tree, len(letter))
    assert collector.collect(pull) is None
    assert collector.collect(pull) == letter
    assert len(pulled) == len(split.objects) + 1


def test_more_than_is_allowed_is_not_pulled() -> None:
    letter = b"".join(bytes([n]) * CHUNK for n in range(20))
    split, taken = split_message(message(bytes_to_record(letter))), [0]

    def pull(name: str, most: int) -> bytes:
        taken[0] += len(split.objects[name])
        return split.objects[name]

    with pytest.raises(TooLargeError, match="objects"):
        ObjectCollector(split.tree, CHUNK)
    with pytest.raises(TooLargeError):
        ObjectCollector(split.tree, 14 * CHUNK).collect(pull)
    assert taken[0] <= 16 * CHUNK


def test_a_small_chunk_that_is_named_often_does_not_grow() -> None:
    letter = bytes(60_000)
    split = split_message(message(bytes_to_record(letter)))
    (name,) = [n for n, each in split.objects.items() if each.startswith(b"Array ")]
    repeated = b"[" + b"0, " * 20_000 + b"0]"
    head, _, body = split.objects[name].partition(b"\x00")
    forged = body.replace(b"[0]", repeated)
    objects = {**split.objects, name: head.rsplit(b" ", 1)[0] + b" %d\x00" % len(forged) + forged}
    tracemalloc.start()
    with pytest.raises(TooLargeError):
        ObjectCollector(split.tree, 17 << 20).collect(lambda n, most: objects[n])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20


def test_a_tree_that_never_ends_is_not_walked_to_its_end() -> None:
    wide = ObjectTree(object_id="a", children=[ObjectTree(object_id=f"{n}") for n in range(9999)])
    with pytest.raises(TooLargeError):
        ObjectCollector(wide, 1000)


HUGE = b"\x93NUMPY\x01\x00v\x00" + (
    b"{'descr': '|u1', 'fortran_order': False, 'shape': (1000000000000,), }".ljust(117) + b"\n"
)
PICKLE = b"\x93NUMPY\x01\x00v\x00" + (
    b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n"
)


def raw_array(data: bytes) -> RecordDict:
    return RecordDict({"a": ArrayRecord({"b": Array("uint8", (1,), "numpy.ndarray", data)})})


@pytest.mark.parametrize(
    "record",
    [
        RecordDict(),
        RecordDict({"a": ConfigRecord({"b": b"x"})}),
        RecordDict({"a": ArrayRecord({"b": Array(np.zeros(3))})}),
        RecordDict({"a": ArrayRecord({"b": Array(np.zeros((2, 2), dtype=np.uint8))})}),
        RecordDict({"a": ArrayRecord({"b": Array(np.zeros(2, dtype=np.int8))})}),
        RecordDict({"a": ArrayRecord({"b": Array(np.zeros(1)), "c": Array(np.zeros(2))})}),
        raw_array(HUGE),
        raw_array(PICKLE),
        raw_array(b""),
        raw_array(b"\x93NUMPY\x09\x00"),
    ],
)
def test_what_is_no_letter_is_refused_and_takes_no_memory(record: RecordDict) -> None:
    split = split_message(message(record))
    tracemalloc.start()
    with pytest.raises(ProtofedError, match="not one of our messages"):
        ObjectCollector(split.tree, 1000).collect(lambda name, most: split.objects[name])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_chunk_that_is_named_a_thousand_times_does_not_become_a_thousand() -> None:
    split = split_message(message(bytes_to_record(bytes(400 * CHUNK))))
    assert sum(map(len, split.objects.values())) < 4 * CHUNK
    tracemalloc.start()
    with pytest.raises(TooLargeError):
        ObjectCollector(split.tree, 3 * CHUNK).collect(lambda name, most: split.objects[name])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * CHUNK


def test_a_message_with_nothing_in_it_is_no_letter() -> None:
    split = split_message(message(RecordDict()))
    with pytest.raises(ProtofedError, match="not one of our messages"):
        ObjectCollector(split.tree, 1000).collect(lambda name, most: split.objects[name])
    with pytest.raises(ProtofedError, match="not one of our messages"):
        ObjectCollector(split.tree, 1000).collect(lambda name, most: b"nonsense")
