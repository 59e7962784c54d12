"""USPS as LIBSVM's page has it: bzipped lines of ``label index:value ...``."""

from __future__ import annotations

import bz2
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from protofed.core.errors import ProtofedError
from protofed.data.archive import Array
from protofed.data.cache import Arrays

SIDE = 16
MOST_LIBSVM_BYTES = 2**28  # bytes of text


def read_libsvm(folder: Path, side: int) -> Iterator[tuple[str, Arrays]]:
    """usps.npz: images [N, 16, 16] and labels [N]."""
    arrays: Arrays = {}
    for part, name in (("train", "usps.bz2"), ("test", "usps.t.bz2")):
        arrays[f"x_{part}"], arrays[f"y_{part}"] = parse_libsvm(folder / name)
    yield "usps.npz", arrays


def parse_libsvm(path: Path) -> tuple[Array, Array]:
    """Images and labels of one file: values from -1 to 1 become 0 to 255, labels 1 to 10 0 to 9."""
    try:
        with bz2.open(path) as stream:
            text = stream.read(MOST_LIBSVM_BYTES).decode("ascii")
        lines = [line.split() for line in text.splitlines() if line.strip()]
        values = np.zeros((len(lines), SIDE * SIDE), np.float32)  # what a line leaves out is 0
        for row, (_, *pixels) in enumerate(lines):
            for place, value in (pixel.split(":") for pixel in pixels):
                if not 1 <= int(place) <= SIDE * SIDE:
                    raise ValueError(f"line {row + 1} has a pixel {place}")
                values[row, int(place) - 1] = float(value)
        labels = np.array([float(words[0]) for words in lines]).astype(np.int64) - 1
    except (OSError, EOFError, ValueError) as fault:
        raise ProtofedError(
            f"{path} is no whole bzipped file in LIBSVM's format: {fault}"
        ) from fault
    if (
        not len(lines)
        or not (np.abs(values) <= 1).all()
        or not ((labels >= 0) & (labels < 10)).all()
    ):
        raise ProtofedError(f"{path}: values must lie in -1 to 1 and labels in 1 to 10")
    images = ((values + 1) / 2 * 255).astype(np.uint8)
    return images.reshape(-1, SIDE, SIDE), labels.astype(np.uint8)
