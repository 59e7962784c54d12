"""Bytes as Flower's records and back; imports no torch, as every message starts a process."""

from __future__ import annotations

import numpy as np
from flwr.app import Array, ArrayRecord, RecordDict

from protofed.core.errors import ProtofedError


def as_record(blob: bytes) -> RecordDict:
    """Bytes in Flower's form: every array, and every record, is a transfer of its own."""
    return RecordDict({"a": ArrayRecord({"b": Array(np.frombuffer(blob, dtype=np.uint8))})})


def as_bytes(record: RecordDict) -> bytes:
    """The bytes that `as_record` was given; anything else is refused."""
    try:
        part = record["a"]
        assert isinstance(part, ArrayRecord)
        array = part["b"].numpy()  # by Flower's own rule without pickle
    except Exception as fault:  # a stranger's record may fail in any way
        raise ProtofedError(f"not one of our messages: {type(fault).__name__}") from fault
    if array.dtype != np.uint8 or array.ndim != 1:
        raise ProtofedError("not one of our messages: no row of bytes")
    return bytes(array.tobytes())
