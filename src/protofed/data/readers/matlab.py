"""SVHN's cropped digits: two MATLAB files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from protofed.core.errors import ProtofedError
from protofed.data.archive import Array
from protofed.data.cache import Arrays


def read_matlab(folder: Path, side: int) -> Iterator[tuple[str, Arrays]]:
    """svhn.npz: images [N, 32, 32, 3] and labels [N]."""
    arrays: Arrays = {}
    for part in ("train", "test"):
        arrays[f"x_{part}"], arrays[f"y_{part}"] = parse_matlab(folder / f"{part}_32x32.mat")
    yield "svhn.npz", arrays


def parse_matlab(path: Path) -> tuple[Array, Array]:
    """Images and labels of one file: X is [32, 32, 3, N], and y has 10 for the digit 0."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        stored = loadmat(path, variable_names=["X", "y"])
        x, y = stored["X"], stored["y"].ravel()
    except (OSError, EOFError, ValueError, KeyError, TypeError, MatReadError) as fault:
        raise ProtofedError(f"{path} is no MATLAB file with X and y: {fault}") from fault
    if x.dtype != np.uint8 or x.ndim != 4 or x.shape[2:] != (3, len(y)):
        raise ProtofedError(f"{path}: X must be uint8 [H, W, 3, {len(y)}], is {x.dtype} {x.shape}")
    if y.dtype.kind not in "iu" or not ((y >= 1) & (y <= 10)).all():
        raise ProtofedError(f"{path}: y must be whole numbers from 1 to 10")
    return np.ascontiguousarray(x.transpose(3, 0, 1, 2)), (y % 10).astype(np.uint8)
