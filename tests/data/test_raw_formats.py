"""Files that are not what they should be end as one clear line, and never run anything."""

from __future__ import annotations

import bz2
import gzip
import pickle
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from protofed.data import raw_formats
from protofed.data.download import SOURCES
from protofed.errors import ProtofedError


class Bomb:
    """What a pickle may do."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path("exploded"),)  # type: ignore[return-value]


def test_a_pickle_in_a_medmnist_file_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bomb = np.array([Bomb()], dtype=object)
    parts = {f"{part}_{kind}": bomb for part in ("train", "test") for kind in ("images", "labels")}
    np.savez(tmp_path / "pathmnist.npz", allow_pickle=True, **parts)
    with pytest.raises(ProtofedError, match="not a MedMNIST file"):
        list(raw_formats.read_medmnist(tmp_path, 28))
    (tmp_path / "pathmnist.npz").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(ProtofedError, match="not a MedMNIST file"):
        list(raw_formats.read_medmnist(tmp_path, 28))
    assert not Path("exploded").exists()


@pytest.mark.parametrize(
    "content",
    [
        b"no gzip",
        gzip.compress(b"\0\0"),
        gzip.compress(struct.pack(">4I", 0x803, 2, 28, 28) + bytes(100)),
        gzip.compress(struct.pack(">4I", 0x803, 1, 2, 2) + bytes(5)),
        gzip.compress(struct.pack(">4I", 0x903, 1, 2, 2) + bytes(4)),
        gzip.compress(struct.pack(">4I", 0x803, 2**31, 2**31, 2) + bytes(4)),
        gzip.compress(struct.pack(">4I", 0x803, 1, 2, 2) + bytes(4))[:-9],
    ],
    ids=["plain", "two bytes", "short", "long", "other type", "huge", "cut"],  # gzip tells the time
)
def test_a_broken_idx_file_is_told(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(content)
    with pytest.raises(ProtofedError, match=r"a\.gz is no"):
        raw_formats.parse_idx(path, axes=3)


@pytest.mark.parametrize(
    "text", ["", "1 257:0.5", "11 1:0.5", "0 1:0.5", "1 1:1.5", "1 1:nan", "x 1:0", "1 1", "1 0:1"]
)
def test_a_broken_libsvm_file_is_told(text: str, tmp_path: Path) -> None:
    path = tmp_path / "usps.bz2"
    path.write_bytes(bz2.compress(text.encode()))
    with pytest.raises(ProtofedError, match=r"usps\.bz2"):
        raw_formats.parse_libsvm(path)


def test_a_pixel_that_a_line_leaves_out_is_the_middle_grey(tmp_path: Path) -> None:
    path = tmp_path / "usps.bz2"
    path.write_bytes(bz2.compress(b"10 1:-1 2:1\n"))
    x, y = raw_formats.parse_libsvm(path)
    assert x[0, 0, :3].tolist() == [0, 255, 127]
    assert y.tolist() == [9]


@pytest.mark.parametrize("labels", [[0, 1], [1, 11], [1]])
def test_a_broken_matlab_file_is_told(labels: list[int], tmp_path: Path) -> None:
    from scipy.io import savemat

    path = tmp_path / "train_32x32.mat"
    savemat(path, {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.array(labels)[:, None]})
    with pytest.raises(ProtofedError, match=r"train_32x32\.mat"):
        raw_formats.parse_matlab(path)
    path.write_bytes(b"MATLAB")
    with pytest.raises(ProtofedError, match="not a MATLAB file"):
        raw_formats.parse_matlab(path)


@pytest.mark.parametrize("read", [raw_formats.read_cifar10, raw_formats.read_cifar100])
def test_records_that_are_cut_or_not_there_are_told(
    read: Callable[[Path, int], object], tmp_path: Path
) -> None:
    with pytest.raises(ProtofedError, match="cannot be read"):
        list(read(tmp_path, 32))  # type: ignore[call-overload]
    for folder in ("cifar-10-batches-bin", "cifar-100-binary"):
        (tmp_path / "content" / folder).mkdir(parents=True)
        for file in ("data_batch_1.bin", "train.bin"):
            (tmp_path / "content" / folder / file).write_bytes(bytes(5000))
    with pytest.raises(ProtofedError, match="complete records"):
        list(read(tmp_path, 32))  # type: ignore[call-overload]


def test_cifar100_with_other_classes_is_told(tmp_path: Path) -> None:
    place = tmp_path / "content" / "cifar-100-binary"
    place.mkdir(parents=True)
    (place / "fine_label_names.txt").write_text("apple\nbee\n")
    with pytest.raises(ProtofedError, match="does not list the classes"):
        list(raw_formats.read_cifar100(tmp_path, 32))


def test_a_domain_without_all_classes_is_told(tmp_path: Path) -> None:
    for name in ("bird", "car", "chair", "dog"):
        (tmp_path / "content" / "VLCS" / "Caltech101" / name).mkdir(parents=True)
    with pytest.raises(ProtofedError, match="no folder Caltech101 with a folder for each"):
        list(SOURCES["vlcs"].read(tmp_path, 64))


def test_what_is_no_image_is_told_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.jpg"
    path.parent.mkdir()
    path.write_bytes(b"\xff\xd8 no picture")
    with pytest.raises(ProtofedError, match=r"a/b\.jpg is not a readable image"):
        raw_formats.load_images(tmp_path, [path], 8)


def test_a_list_may_not_point_elsewhere(tmp_path: Path) -> None:
    root = tmp_path / "content" / "mnist_m"
    root.mkdir(parents=True)
    (root / "mnist_m_train_labels.txt").write_text("../../../../etc/passwd 3\n")
    with pytest.raises(ProtofedError, match=r"mnist_m_train/passwd is not a readable image"):
        list(raw_formats.read_image_lists(tmp_path, 32))
