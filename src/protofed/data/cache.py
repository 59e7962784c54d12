"""Arrays that are slow to make, kept on disk between runs; losing them costs only time."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.generic]]


def cache_folder() -> Path:
    """Where made arrays are kept: $PROTOFED_CACHE, else protofed in the user's cache folder."""
    if own := os.environ.get("PROTOFED_CACHE"):
        return Path(own).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "protofed"
    return Path.home() / ".cache" / "protofed"


def cached_file(name: str, make: Callable[[], Arrays]) -> Arrays:
    """The arrays kept under `name`; made, and kept if the disk allows it, where there are none."""
    try:
        path = cache_folder() / f"{name}.npz"
    except RuntimeError:  # a user without a home folder, as in some containers
        return make()
    kept = _read(path)
    if kept is not None:
        return kept
    arrays = make()
    with suppress(OSError):  # a read-only or full disk only means making them again next time
        write_arrays(path, arrays)
    return arrays


def _read(path: Path) -> Arrays | None:
    """The arrays in a file; None if it is missing or damaged."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
            return dict(kept) or None
    except Exception:  # damaged bytes can fail in any way: zip, zlib, header, memory
        return None


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Write a file that others see either whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
        os.replace(unfinished, path)
    finally:
        Path(unfinished).unlink(missing_ok=True)
