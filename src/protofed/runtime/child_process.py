"""Child processes that leave Ctrl-C to their parent and do not outlive it."""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn


@contextmanager
def ignore_sigint_in_children() -> Iterator[None]:
    """Block Ctrl-C in this block, so that processes started in it never receive it.

    In this process, a Ctrl-C during the block takes effect at its end.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def exit_with_parent() -> None:
    """In a child started by multiprocessing: end this process when its parent has ended.

    A thread waits for the parent, so the child ends whatever it is doing, even if the parent was
    killed.
    """
    threading.Thread(target=_wait, daemon=True).start()


def exit_with_pipe(life: int) -> None:
    """In a child: end this process when the other end of a pipe, held by its parent, is closed.

    The parent need not close it: the system does when the parent ends. If the child leads a process
    group, the whole group is killed.
    """

    def wait() -> None:
        os.read(
            life, 1
        )  # nothing is ever written: this returns when the parent has ended, however it did
        if os.getpgid(0) == os.getpid():
            os.killpg(0, signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _wait() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


LONGEST_END = 5.0  # seconds after which a process is killed
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


def flower_environment(home: Path) -> dict[str, str]:
    """The environment for processes that load Flower: no telemetry, update checks or installations.

    `home` is where Flower keeps its files.
    """
    return {**os.environ, **OFFLINE, "FLWR_HOME": str(home / "flwr")}


def stop_on_sigterm() -> None:
    """Let SIGTERM end this process like a normal exit.

    Context managers then close what they hold; a second SIGTERM is ignored.
    """

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # only once
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, stop)


class ChildProcess:
    """A process in a group of its own that ends with this one.

    Its output goes to `log`. With `speaks`, only its errors go there and the rest is printed here.
    The command's last argument is the descriptor of a pipe; it must pass that to `exit_with_pipe`.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        log: Path | None = None,
        speaks: bool = False,
    ):
        life, self.life = os.pipe()
        stream = log.open("ab") if log else None
        try:
            self.process = subprocess.Popen(
                [*command, "--life", str(life)],
                env=env,
                pass_fds=[life],
                stdin=subprocess.DEVNULL,
                stdout=None if speaks else stream,
                stderr=stream,
                start_new_session=True,
            )
        finally:
            os.close(life)
            if stream:
                stream.close()

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self.process.poll() is None

    def close(self) -> None:
        """End it and everything it has started, by force if needed."""
        close_children([self])

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self.life >= 0:
            os.close(self.life)
            self.life = -1


def close_children(children: Iterable[ChildProcess], longest: float = LONGEST_END) -> None:
    """End processes and everything they have started, all at the same time, by force if needed.

    They are asked to terminate first and killed after `longest` seconds.
    """
    every = list(children)
    for child in every:
        if child.running:
            child.process.terminate()
    end = time.monotonic() + longest
    for child in every:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.process.wait(max(0.0, end - time.monotonic()))
        child._kill()
