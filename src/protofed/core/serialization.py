"""Trees as bytes: tensors by safetensors, their structure as JSON, sealed by SHA-256, no pickle.

A blob is MAGIC (8 bytes, the last of them the version), SHA-256 of all that follows (32 bytes),
and one safetensors file, which holds the structure beside the tensors.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import safetensors.numpy
import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from protofed.core import tree
from protofed.errors import ProtofedError, printable_text

MAGIC = b"protofd\x01"
SEAL = len(MAGIC) + hashlib.sha256().digest_size  # bytes before the safetensors file
LENGTH = 8  # bytes in which that file gives the length of its header
LAYOUT = "layout"  # the name of the structure among the tensors
DEEPEST = 40  # levels of a tree; ours have fewer than ten
# Most bytes of a header or a structure, in files of ours and in what strangers send: as Python
# objects they take many times that size.
MOST_HEADER, MOST_SENT_HEADER = 1 << 25, 1 << 22


def pack_tree(thing: object) -> bytes:
    """A tree as one sealed blob; ``unpack_tree(pack_tree(x))`` equals x bit for bit.

    Dataclasses in it must be registered with `tree.node`.
    """
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    layout = json.dumps(_describe(thing, arrays))
    arrays[LAYOUT] = np.frombuffer(layout.encode(), dtype=np.uint8)
    content = safetensors.numpy.save(arrays)
    return MAGIC + hashlib.sha256(content).digest() + content


def unpack_tree(blob: bytes, most: int | None = None) -> Any:
    """The tree that `pack_tree` was given; only registered nodes are ever built.

    Any other bytes raise a `ProtofedError`, before memory is taken for what they claim to hold.
    More than `most` bytes are not read at all: pass it for whatever comes from outside.
    """
    header = MOST_HEADER if most is None else MOST_SENT_HEADER
    if most is not None and len(blob) > most:
        raise ProtofedError(f"not a packed tree: {len(blob)} bytes, at most {most} are allowed")
    _check_seal(blob)
    content = memoryview(blob)[SEAL:]
    _check_header(content, header)
    try:
        tensors = safetensors.torch.load(bytes(content))
        layout = tensors.pop(LAYOUT).numpy().tobytes()
        if len(layout) > header:
            raise ValueError(f"an arrangement of {len(layout)} bytes")
        _check_depth(layout)
        return _build(json.loads(layout), tensors)
    except (SafetensorError, ArithmeticError, AttributeError, LookupError, RuntimeError) as fault:
        raise ProtofedError(f"not a packed tree: {printable_text(str(fault), 200)}") from fault
    except (TypeError, ValueError) as fault:
        raise ProtofedError(f"not a packed tree: {printable_text(str(fault), 200)}") from fault


def _check_seal(blob: bytes) -> None:
    """Refuse bytes that `pack_tree` did not write, or that were changed since."""
    if blob[: len(MAGIC) - 1] == MAGIC[:-1] and blob[len(MAGIC) - 1 : len(MAGIC)] > MAGIC[-1:]:
        raise ProtofedError("not a packed tree: written by a newer version of protofed")
    if blob[: len(MAGIC)] != MAGIC:
        raise ProtofedError("not a packed tree: it does not begin as one")
    if hashlib.sha256(memoryview(blob)[SEAL:]).digest() != blob[len(MAGIC) : SEAL]:
        raise ProtofedError("not a packed tree: damaged or cut short, its SHA-256 does not agree")


def _check_header(content: memoryview, most: int) -> None:
    """Refuse a header that claims more bytes than there are; a forger can compute the seal."""
    length = int.from_bytes(content[:LENGTH], "little")
    if len(content) < LENGTH or length > min(len(content) - LENGTH, most):
        raise ProtofedError(f"not a packed tree: its header claims {length} bytes")
    _check_depth(bytes(content[LENGTH : LENGTH + length]))


def _check_depth(text: bytes) -> None:
    """Refuse JSON nested so deeply that reading it would exhaust the stack."""
    marks = np.frombuffer(text, dtype=np.uint8)
    opening, closing = np.isin(marks, list(b"[{")), np.isin(marks, list(b"]}"))
    # Brackets inside names count too; our names have none.
    depth = np.cumsum(opening.astype(np.int32) - closing)
    if len(depth) and int(depth.max()) > 4 * DEEPEST:
        raise ProtofedError(f"not a packed tree: nested deeper than {DEEPEST} levels")


def _describe(thing: object, arrays: dict[str, np.ndarray[Any, Any]]) -> list[Any]:
    """[kind, content] of a tree, putting its tensors into `arrays` by number."""
    if isinstance(thing, Tensor):
        number = str(len(arrays))
        arrays[number] = np.ascontiguousarray(thing.detach().cpu().numpy()).reshape(thing.shape)
        return ["tensor", number]
    branches = tree.children(thing)
    if branches is None:
        return ["value", thing]
    content = [[name, _describe(child, arrays)] for name, child in branches]
    kind = type(thing)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if tree.NODES.get(name) is kind:
        return [name, content]
    if kind in (dict, list):
        return [kind.__name__, content]
    raise TypeError(f"{name} is not a tree node: decorate the class with @tree.node")


def _build(layout: list[Any], tensors: dict[str, Tensor]) -> Any:
    """The tree that a [kind, content] pair describes.

    Each tensor may be used once: one named a thousand times would be copied as often later.
    """
    kind, content = layout
    if kind == "tensor":
        return tensors.pop(content)
    if kind == "value":
        if not isinstance(content, tree.LEAVES):
            raise TypeError(f"a {type(content).__name__} is no value")
        return content
    branches = {name: _build(child, tensors) for name, child in content}
    if kind == "dict":
        return branches
    if kind == "list":
        return list(branches.values())
    return tree.NODES[kind](**branches)
