"""Files that are never half written: atomic writes, checked reads, locks between processes.

All changes to the disk go through `write_all`, `sync_file` and `rename_over`: ``make faults`` lets
each call of them fail in turn. Unfinished files end in `UNFINISHED`, and no reader opens them.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path

from protofed.errors import BusyError, ProtofedError

try:
    import fcntl
except ImportError:
    raise ProtofedError("protofed needs Linux or macOS; on Windows, run it inside WSL") from None

UNFINISHED = ".tmp"


def write_all(handle: int, content: bytes) -> None:
    """Write all of `content` to an open file, in several system calls if needed."""
    left = memoryview(content)
    while left:
        left = left[os.write(handle, left) :]


def sync_file(handle: int) -> None:
    """Wait until what was written is on the disk (fsync)."""
    os.fsync(handle)


def rename_over(old: Path, new: Path) -> None:
    """Rename in one step; a file that had the new name disappears in the same step."""
    os.replace(old, new)


def atomic_write(path: Path, content: bytes) -> None:
    """Replace a file in one step: temporary file, fsync, rename, fsync of the folder.

    After a crash the file has its old content or the new one, never a part of it.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{UNFINISHED}")
    try:
        with temporary.open("wb", buffering=0) as stream:
            write_all(stream.fileno(), content)
            sync_file(stream.fileno())
        rename_over(temporary, path)
    except BaseException:  # on a full disk, free what cannot be finished
        with suppress(OSError):
            temporary.unlink()
        raise
    sync_directory(path.parent)


def atomic_write_json(path: Path, content: object) -> None:
    """Write plain data as indented JSON with a final newline; see `atomic_write`."""
    atomic_write(path, (json.dumps(content, indent=2) + "\n").encode())


def append_durably(path: Path, content: bytes) -> None:
    """Append to a file and wait until it is on the disk.

    A crash may leave only the first part of `content`, so readers must expect a cut last line.
    """
    is_new = not path.exists()
    with path.open("ab", buffering=0) as stream:
        write_all(stream.fileno(), content)
        sync_file(stream.fileno())
    if is_new:
        sync_directory(path.parent)


@contextmanager
def atomic_directory(path: Path) -> Iterator[Path]:
    """A folder to write files into; it gets its name when the block ends without an error.

    Until then it has a temporary name. A folder that had the name is replaced; after an error
    nothing is left behind::

        with atomic_directory(run / "checkpoint") as folder:
            atomic_write(folder / "server", content)
    """
    made = path.with_name(f".{path.name}{UNFINISHED}")
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    try:
        yield made
        remove_directory(path)
        rename_over(made, path)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    sync_directory(path.parent)


def remove_directory(path: Path) -> None:
    """Remove a folder if it exists: it disappears in one step, then its files are deleted."""
    if path.exists():
        doomed = path.with_name(f".{path.name}.old{UNFINISHED}")
        shutil.rmtree(doomed, ignore_errors=True)
        rename_over(path, doomed)
        _remove(doomed)


def is_temporary(path: Path) -> bool:
    """Whether a file name is one that files have only while they are being written.

    Such files start with a dot and end in `UNFINISHED`.
    """
    return path.name.startswith(".") and path.name.endswith(UNFINISHED)


def remove_temporaries(folder: Path) -> None:
    """Remove what a killed process left unfinished.

    Only for a process that has the folder to itself: it would delete files that others are writing.
    """
    for left in filter(is_temporary, folder.iterdir()):
        _remove(left)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def sync_directory(folder: Path) -> None:
    """Make a rename or a new file in a folder survive a crash."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        sync_file(handle)
    finally:
        os.close(handle)


def open_file(path: Path) -> BufferedReader:
    """Open a regular file for reading; a pipe or device under its name is refused.

    Reading those might never end.
    """
    return open(path, "rb", opener=_open_regular)


def _open_regular(path: str, flags: int) -> int:
    handle = os.open(path, flags | os.O_NONBLOCK)  # or opening a pipe would wait for a writer
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "it is not a file", path)
    return handle


def read_file_bytes(path: Path) -> bytes:
    """The content of a regular file; see `open_file`."""
    with open_file(path) as stream:
        return stream.read()


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file's content, as hexadecimal digits.

    Read in pieces, so the file need not fit into memory.
    """
    with open_file(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def format_bytes(count: float) -> str:
    """A number of bytes for people, in steps of a thousand: ``1.52 MB``."""
    for unit in ("B", "kB", "MB"):
        if round(count, 2) < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.2f} {unit}"
        count /= 1000
    return f"{count:.2f} GB"


TRIES, PAUSE = 5, 0.02  # `is_locked` holds a lock for a moment, too


# Not the package filelock: it cannot lock the folder itself, so every run folder would gain a lock
# file, and it has no shared lock with which `is_locked` looks into a folder that is read-only.
@contextmanager
def file_lock(path: Path, busy: str = "") -> Iterator[None]:
    """Hold an exclusive lock on a folder, or on a file that is created for it.

    If another process holds the lock, the call waits for it; with a text in `busy` it raises
    `BusyError` with that text instead. The system releases the lock when the process ends, even if
    it is killed. ::

        with file_lock(run_folder, "another process is writing to it"):
            ...
    """
    how = os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT
    try:
        handle = os.open(path, how, 0o644)
    except OSError as fault:
        raise ProtofedError(f"cannot write to {path}: {fault.strerror}") from fault
    try:
        _lock(handle, busy)
        yield
    finally:
        os.close(handle)


def _lock(handle: int, busy: str) -> None:
    for _ in range(TRIES):
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | (fcntl.LOCK_NB if busy else 0))
        except BlockingIOError:
            time.sleep(PAUSE)
    raise BusyError(busy)


def is_locked(folder: Path) -> bool:
    """Whether any process holds the lock of a folder now; False if there is no such folder."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False
