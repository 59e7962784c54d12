"""Trees through shared memory and files come out bit for bit, laid out as they went in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from protofed.core import tree
from protofed.core.message import Message
from protofed.core.model import Model
from protofed.engines.shared_memory import (
    ALIGN,
    PAGE,
    SharedTreeBuffer,
    SpillDict,
    shared_memory_handle,
    tree_outline,
)

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
    arena = SharedTreeBuffer(shared_memory_handle())
    thing = {"a": leaves, "b": [None, 3, "x", leaves[:1]]}
    found = arena.read(arena.write(thing))
    assert tree.equal(found, thing)
    pairs = list(zip(tree.leaves(found), tree.leaves(thing), strict=True))
    assert all(new.stride() == old.stride() for new, old in pairs if old.numel())
    assert all(new.data_ptr() % ALIGN == 0 for new, _ in pairs if new.numel())
    os.close(arena.handle)


def test_it_grows_and_older_views_stay_readable() -> None:
    arena = SharedTreeBuffer(shared_memory_handle())
    small = arena.read(arena.write([torch.ones(3)]))
    large = arena.read(arena.write([torch.full((100_000,), 2.0)]))
    assert large[0].sum() == 200_000
    assert small[0].shape == (3,)  # of the old map: no crash, though the numbers are new
    os.close(arena.handle)


def test_another_process_reads_and_answers() -> None:
    arena = SharedTreeBuffer(shared_memory_handle())
    message = Message(Model({"w": torch.arange(5.0)}, {"n": torch.tensor(3)}), size=7)
    shape = arena.write([message])
    code = f"""
import torch
from protofed.engines.shared_memory import SharedTreeBuffer
arena = SharedTreeBuffer({arena.handle})
view = arena.read([torch.empty(5, device="meta")])[0]
view.mul_(2)
"""
    subprocess.run([sys.executable, "-c", code], pass_fds=[arena.handle], check=True)
    (found,) = arena.read(shape)
    assert found.model.weights["w"].tolist() == [0, 2, 4, 6, 8]
    assert found.size == 7
    os.close(arena.handle)


def test_an_outline_takes_no_memory() -> None:
    shape = tree_outline(Model({"w": torch.zeros(1000, 1000)}))
    assert shape.weights["w"].is_meta
    assert shape.weights["w"].shape == (1000, 1000)


@given(st.lists(st.tuples(st.integers(0, 3), st.lists(tensors(), max_size=3))), st.integers(0, 99))
@settings(max_examples=200, deadline=None)
def test_a_pile_is_a_dict(writes: list[tuple[int, list[Tensor]]], room: int) -> None:
    pile: SpillDict[int, list[Tensor]] = SpillDict(room)
    plain: dict[int, list[Tensor]] = {}
    for key, thing in writes:
        pile[key] = plain[key] = thing
        assert pile.room >= 0
    assert list(pile) == list(plain)
    assert tree.equal(dict(pile), plain)


def test_a_tree_may_be_replaced_by_parts_of_itself() -> None:
    pile: SpillDict[str, list[Tensor]] = SpillDict(room=0)
    pile["a"] = [torch.zeros(9), torch.ones(9)]
    for _ in range(5):
        one, two = pile["a"]
        before = [one.tolist(), two.tolist()]
        pile["a"] = [two, one]
        assert [leaf.tolist() for leaf in pile["a"]] == before[::-1]
    assert pile.end == 2 * PAGE  # it takes turns between two places


def test_what_somebody_still_looks_at_is_never_written_over() -> None:
    pile: SpillDict[str, list[Tensor]] = SpillDict(room=0)
    pile["a"] = [torch.zeros(9)]
    (kept,) = pile["a"]
    for number in range(1, 5):
        pile["a"] = [torch.full((9,), float(number))]
        assert kept.tolist() == [0] * 9
        assert pile["a"][0].tolist() == [number] * 9
    assert pile.end == 3 * PAGE  # the one that is kept, and two in turn


def test_places_are_used_again() -> None:
    pile: SpillDict[int, list[Tensor]] = SpillDict(room=0)
    for number in range(20):
        pile[number % 4] = [torch.ones(9)]
        if number % 2:
            del pile[number % 4]
    assert pile.end <= 5 * PAGE


def test_a_walk_over_a_pile_on_disk_holds_one_tree_at_a_time(tmp_path: Path) -> None:
    pile: SpillDict[int, Model] = SpillDict(room=0, folder=tmp_path)
    models = [Model({"w": torch.randn(50_000)}) for _ in range(10)]
    pile.update(enumerate(models))
    assert list(tmp_path.iterdir()) == []  # the file has no name
    most = 0

    def walk() -> Iterator[Model]:
        nonlocal most
        for model in pile.values():
            most = max(most, mapped(tmp_path))
            yield model

    mean = tree.mean(walk(), [1.0] * len(models))
    assert tree.equal(mean, tree.mean(models, [1.0] * len(models)))
    assert 1 <= most <= 2  # the one in hand, and the next as it comes
    assert mapped(tmp_path) == 0


def mapped(folder: Path) -> int:
    """How many pieces of files of a folder this process has mapped."""
    return Path("/proc/self/maps").read_text().count(str(folder))


def test_without_room_on_the_disk_there_is_an_error_and_no_crash(tmp_path: Path) -> None:
    code = f"""
import resource, torch
from pathlib import Path
from protofed.errors import ProtofedError
from protofed.engines.shared_memory import SpillDict
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
pile = SpillDict(0, Path({str(tmp_path)!r}))
pile[0] = [torch.ones(1000)]
try:
    pile[1] = [torch.ones(2**20)]
except ProtofedError as fault:
    print(fault)
print(pile[0][0].sum())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert done[0].startswith("no room for 4,194,304 bytes")
    assert done[-1] == "tensor(1000.)"
