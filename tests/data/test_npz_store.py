from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from protofed.data import npz_store
from protofed.data.npz_store import ArchiveInfo, Array, read_archive
from protofed.errors import ProtofedError
from protofed.runtime.atomic_io import file_sha256

TOYS = ArchiveInfo("toy-shop", "toys", ("ball", "car", "doll"))
Write = Callable[..., Path]


def draw(shape: tuple[int, ...], top: int = 256) -> Array:
    return np.random.default_rng(3).integers(0, top, shape).astype(np.uint8)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PROTOFED_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PROTOFED_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def write(root: Path) -> Write:
    """Puts toys/shelf.npz and its meta.json into the data folder."""

    def store(**arrays: Array) -> Path:
        folder = root / "data" / "toys"
        folder.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(folder / "shelf.npz", allow_pickle=True, **arrays)
        describe(folder / "shelf.npz")
        return folder / "shelf.npz"

    return store


def describe(path: Path, classes: tuple[str, ...] = TOYS.classes) -> None:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    meta = {"task": "play", "classes": classes, "files": {path.name: {"sha256": digest}}}
    path.with_name("meta.json").write_text(json.dumps(meta))


def message(parts: tuple[str, ...] = ("",)) -> str:
    """What a failing read says; all such messages are short."""
    with pytest.raises(ProtofedError) as caught:
        read_archive(TOYS, "shelf.npz", parts)
    assert len(str(caught.value).splitlines()) <= 3
    return str(caught.value)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were hashed so far."""
    seen: list[Path] = []

    def counting(path: Path) -> str:
        seen.append(path)
        return file_sha256(path)

    monkeypatch.setattr(npz_store, "file_sha256", counting)
    return seen


def test_reads_both_parts_grey_and_coloured(write: Write) -> None:
    grey, coloured = draw((5, 4, 4)), draw((2, 6, 6, 3))
    y_train, y_test = np.array([0, 1, 2, 2, 0], np.uint8), np.array([1, 0], np.int32)
    write(x_train=grey, y_train=y_train, x_test=coloured, y_test=y_test)
    train, test = read_archive(TOYS, "shelf.npz", ("train", "test"))
    assert train.images.dtype == test.images.dtype == torch.uint8
    assert train.labels.dtype == test.labels.dtype == torch.int64
    assert train.images.shape == (5, 4, 4, 1)
    assert np.array_equal(train.images.numpy()[..., 0], grey)
    assert np.array_equal(test.images.numpy(), coloured)
    assert (train.labels.tolist(), test.labels.tolist()) == ([0, 1, 2, 2, 0], [1, 0])


def test_unset_variable_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROTOFED_DATA", raising=False)
    said = message()
    monkeypatch.setenv("PROTOFED_DATA", "")
    assert message() == said
    assert "benchmark 'toy-shop' reads real images: set PROTOFED_DATA" in said
    assert "holds toys/" in said
    assert "'digits-mini' needs no data" in said


def test_missing_folder_is_named(root: Path) -> None:
    said = message()
    assert f"there is no folder {root / 'data' / 'toys'}" in said
    assert "set PROTOFED_DATA" in said


def test_missing_file_is_named(write: Write) -> None:
    path = write()
    path.unlink()
    assert f"needs {path}, which does not exist" in message()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (None, "is missing"),
        ("{", "is broken"),
        ("[]", "is broken"),
        ('{"classes": ["ball"]}', "is broken (files"),
        ('{"classes": [], "files": {"shelf.npz": {"sha256": "12"}}}', "files.shelf.npz.sha256"),
        ('{"classes": ["ball", "car", "doll"], "files": {}}', "has no entry for shelf.npz"),
    ],
)
def test_meta_must_be_there_and_whole(text: str | None, fault: str, write: Write) -> None:
    meta = write(x=draw((2, 4, 4)), y=draw((2,), 3)).with_name("meta.json")
    meta.unlink() if text is None else meta.write_text(text)
    said = message()
    assert said.startswith(str(meta))
    assert fault in said


def test_meta_with_other_classes_is_refused(write: Write) -> None:
    path = write(x=draw((2, 4, 4)), y=draw((2,), 3))
    describe(path, classes=("car", "ball", "doll"))
    assert "does not list the classes of benchmark 'toy-shop'" in message()


def test_a_flipped_bit_is_caught_even_after_a_good_read(write: Write) -> None:
    path = write(x=draw((9, 4, 4)), y=draw((9,), 3))
    expected = hashlib.sha256(path.read_bytes()).hexdigest()
    read_archive(TOYS, "shelf.npz", ("",))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    said = message()
    assert f"{path} is damaged or was changed" in said
    assert f"expected sha256 {expected[:12]}…" in said
    assert f"found {hashlib.sha256(content).hexdigest()[:12]}…" in said
    assert "fetch it again" in said
    assert message() == said  # a bad file is never remembered as good


def test_a_verified_file_is_hashed_once(write: Write, hashed: list[Path]) -> None:
    path = write(x=draw((3, 4, 4)), y=draw((3,), 3))
    (first,) = read_archive(TOYS, "shelf.npz", ("",))
    (second,) = read_archive(TOYS, "shelf.npz", ("",))
    assert hashed == [path.resolve()]
    assert torch.equal(first.images, second.images)


def test_a_changed_file_is_hashed_again(write: Write, hashed: list[Path]) -> None:
    path = write(x=draw((3, 4, 4)), y=draw((3,), 3))
    read_archive(TOYS, "shelf.npz", ("",))
    os.utime(path, ns=(1, 1))  # touched: same bytes, another time
    read_archive(TOYS, "shelf.npz", ("",))
    assert len(hashed) == 2
    write(x=draw((3, 5, 5)), y=draw((3,), 3))  # another file with a checksum of its own
    (data,) = read_archive(TOYS, "shelf.npz", ("",))
    assert len(hashed) == 3
    assert data.images.shape == (3, 5, 5, 1)


def test_an_edited_checksum_is_noticed(write: Write) -> None:
    path = write(x=draw((3, 4, 4)), y=draw((3,), 3))
    read_archive(TOYS, "shelf.npz", ("",))
    meta = json.loads(path.with_name("meta.json").read_text())
    meta["files"]["shelf.npz"]["sha256"] = "0" * 64
    path.with_name("meta.json").write_text(json.dumps(meta))
    assert "expected sha256 000000000000…" in message()


def test_stamps_of_files_live_together(write: Write, root: Path, hashed: list[Path]) -> None:
    path = write(x=draw((3, 4, 4)), y=draw((3,), 3))
    other = path.with_name("box.npz")
    other.write_bytes(path.read_bytes())
    meta = json.loads(path.with_name("meta.json").read_text())
    meta["files"]["box.npz"] = meta["files"]["shelf.npz"]
    path.with_name("meta.json").write_text(json.dumps(meta))
    for file in ("shelf.npz", "box.npz", "shelf.npz", "box.npz"):
        read_archive(TOYS, file, ("",))
    assert hashed == [path.resolve(), other.resolve()]
    assert [entry.name for entry in (root / "cache").iterdir()] == ["verified.json"]


@pytest.mark.parametrize("broken", ["nonsense", "[1, 2]", '{"x": 3}', "\x80"])
def test_broken_stamps_only_cost_a_hash(
    broken: str, write: Write, root: Path, hashed: list[Path]
) -> None:
    write(x=draw((3, 4, 4)), y=draw((3,), 3))
    (root / "cache").mkdir()
    (root / "cache" / "verified.json").write_text(broken, encoding="latin-1")
    for _ in range(2):
        read_archive(TOYS, "shelf.npz", ("",))
    assert len(hashed) == 1


def test_unwritable_cache_only_costs_a_hash(
    write: Write, root: Path, hashed: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(x=draw((3, 4, 4)), y=draw((3,), 3))
    (root / "file").write_text("")
    monkeypatch.setenv("PROTOFED_CACHE", str(root / "file" / "cache"))  # below a file: no folder
    assert len(read_archive(TOYS, "shelf.npz", ("",))[0]) == 3
    assert len(read_archive(TOYS, "shelf.npz", ("",))[0]) == 3
    assert len(hashed) == 2


@pytest.mark.parametrize(
    ("x", "y", "fault"),
    [
        (draw((2, 4, 4)).astype(np.float32), draw((2,), 3), "x must be uint8 [N, H, W]"),
        (draw((2, 4)), draw((2,), 3), "x must be uint8 [N, H, W] or [N, H, W, 3], is uint8 [2, 4]"),
        (draw((2, 4, 4, 2)), draw((2,), 3), "is uint8 [2, 4, 4, 2]"),
        (draw((2, 4, 4)), np.zeros(2, np.float64), "y must be integers [2] as x, is float64 [2]"),
        (draw((2, 4, 4)), draw((3,), 3), "y must be integers [2] as x, is uint8 [3]"),
        (draw((2, 4, 4)), draw((2, 1), 3), "is uint8 [2, 1]"),
        (draw((0, 4, 4)), draw((0,), 3), "x and y are empty"),
        (draw((2, 4, 4)), np.array([0, 3], np.uint8), "y must lie in 0 to 2, spans 0 to 3"),
        (draw((2, 4, 4)), np.array([-1, 2], np.int8), "spans -1 to 2"),
    ],
)
def test_wrong_arrays_are_named(x: Array, y: Array, fault: str, write: Write) -> None:
    path = write(x=x, y=y)
    assert message().startswith(f"{path}: ")
    assert fault in message()


def test_missing_array_is_named(write: Write) -> None:
    path = write(x=draw((2, 4, 4)), y=draw((2,), 3))
    assert message(("train",)) == f"{path}: array x_train is missing; it holds x, y"


def test_pickled_arrays_are_never_opened(write: Write) -> None:
    path = write(x=draw((1, 4, 4)), y=np.array([{"a": 1}], dtype=object))
    assert f"{path} is not a readable .npz file" in message()


def test_other_files_are_refused(write: Write) -> None:
    path = write(x=draw((2, 4, 4)), y=draw((2,), 3))
    np.save(path.with_suffix(".npy"), draw((2, 4, 4)))
    for content in (b"not an archive", b"", path.with_suffix(".npy").read_bytes()):
        path.write_bytes(content)
        describe(path)
        assert f"{path} is not a readable .npz file" in message()
