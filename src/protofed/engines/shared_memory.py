"""Memory shared between processes, or kept in a file: trees go in, views of them come out."""

from __future__ import annotations

import mmap
import os
import resource
import tempfile
import weakref
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor

from protofed.core import tree
from protofed.errors import ProtofedError

T = TypeVar("T")
K = TypeVar("K")
PAGE = mmap.ALLOCATIONGRANULARITY
ALIGN = 64  # bytes, as torch aligns its own memory, so kernels behave the same


class SharedTreeBuffer:
    """A growing block of memory behind a file descriptor; any process with it can map the block.

    A tree is written as its tensors one after the other. To read it back one needs its outline: the
    same tree with tensors that have a shape, strides and a dtype but no memory::

        outline = buffer.write(state)  # in one process
        state = other_buffer.read(outline)  # in another: views, not copies
    """

    def __init__(self, handle: int, start: int = 0):
        self.handle, self.start = handle, start  # the start is a multiple of the page size
        self.memory = torch.empty(0, dtype=torch.uint8)
        self.maps: WeakSet[mmap.mmap] = WeakSet()  # maps with live views

    def write(self, thing: T) -> T:
        """Copy a tree in, over what was there before; returns its outline."""
        shape = tree_outline(thing)
        copies, targets = tree.leaves(thing), tree.leaves(self._views(shape, grow=True))
        for target, source in zip(targets, copies, strict=True):
            target.copy_(source)
        return shape

    def read(self, shape: T) -> T:
        """The tree that was written with this outline, as views: valid until the next write."""
        return self._views(shape, grow=False)

    def _views(self, shape: T, grow: bool) -> T:
        places, end = _places(shape)
        if end > len(self.memory):
            if grow:
                _reserve(self.handle, self.start, end)
            raw = mmap.mmap(self.handle, end, offset=self.start)
            self.memory = torch.frombuffer(raw, dtype=torch.uint8)  # freed with the last view of it
            self.maps.add(raw)
        starts = iter(places)

        def view(leaf: Tensor) -> Tensor:
            start = next(starts)
            raw = self.memory[start : start + leaf.numel() * leaf.element_size()]
            return raw.view(leaf.dtype).as_strided(leaf.shape, leaf.stride())

        return tree.map(view, shape)


def _reserve(handle: int, start: int, size: int) -> None:
    """Make sure that a file has `size` bytes: a write to a map without room kills the process."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, start, size)
        else:
            os.ftruncate(handle, max(start + size, os.fstat(handle).st_size))
    except OSError as fault:
        raise ProtofedError(
            f"no room for {size:,} bytes beside the run, or in shared memory: {fault.strerror}",
            hint="free some, or put the run on another disk with <out>",
        ) from fault


def tree_outline(thing: T) -> T:
    """A tree with the same shapes, strides and dtypes, but without memory (device "meta")."""
    return tree.map(lambda leaf: torch.empty_like(leaf, device="meta"), thing)


def _places(shape: object) -> tuple[list[int], int]:
    """Where each tensor of an outline starts, and where the last one ends."""
    places, end = [], 0
    for leaf in tree.leaves(shape):
        places.append(end)
        end += -(-leaf.numel() * leaf.element_size() // ALIGN) * ALIGN
    return places, end


def shared_memory_handle() -> int:
    """A file descriptor of memory without a name.

    The system frees it with the last process that holds the descriptor or a map of it.
    """
    return os.memfd_create("protofed") if hasattr(os, "memfd_create") else unnamed_file()


def unnamed_file(folder: Path | None = None) -> int:
    """A descriptor of a file without a name: the system frees it with its last descriptor and map.

    It lies in `folder`, or in the system's folder for temporary files.
    """
    with tempfile.TemporaryFile(dir=folder) as stream:
        return os.dup(stream.fileno())


@dataclass(frozen=True, eq=False)
class FileSlot:
    """A range of a file, and the memory maps through which it may still be read.

    It is reused once its tree was replaced and no map is left.
    """

    start: int
    size: int
    maps: WeakSet[mmap.mmap] = field(default_factory=WeakSet)


class FiledTree(NamedTuple, Generic[T]):
    """A tree that is stored in a file: where, and its outline."""

    slot: FileSlot
    shape: T


class SpillDict(MutableMapping[K, T]):
    """A dict of trees that keeps up to `room` bytes in memory and the rest in a nameless file.

    A tree in the file is mapped when it is asked for and unmapped when it is dropped, so a loop
    over the dict holds one tree at a time. A range of the file that someone may still read is never
    overwritten.
    """

    def __init__(self, room: int, folder: Path | None = None):
        self.room, self.folder = room, folder
        self.held: dict[K, T | FiledTree[T]] = {}
        self.free_slots: list[FileSlot] = []  # of trees that were replaced or deleted
        self.end, self.handle = 0, -1

    def __setitem__(self, key: K, thing: T) -> None:
        size, before = tree.nbytes(thing), self.held.get(key)
        room = self.room + (0 if before is None else self._in_memory(before))
        filed = size > room
        self.held[key] = self._filed(thing) if filed else thing
        self.room = room if filed else room - size
        self._release(before)

    def _in_memory(self, held: T | FiledTree[T]) -> int:
        return 0 if isinstance(held, FiledTree) else tree.nbytes(held)

    def _release(self, held: T | FiledTree[T] | None) -> None:
        if isinstance(held, FiledTree):
            self.free_slots.append(held.slot)

    def _filed(self, thing: T) -> FiledTree[T]:
        if self.handle < 0:
            self.handle = unnamed_file(self.folder)
            weakref.finalize(self, os.close, self.handle)
            _allow_many_maps()
        slot = self._slot(_places(thing)[1])
        return FiledTree(slot, SharedTreeBuffer(self.handle, slot.start).write(thing))

    def _slot(self, needed: int) -> FileSlot:
        for slot in self.free_slots:
            if slot.size >= needed and not slot.maps:
                self.free_slots.remove(slot)
                return slot
        slot = FileSlot(self.end, -(-needed // PAGE) * PAGE)
        self.end += slot.size
        return slot

    def __getitem__(self, key: K) -> T:
        held = self.held[key]
        if not isinstance(held, FiledTree):
            return held
        buffer = SharedTreeBuffer(self.handle, held.slot.start)
        thing: T = buffer.read(held.shape)
        held.slot.maps.update(buffer.maps)
        return thing

    def __delitem__(self, key: K) -> None:
        held = self.held.pop(key)
        self.room += self._in_memory(held)
        self._release(held)

    def __iter__(self) -> Iterator[K]:
        return iter(self.held)

    def __len__(self) -> int:
        return len(self.held)


def _allow_many_maps() -> None:
    """Raise the limit of open files as far as allowed: Python keeps one open per map."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
