"""MNIST's own format: four gzipped files, each a header and then bytes."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from protofed.core.errors import ProtofedError
from protofed.data.archive import Array
from protofed.data.cache import Arrays

MOST_IDX_BYTES = 10**9  # bytes that a header may speak of


def read_idx_files(folder: Path, side: int) -> Iterator[tuple[str, Arrays]]:
    """mnist.npz: images [N, 28, 28] and labels [N] as they were published."""
    arrays: Arrays = {}
    for part, stem in (("train", "train"), ("test", "t10k")):
        arrays[f"x_{part}"] = parse_idx(folder / f"{stem}-images-idx3-ubyte.gz", axes=3)
        arrays[f"y_{part}"] = parse_idx(folder / f"{stem}-labels-idx1-ubyte.gz", axes=1)
    yield "mnist.npz", arrays


def parse_idx(path: Path, axes: int) -> Array:
    """One file as uint8 with so many axes; it must hold just what its header says."""
    try:
        with gzip.open(path) as stream:
            magic, *shape = struct.unpack(f">{axes + 1}I", stream.read(4 * (axes + 1)))
            count = math.prod(shape)
            content = stream.read(count + 1) if count <= MOST_IDX_BYTES else b""
    except (OSError, EOFError, zlib.error, struct.error) as fault:
        raise ProtofedError(f"{path} is no whole gzipped idx file: {fault}") from fault
    if magic != 0x0800 + axes or len(content) != count:
        raise ProtofedError(f"{path} is no idx file of bytes with {axes} axes, or is cut")
    return np.frombuffer(content, np.uint8).reshape(shape)
