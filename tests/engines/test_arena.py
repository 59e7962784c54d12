"""Trees through shared memory and files come out bit for bit, laid out as they went in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.model import Model
from protofed.engines.arena import ALIGN, Arena, on_disk, outline, shared_handle

DTYPES = [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool, torch.float16]


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    made = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(len(shape)))
    made = made.to(draw(st.sampled_from(DTYPES)))
    order = draw(st.permutations(range(made.dim())))
    return made.permute(order)  # strides of every kind


@given(st.lists(tensors(), max_size=6))
@settings(max_examples=200, deadline=None)
def test_what_goes_in_comes_out(leaves: list[Tensor]) -> None:
    arena = Arena(shared_handle())
    thing = {"a": leaves, "b": [None, 3, "x", leaves[:1]]}
    found = arena.read(arena.write(thing))
    assert tree.equal(found, thing)
    pairs = list(zip(tree.leaves(found), tree.leaves(thing), strict=True))
    assert all(new.stride() == old.stride() for new, old in pairs if old.numel())
    assert all(new.data_ptr() % ALIGN == 0 for new, _ in pairs if new.numel())
    os.close(arena.handle)


def test_it_grows_and_older_views_stay_readable() -> None:
    arena = Arena(shared_handle())
    small = arena.read(arena.write([torch.ones(3)]))
    large = arena.read(arena.write([torch.full((100_000,), 2.0)]))
    assert large[0].sum() == 200_000
    assert small[0].shape == (3,)  # of the old map: no crash, though the numbers are new
    os.close(arena.handle)


def test_another_process_reads_and_answers() -> None:
    arena = Arena(shared_handle())
    message = Message(Model({"w": torch.arange(5.0)}, {"n": torch.tensor(3)}), size=7)
    shape = arena.write([message])
    code = f"""
import torch
from protofed.engines.arena import Arena
arena = Arena({arena.handle})
view = arena.read([torch.empty(5, device="meta")])[0]
view.mul_(2)
"""
    subprocess.run([sys.executable, "-c", code], pass_fds=[arena.handle], check=True)
    (found,) = arena.read(shape)
    assert found.model.weights["w"].tolist() == [0, 2, 4, 6, 8]
    assert found.size == 7
    os.close(arena.handle)


def test_an_outline_takes_no_memory() -> None:
    shape = outline(Model({"w": torch.zeros(1000, 1000)}))
    assert shape.weights["w"].is_meta
    assert shape.weights["w"].shape == (1000, 1000)


def test_on_disk_nothing_is_left_behind(tmp_path: Path) -> None:
    move = on_disk(tmp_path)
    state = Model({"w": torch.randn(10, 10)})
    moved = move(state)
    assert tree.equal(moved, state)
    assert list(tmp_path.iterdir()) == []  # the file has no name
    again = move(moved)  # what lies on disk can be moved again
    del moved
    assert tree.equal(again, state)
