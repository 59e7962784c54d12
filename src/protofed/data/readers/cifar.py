"""CIFAR in its binary version: records of one or two labels and 3,072 bytes; no pickle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from protofed.core.errors import ProtofedError
from protofed.data.archive import Array
from protofed.data.cache import Arrays
from protofed.data.domains import CIFAR100

PIXELS = 3 * 32 * 32


def read_cifar10(folder: Path, side: int) -> Iterator[tuple[str, Arrays]]:
    """cifar10.npz from five training files and one to test."""
    place = folder / "content" / "cifar-10-batches-bin"
    train = [place / f"data_batch_{number}.bin" for number in range(1, 6)]
    yield "cifar10.npz", _parts(train, [place / "test_batch.bin"], labels=1)


def read_cifar100(folder: Path, side: int) -> Iterator[tuple[str, Arrays]]:
    """cifar100.npz with the fine labels."""
    place = folder / "content" / "cifar-100-binary"
    names = place / "fine_label_names.txt"
    if names.is_file() and tuple(names.read_text("ascii").split()) != CIFAR100.classes:
        raise ProtofedError(f"{names} lists other classes than cifar100 has")
    yield "cifar100.npz", _parts([place / "train.bin"], [place / "test.bin"], labels=2)


def _parts(train: Sequence[Path], test: Sequence[Path], labels: int) -> Arrays:
    arrays: Arrays = {}
    for part, paths in (("train", train), ("test", test)):
        records = np.concatenate([_records(path, labels) for path in paths])
        arrays[f"y_{part}"] = records[:, labels - 1].copy()  # the last label is the fine one
        planes = records[:, labels:].reshape(-1, 3, 32, 32)
        arrays[f"x_{part}"] = np.ascontiguousarray(planes.transpose(0, 2, 3, 1))
    return arrays


def _records(path: Path, labels: int) -> Array:
    """A file's records [N, labels + 3072]."""
    try:
        content = np.fromfile(path, np.uint8)
    except OSError as fault:
        raise ProtofedError(f"{path} cannot be read: {fault.strerror}") from fault
    if not len(content) or len(content) % (labels + PIXELS):
        raise ProtofedError(f"{path} does not hold whole records of {labels + PIXELS} bytes")
    return content.reshape(-1, labels + PIXELS)
