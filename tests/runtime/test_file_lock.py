from __future__ import annotations

import threading
from pathlib import Path

import pytest

from protofed.errors import ProtofedError
from protofed.runtime.atomic_io import file_lock


@pytest.mark.parametrize("name", ["", "lock"])
def test_a_second_holder_is_refused_until_the_first_is_gone(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with (
        file_lock(path, "busy"),
        pytest.raises(ProtofedError, match="busy"),
        file_lock(path, "busy"),
    ):
        raise AssertionError("never both")
    with file_lock(path, "busy"):
        pass


def test_what_is_raised_inside_is_not_taken_for_another_holder(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError, match="a pipe is full"), file_lock(tmp_path, "busy"):
        raise BlockingIOError("a pipe is full")


def test_a_place_that_cannot_be_held_is_told(tmp_path: Path) -> None:
    with pytest.raises(ProtofedError, match="cannot write to"), file_lock(tmp_path / "no" / "lock"):
        raise AssertionError("never held")


def test_without_words_for_it_a_second_holder_waits(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with file_lock(tmp_path):
            order.append("second")

    other = threading.Thread(target=second)
    with file_lock(tmp_path):
        other.start()
        other.join(0.2)
        order.append("first")
    other.join()
    assert order == ["first", "second"]
