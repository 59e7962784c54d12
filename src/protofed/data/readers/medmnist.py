"""MedMNIST's .npz files, of which nothing is unpickled."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from protofed.core.errors import ProtofedError
from protofed.data.cache import Arrays


def read_medmnist(folder: Path, side: int) -> Iterator[tuple[str, Arrays]]:
    """pathmnist.npz: images [N, 28, 28, 3] and labels [N] to train and to test."""
    path = folder / "pathmnist.npz"
    arrays: Arrays = {}
    try:
        with np.load(path, allow_pickle=False) as stored:
            for part in ("train", "test"):
                arrays[f"x_{part}"] = stored[f"{part}_images"]
                arrays[f"y_{part}"] = stored[f"{part}_labels"].reshape(-1).astype(np.uint8)
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, zlib.error) as fault:
        raise ProtofedError(f"{path} is no MedMNIST file: {fault}") from fault
    yield path.name, arrays
