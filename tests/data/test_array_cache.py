from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from protofed.data.npz_store import Arrays, cache_folder, cached_arrays

WANTED: Arrays = {"images": np.arange(2000, dtype=np.uint8).reshape(4, -1), "labels": np.arange(4)}


class Maker:
    """Makes the same arrays each time and counts how often it is asked."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Arrays:
        self.calls += 1
        return {name: array.copy() for name, array in WANTED.items()}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROTOFED_CACHE", str(tmp_path / "not" / "yet"))
    return tmp_path / "not" / "yet"


def assert_wanted(arrays: Arrays) -> None:
    assert list(arrays) == list(WANTED)
    for name, array in arrays.items():
        assert array.dtype == WANTED[name].dtype
        np.testing.assert_array_equal(array, WANTED[name])


def test_folder_prefers_own_variable_then_xdg_then_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    monkeypatch.setenv("PROTOFED_CACHE", "/own")
    assert cache_folder() == Path("/own")
    monkeypatch.delenv("PROTOFED_CACHE")
    assert cache_folder() == Path("/xdg/protofed")
    monkeypatch.setenv("XDG_CACHE_HOME", "")  # set but empty counts as not set
    assert cache_folder() == Path("/home/someone/.cache/protofed")


def test_second_call_reads_instead_of_making(folder: Path) -> None:
    make = Maker()
    assert_wanted(cached_arrays("thing", make))
    assert_wanted(cached_arrays("thing", make))
    assert make.calls == 1
    cached_arrays("another", make)
    assert make.calls == 2


def test_only_the_finished_file_is_left(folder: Path) -> None:
    cached_arrays("thing", Maker())
    assert [path.name for path in folder.iterdir()] == ["thing.npz"]


@pytest.mark.parametrize("keep", [0, 1, 10, 200, -1, -30])
def test_truncated_file_is_made_anew(folder: Path, keep: int) -> None:
    make = Maker()
    cached_arrays("thing", make)
    path = folder / "thing.npz"
    path.write_bytes(path.read_bytes()[:keep])
    assert_wanted(cached_arrays("thing", make))
    assert make.calls == 2
    assert_wanted(cached_arrays("thing", make))
    assert make.calls == 2


def test_flipped_byte_is_noticed(folder: Path) -> None:
    make = Maker()
    cached_arrays("thing", make)
    path = folder / "thing.npz"
    damaged = bytearray(path.read_bytes())
    damaged[500] ^= 0xFF
    path.write_bytes(damaged)
    assert_wanted(cached_arrays("thing", make))
    assert make.calls == 2


def test_pickled_objects_are_never_loaded(folder: Path) -> None:
    folder.mkdir(parents=True)
    np.savez(folder / "thing.npz", images=np.array([{"a": 1}], dtype=object))
    make = Maker()
    assert_wanted(cached_arrays("thing", make))
    assert make.calls == 1


def test_folder_that_cannot_be_made_costs_only_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("PROTOFED_CACHE", str(tmp_path / "file" / "below"))
    make = Maker()
    assert_wanted(cached_arrays("thing", make))
    assert_wanted(cached_arrays("thing", make))
    assert make.calls == 2
    assert (tmp_path / "file").read_text() == "in the way"


def test_user_without_home_costs_only_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROTOFED_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    assert_wanted(cached_arrays("thing", Maker()))


def test_failed_write_leaves_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*_: object, **__: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", full_disk)
    assert_wanted(cached_arrays("thing", Maker()))
    assert list(folder.iterdir()) == []


def big(value: int) -> Arrays:
    return {"images": np.full(200_000, value)}


def read_and_write(value: int) -> bool:
    """Whether every read gives one writer's arrays, whole, while others write the same file."""
    for _ in range(20):
        images = cached_arrays("shared", lambda: big(value))["images"]
        if len(images) != 200_000 or len(np.unique(images)) != 1:
            return False
        (cache_folder() / "shared.npz").unlink(missing_ok=True)
    return True


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="an open file cannot be unlinked there")
def test_processes_that_share_a_file_never_see_half_of_it(folder: Path) -> None:
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as pool:
        assert all(pool.map(read_and_write, range(3)))
    assert [path for path in folder.iterdir() if path.name != "shared.npz"] == []
