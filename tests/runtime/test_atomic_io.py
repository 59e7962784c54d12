"""Files appear whole, temporaries are told apart, and pipes are not waited for.

What happens when a step fails is in tests/faults/test_atomic_io.py.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from protofed.runtime.atomic_io import (
    append_durably,
    atomic_directory,
    atomic_write,
    atomic_write_json,
    file_sha256,
    format_bytes,
    is_temporary,
    open_file,
    read_file_bytes,
    remove_directory,
    remove_temporaries,
    write_all,
)


def test_a_write_in_many_small_pieces_is_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, sizes = os.write, []

    def reluctant(handle: int, content: memoryview) -> int:
        sizes.append(real(handle, content[:7]))
        return sizes[-1]

    monkeypatch.setattr("protofed.runtime.atomic_io.os.write", reluctant)
    content, path = bytes(range(100)), tmp_path / "a"
    with path.open("wb") as stream:
        write_all(stream.fileno(), content)
    assert (path.read_bytes(), sum(sizes), len(sizes)) == (content, 100, 15)


def test_readers_see_the_old_or_the_new_content_and_no_temporary_stays(tmp_path: Path) -> None:
    path = tmp_path / "file"
    atomic_write(path, b"old")
    with path.open("rb") as reader:
        atomic_write(path, b"new")
        assert reader.read() == b"old"
    assert [read_file_bytes(path), *os.listdir(tmp_path)] == [b"new", "file"]
    assert file_sha256(path) == hashlib.sha256(b"new").hexdigest()


def test_json_and_appended_lines_read_back(tmp_path: Path) -> None:
    atomic_write_json(tmp_path / "a.json", {"b": [1, None]})
    assert json.loads((tmp_path / "a.json").read_text()) == {"b": [1, None]}
    for number in range(3):
        append_durably(tmp_path / "lines", f"{number}\n".encode())
    assert (tmp_path / "lines").read_text() == "0\n1\n2\n"


def test_a_folder_is_replaced_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "checkpoint"
    with atomic_directory(target) as folder:
        (folder / "one").write_text("1")
        assert not target.exists()
    with pytest.raises(IsADirectoryError), atomic_directory(target) as folder:
        folder.write_text("nothing can be written here")
    assert [*os.listdir(tmp_path), *os.listdir(target)] == ["checkpoint", "one"]
    with atomic_directory(target) as folder:
        (folder / "three").write_text("3")
    assert os.listdir(target) == ["three"]
    remove_directory(target)
    remove_directory(target)  # nothing to remove is fine
    assert os.listdir(tmp_path) == []


def test_only_temporaries_are_swept(tmp_path: Path) -> None:
    kept, left = ("a", ".hidden", "b.tmp"), (".a.7.tmp", ".folder.tmp")
    for name in (*kept, left[0]):
        (tmp_path / name).touch()
    (tmp_path / left[1]).mkdir()
    assert [is_temporary(tmp_path / name) for name in (*kept, *left)] == [False] * 3 + [True] * 2
    remove_temporaries(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(kept)


def test_a_pipe_or_a_device_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(OSError, match="not a file"):
            open_file(path)


def test_sizes_grow_with_their_bytes_and_keep_three_digits() -> None:
    exact = {0: "0 B", 999: "999 B", 1000: "1.00 kB", 1_520_000: "1.52 MB", 999_999: "1.00 MB"}
    assert {count: format_bytes(count) for count in exact} == exact
    units = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}
    for exponent in range(40):
        count = int(1.9**exponent)
        number, unit = format_bytes(count).split()
        assert float(number) * units[unit] == pytest.approx(count, rel=0.006)
