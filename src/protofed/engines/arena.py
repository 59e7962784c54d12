"""Memory that two processes see, or that lies in a file: trees go in, views of them come out."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from protofed.core import tree

T = TypeVar("T")
ALIGN = 64  # bytes, as torch aligns what it allocates: kernels must not see a difference


class Arena:
    """A block behind a file handle that grows as needed; whoever has the handle can map it.

    A tree is written as its tensors in a row. What says how to read them back is the outline of
    the tree: the same tree with tensors that have a shape, strides and a dtype but no memory.
    """

    def __init__(self, handle: int):
        self.handle = handle
        self.memory = torch.empty(0, dtype=torch.uint8)

    def write(self, thing: T) -> T:
        """Copy a tree in, over what was there before; its outline."""
        shape = outline(thing)
        copies, targets = tree.leaves(thing), tree.leaves(self._views(shape, grow=True))
        for target, source in zip(targets, copies, strict=True):
            target.copy_(source)
        return shape

    def read(self, shape: T) -> T:
        """The tree that was written with this outline, as views: good until the next write."""
        return self._views(shape, grow=False)

    def _views(self, shape: T, grow: bool) -> T:
        places, end = _places(shape)
        if end > len(self.memory):
            if grow:
                _grow(self.handle, end)
            self.memory = _mapped(self.handle)  # the old map goes with the last view of it
        starts = iter(places)

        def view(leaf: Tensor) -> Tensor:
            start = next(starts)
            raw = self.memory[start : start + leaf.numel() * leaf.element_size()]
            return raw.view(leaf.dtype).as_strided(leaf.shape, leaf.stride())

        return tree.map(view, shape)


def outline(thing: T) -> T:
    """A tree with the same shapes, strides and dtypes that holds no numbers."""
    return tree.map(lambda leaf: torch.empty_like(leaf, device="meta"), thing)


def _places(shape: object) -> tuple[list[int], int]:
    """Where each tensor of an outline starts, and where the last one ends."""
    places, end = [], 0
    for leaf in tree.leaves(shape):
        places.append(end)
        end += -(-leaf.numel() * leaf.element_size() // ALIGN) * ALIGN
    return places, end


def _grow(handle: int, size: int) -> None:
    """Make a file longer, with room for it: a full disk must fail here, not kill a later write."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, size)
    else:
        os.ftruncate(handle, size)


def _mapped(handle: int) -> Tensor:
    size = os.fstat(handle).st_size
    return torch.frombuffer(mmap.mmap(handle, size), dtype=torch.uint8)


def shared_handle() -> int:
    """A handle of memory that has no name: the system frees it with its last process."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("protofed")
    with tempfile.TemporaryFile() as stream:
        return os.dup(stream.fileno())


def on_disk(folder: Path | None = None) -> Callable[[T], T]:
    """What moves a tree into a nameless file of a folder; the system reads it when it is used."""

    def move(thing: T) -> T:
        with tempfile.TemporaryFile(dir=folder) as stream:
            arena = Arena(stream.fileno())
            return arena.read(arena.write(thing))

    return move
