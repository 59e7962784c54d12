"""Child processes that leave Ctrl-C to their parent, and do not outlive it."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ignore_sigint_in_children() -> Iterator[None]:
    """Around the start of processes: they never hear Ctrl-C, and here it is heard at the end."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def exit_with_parent() -> None:
    """In a child: let it end, whatever it is at, when its parent has ended, if need be killed."""
    threading.Thread(target=_wait, daemon=True).start()


def exit_with_pipe(life: int) -> None:
    """In a child: let it end when the other end of a pipe, which its parent holds, is closed.

    If it leads a group of processes, all of these end with it.
    """

    def wait() -> None:
        os.read(life, 1)  # nobody writes: this ends when the parent has, however it did
        if os.getpgid(0) == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _wait() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)
