"""One process at a time; the system frees a lock when its process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protofed.core.errors import BusyError, ProtofedError

TRIES, PAUSE = 5, 0.02  # who only looks whether a folder is held holds it for a moment, too


@contextmanager
def file_lock(path: Path, busy: str = "") -> Iterator[None]:
    """Hold a folder, or a file that is made for it; another's lock is waited for, or an error.

    It is an error where there are words for it. What is raised inside passes as it is.
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
    """Whether a process holds a folder now; nobody holds one that is not there."""
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
