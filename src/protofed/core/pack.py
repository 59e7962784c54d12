"""Trees as bytes: tensors by safetensors, their arrangement as JSON, no pickle."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import safetensors.numpy
import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from protofed.core import tree
from protofed.core.errors import ProtofedError

LAYOUT = "layout"  # the name under which the arrangement lies among the tensors


def pack(thing: object) -> bytes:
    """A tree as one safetensors blob; ``unpack(pack(tree))`` is equal bit for bit."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    layout = json.dumps(_describe(thing, arrays))
    arrays[LAYOUT] = np.frombuffer(layout.encode(), dtype=np.uint8)
    return safetensors.numpy.save(arrays)


def unpack(blob: bytes) -> Any:
    """The tree that `pack` was given; only registered nodes are ever built."""
    try:
        tensors = safetensors.torch.load(blob)
        layout = json.loads(tensors[LAYOUT].numpy().tobytes())
        return _build(layout, tensors)
    except (SafetensorError, KeyError, TypeError, ValueError, IndexError) as fault:
        raise ProtofedError(f"not a packed tree: {fault}") from fault


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
    """The tree that a [kind, content] pair describes."""
    kind, content = layout
    if kind == "tensor":
        return tensors[content]
    if kind == "value":
        return content
    branches = {name: _build(child, tensors) for name, child in content}
    if kind == "dict":
        return branches
    if kind == "list":
        return list(branches.values())
    return tree.NODES[kind](**branches)
