"""Files and folders are there whole or not at all, whichever step fails."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from protofed.runtime import atomic_io

STEPS = ("write_all", "sync_file", "rename_over")


def failing(monkeypatch: pytest.MonkeyPatch, number: int) -> list[str]:
    """Let one step fail; the names of the steps that were begun."""
    begun: list[str] = []

    def watched(name: str, real: Callable[..., None]) -> Callable[..., None]:
        def step(*given: Any) -> None:
            begun.append(name)
            if len(begun) == number:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(*given)

        return step

    for name in STEPS:
        monkeypatch.setattr(atomic_io, name, watched(name, getattr(atomic_io, name)))
    return begun


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize(("step", "found"), [(1, b"old"), (2, b"old"), (3, b"old"), (4, b"new")])
def test_a_file_is_the_old_or_the_new_one(
    step: int, found: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"old")
    begun = failing(monkeypatch, step)
    with pytest.raises(OSError, match="No space left"):
        atomic_io.atomic_write(tmp_path / "a", b"new")
    assert begun == ["write_all", "sync_file", "rename_over", "sync_file"][:step]
    assert (tmp_path / "a").read_bytes() == found
    assert names(tmp_path) == ["a"]  # nothing takes up room on a disk that is full


@pytest.mark.parametrize("step", range(1, 7))
def test_a_folder_is_there_with_all_its_files_or_not(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = failing(monkeypatch, step)
    with (
        pytest.raises(OSError, match="No space left"),
        atomic_io.atomic_directory(tmp_path / "a") as made,
    ):
        atomic_io.atomic_write(made / "one", b"1")
    assert (
        begun
        == ["write_all", "sync_file", "rename_over", "sync_file", "rename_over", "sync_file"][:step]
    )
    assert names(tmp_path) == (["a", "a/one"] if step == 6 else [])


def test_a_folder_takes_the_place_of_another(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with atomic_io.atomic_directory(tmp_path / "a") as made:
            atomic_io.atomic_write(made / name, b"")
    assert names(tmp_path) == ["a", "a/two"]
    atomic_io.remove_directory(tmp_path / "a")
    atomic_io.remove_directory(tmp_path / "a")  # which is not there
    assert names(tmp_path) == []


def test_large_content_is_written_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda handle, left: real(handle, left[:7]))
    atomic_io.append_durably(tmp_path / "a", b"0123456789" * 10)
    atomic_io.append_durably(tmp_path / "a", b"!")
    assert (tmp_path / "a").read_bytes() == b"0123456789" * 10 + b"!"


def test_only_what_is_unfinished_is_swept(tmp_path: Path) -> None:
    for name in (".a.123.tmp", ".b.tmp/c", ".hidden", "d.tmp", "e"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    atomic_io.remove_temporaries(tmp_path)
    assert names(tmp_path) == [".hidden", "d.tmp", "e"]
