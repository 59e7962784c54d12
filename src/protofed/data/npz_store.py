"""Images in .npz files: the archives below PROTOFED_DATA, checked before use, and the cache."""

from __future__ import annotations

import json
import math
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from protofed.core.site import ArrayDataset
from protofed.errors import ProtofedError
from protofed.runtime.atomic_io import atomic_write_json, file_sha256, rename_over
from protofed.runtime.resources import free_memory

Arrays = dict[str, NDArray[np.generic]]


def cache_folder() -> Path:
    """The cache folder: $PROTOFED_CACHE, else ``protofed`` in the user's own cache folder.

    Raises RuntimeError for a user without a home folder.
    """
    if own := os.environ.get("PROTOFED_CACHE"):
        return Path(own).expanduser()
    if shared := os.environ.get("XDG_CACHE_HOME"):
        return Path(shared) / "protofed"
    return Path.home() / ".cache" / "protofed"


def cached_arrays(name: str, make: Callable[[], Arrays]) -> Arrays:
    """The arrays that the cache holds under `name`, else those of `make`, which are then cached.

    A damaged cache file is replaced. Without a writable cache, `make` is called every time.
    """
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
    """Write arrays as an uncompressed .npz file.

    The file appears under its name only when it is complete.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, unfinished = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)
        rename_over(Path(unfinished), path)
    finally:
        Path(unfinished).unlink(missing_ok=True)


Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
DATA = "PROTOFED_DATA"
PUBLISHED = "the set as published"  # the note of a file that `protofed data get` made
STAMPS = "verified.json"  # files whose checksum was right when last checked


class ArchiveInfo(NamedTuple):
    """Where the .npz files of a benchmark lie, and the classes of their labels.

    The folder is below PROTOFED_DATA, unless `home` names another place.
    """

    benchmark: str
    folder: str
    classes: tuple[str, ...]
    home: Path | None = None  # the folder above, where it is not PROTOFED_DATA
    remedy: str = ""  # what to do about a missing or damaged file, where it cannot be downloaded


@dataclass(frozen=True)
class _File:
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    published: bool = False  # all images of the published set, none re-made


@dataclass(frozen=True)
class _Meta:
    """The fields of meta.json that are checked; the others are for people."""

    classes: tuple[str, ...]
    files: dict[str, _File]


def read_archive(
    archive: ArchiveInfo, file: str, parts: Sequence[str], shape: tuple[int, ...] | None = None
) -> list[ArrayDataset]:
    """Read parts of an .npz file of a benchmark, after checking it against its meta.json.

    The part "train" is the arrays ``x_train`` and ``y_train``, the part "" is ``x`` and ``y``.
    Images come as [N, H, W, 1 or 3] uint8; with a `shape`, rows [N, *shape] float32 are expected
    instead. The SHA-256 of an unchanged file is computed only once.
    """
    folder = _folder(archive)
    path = folder / file
    if not path.is_file():
        raise ProtofedError(
            f"benchmark '{archive.benchmark}' needs {path}, which does not exist\n"
            f"{_how(archive)}; or choose domains that do not need it"
        )
    remedy = archive.remedy or "fetch it again, together with its meta.json"
    _verify(path, _described(archive, folder / "meta.json", file).sha256, remedy)
    return [_dataset(path, part, len(archive.classes), shape) for part in parts]


def archive_note(archive: ArchiveInfo, file: str) -> str:
    """`PUBLISHED` if a file holds exactly the images of the published set, else an empty text."""
    described = _described(archive, _folder(archive) / "meta.json", file)
    return PUBLISHED if described.published else ""


def is_archive_missing(archive: ArchiveInfo, file: str) -> bool:
    """Whether a file or its entry in meta.json is missing; the content is not checked."""
    folder = Path(os.environ.get(DATA, "")) / archive.folder
    try:
        _described(archive, folder / "meta.json", file)
    except ProtofedError:
        return True
    return not os.environ.get(DATA) or not (folder / file).is_file()


def _how(archive: ArchiveInfo) -> str:
    return archive.remedy or f"`protofed data get {archive.benchmark}` fetches it"


def _folder(archive: ArchiveInfo) -> Path:
    """The benchmark's folder, if it exists."""
    root = archive.home or os.environ.get(DATA)
    if not root:
        raise ProtofedError(
            f"benchmark '{archive.benchmark}' reads real images: set {DATA} to the folder that "
            f"holds {archive.folder}/\n{_how(archive)}; 'digits-mini' needs no data"
        )
    folder = Path(root) / archive.folder
    if not folder.is_dir():
        raise ProtofedError(
            f"benchmark '{archive.benchmark}': there is no folder {folder}\n"
            f"set {DATA} (now {root}) to the folder that holds {archive.folder}/; {_how(archive)}"
        )
    return folder


def _described(archive: ArchiveInfo, path: Path, file: str) -> _File:
    """What meta.json says of a file; its classes must be the benchmark's."""
    try:
        meta = TypeAdapter(_Meta).validate_json(path.read_bytes())
    except FileNotFoundError:
        fault = "is missing"
    except OSError as error:
        fault = f"cannot be read ({error.strerror})"
    except ValidationError as error:
        first = error.errors()[0]
        fault = f"is broken ({'.'.join(map(str, first['loc']))}: {first['msg']})"
    else:
        if meta.classes != archive.classes:
            fault = f"does not list the classes of benchmark '{archive.benchmark}'"
        elif file not in meta.files:
            fault = f"has no entry for {file}"
        else:
            return meta.files[file]
    raise ProtofedError(f"{path} {fault}: without it {file} cannot be checked; {_how(archive)}")


def _verify(path: Path, expected: str, remedy: str) -> None:
    """Stop if the file is not the one that meta.json describes; hash it only if it changed."""
    path = path.resolve()
    state = path.stat()
    stamp = [state.st_size, state.st_mtime_ns, expected]
    stamps = _stamps()
    if stamps.get(str(path)) == stamp:
        return
    try:
        found = file_sha256(path)
    except OSError as error:
        raise ProtofedError(f"{path} cannot be read: {error.strerror}") from error
    if found != expected:
        raise ProtofedError(
            f"{path} is damaged or was changed: expected sha256 {expected[:12]}…, "
            f"found {found[:12]}…\n{remedy}"
        )
    _remember({**stamps, str(path): stamp})


def _stamps() -> dict[str, object]:
    """[size, mtime_ns, sha256] of verified files by path; empty if there is nothing usable."""
    try:
        stamps = json.loads((cache_folder() / STAMPS).read_bytes())
    except (OSError, RuntimeError, ValueError):  # RuntimeError: a user without a home folder
        return {}
    return stamps if isinstance(stamps, dict) else {}


def _remember(stamps: dict[str, object]) -> None:
    """Write the stamps in one move; where that is not allowed, files are hashed again."""
    try:
        target = cache_folder() / STAMPS
        target.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_json(target, stamps)
    except (OSError, RuntimeError):
        return


def _dataset(path: Path, part: str, classes: int, shape: tuple[int, ...] | None) -> ArrayDataset:
    """One part of a verified file as tensors, its arrays checked."""
    x, y = (f"{kind}_{part}" if part else kind for kind in "xy")
    images, labels = _arrays(path, x, y)
    found = f"{images.dtype} {list(images.shape)}"
    if shape is not None:
        if images.dtype != np.float32 or images.shape[1:] != shape:
            raise ProtofedError(f"{path}: {x} must be float32 {['N', *shape]}, is {found}")
    elif images.dtype != np.uint8 or images.shape[3:] not in ((), (3,)) or images.ndim < 3:
        raise ProtofedError(f"{path}: {x} must be uint8 [N, H, W] or [N, H, W, 3], is {found}")
    if labels.dtype.kind not in "iu" or labels.shape != (len(images),):
        found = f"{labels.dtype} {list(labels.shape)}"
        raise ProtofedError(f"{path}: {y} must be integers [{len(images)}] as {x}, is {found}")
    if len(labels) == 0:
        raise ProtofedError(f"{path}: {x} and {y} are empty")
    if labels.min() < 0 or labels.max() >= classes:
        found = f"{labels.min()} to {labels.max()}"
        raise ProtofedError(f"{path}: {y} must lie in 0 to {classes - 1}, spans {found}")
    grey = images[..., None] if shape is None and images.ndim == 3 else images
    return ArrayDataset(torch.from_numpy(grey), torch.from_numpy(labels.astype(np.int64)))


def _arrays(path: Path, *names: str) -> list[Array]:
    """Arrays of an .npz file by name, all of which must be there."""
    stored = read_array_file(path, names)
    for name in names:
        if name not in stored.names:
            raise ProtofedError(f"{path}: array {name} is missing; it holds {stored.listing}")
    return [stored.arrays[name] for name in names]


class ArrayFile(NamedTuple):
    """The names of all arrays in a file, and those arrays that were asked for."""

    names: tuple[str, ...]
    arrays: dict[str, Array]

    @property
    def listing(self) -> str:
        """The names in one line."""
        return ", ".join(self.names) or "none"


def read_array_file(path: Path, names: Sequence[str] | None = None) -> ArrayFile:
    """Read a .npy or .npz file of any origin: all arrays, or those of `names` that it has.

    Nothing is unpickled. Headers are checked before a byte is allocated: Python objects, headers
    that do not fit the file, and files that grow a hundredfold or beyond the free memory are
    refused. The one array of a .npy file is called "x".
    """
    try:
        if path.suffix.lower() == ".npy":
            with path.open("rb") as file:
                _check_array_sizes(path, {"x": _array_size(file, path.stat().st_size)})
            return ArrayFile(("x",), {"x": np.load(path, allow_pickle=False)})
        with zipfile.ZipFile(path) as archive:
            sizes = {}
            for info in archive.infolist():
                with archive.open(info) as member:
                    sizes[info.filename] = _array_size(member, info.file_size)
        _check_array_sizes(path, sizes)
        with np.load(path, allow_pickle=False) as stored:
            there = [name for name in stored if names is None or name in names]
            return ArrayFile(tuple(stored), {name: stored[name] for name in there})
    except (OSError, EOFError, ValueError, TypeError, RuntimeError, NotImplementedError) as error:
        raise ProtofedError(f"{path} is not a readable {path.suffix} file: {error}") from error
    except (zipfile.BadZipFile, zlib.error) as error:
        raise ProtofedError(f"{path} is not a readable .npz file: {error}") from error


HARMLESS = 64 * 2**20  # bytes; below, ratios are not checked
MOST_RATIO = 100  # bytes of arrays per byte of their file


def _array_size(file: IO[bytes], total: int) -> int:
    """The bytes of an array by its header; ValueError if its file, of `total` bytes, has others."""
    version = np.lib.format.read_magic(file)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:
        raise ValueError(f"version {version} of the format")
    shape, _, dtype = readers[version](file)
    if dtype.hasobject:
        raise ValueError("Object arrays cannot be loaded, as they hold Python code: only numbers")
    size = math.prod(shape) * dtype.itemsize
    if size != total - file.tell():
        raise ValueError(f"its header promises {size} bytes, it has {total - file.tell()}")
    return size


def _check_array_sizes(path: Path, sizes: dict[str, int]) -> None:
    """Raise for arrays that are far larger than their file, or than the free memory."""
    whole, packed = sum(sizes.values()), path.stat().st_size
    if whole > HARMLESS and whole > MOST_RATIO * packed:
        raise ProtofedError(
            f"{path} would grow from {packed:,} to {whole:,} bytes, as a zip bomb does\n"
            "if it is yours, save its arrays without compression"
        )
    if whole > (free := free_memory()):
        raise ProtofedError(f"{path} holds {whole:,} bytes of arrays, and {free:,} are free")
