"""Worker processes as their parent sees them: started, given tasks, replaced, ended."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import wait
from multiprocessing.reduction import send_handle
from typing import Any

from protofed.core.errors import ProtofedError
from protofed.core.site import SERVER, ClientId
from protofed.engines.arena import SharedTreeBuffer, shared_memory_handle
from protofed.engines.worker import (
    COMMAND,
    TaskInput,
    WorkerHandles,
    WorkerLink,
    WorkerSetup,
    WorkerTask,
)

LONGEST_END = 5  # seconds that a worker has to end by itself


class WorkerHandle:
    """One worker process."""

    def __init__(self) -> None:
        self.down, self.up = (
            SharedTreeBuffer(shared_memory_handle()),
            SharedTreeBuffer(shared_memory_handle()),
        )
        ours, theirs = socket.socketpair()
        life, self.life = os.pipe()
        handles = WorkerHandles(theirs.fileno(), life, self.down.handle, self.up.handle)
        self.process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *map(str, handles)],
            pass_fds=handles,
        )
        theirs.close()
        os.close(life)
        self.link = WorkerLink(ours.detach())
        self.link.give(sys.path)

    def set_up(self, setup: WorkerSetup, images: SharedTreeBuffer) -> None:
        """Tell it of a federation, and wait until it knows."""
        self.link.give((setup, None))
        send_handle(self.link.connection, images.handle, self.process.pid)
        unwrap_answer(self.link.take())

    def end(self) -> int:
        """End the process, by force if need be; its exit code."""
        self.link.connection.close()
        os.close(self.life)
        try:
            code = self.process.wait(LONGEST_END)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        os.close(self.down.handle)
        os.close(self.up.handle)
        return code


def unwrap_answer(answer: Any) -> Any:
    """A worker's answer; a fault that it met is raised here."""
    if isinstance(answer, Exception):
        raise answer
    return answer


class WorkerPool:
    """Workers that share a list of tasks; one that dies is replaced, and its task begun again."""

    def __init__(self, count: int):
        self.workers = [WorkerHandle() for _ in range(count)]  # they import torch side by side

    def set_up(
        self, setup: WorkerSetup, images: SharedTreeBuffer, tell: Callable[[str], None]
    ) -> None:
        """Tell everyone of a federation, and whom to tell of deaths; may be done again."""
        self.setup, self.images, self.tell = setup, images, tell
        for worker in self.workers:
            worker.set_up(setup, images)

    def run_tasks(
        self, tasks: Sequence[WorkerTask], given: Callable[[ClientId], TaskInput]
    ) -> Iterator[tuple[int, Any]]:
        """Each task's number and what came of it, as they finish; they start in their order."""
        waiting, died = deque(range(len(tasks))), set[int]()
        busy: dict[WorkerHandle, int] = {}
        while waiting or busy:
            for worker in self.workers:
                if waiting and worker not in busy:
                    busy[worker] = number = waiting.popleft()
                    self._start(worker, tasks[number], given)
            ready = wait([worker.link.connection for worker in busy])
            for worker in [w for w in busy if w.link.connection in ready]:
                number = busy.pop(worker)
                try:
                    answer = worker.link.take()
                except (EOFError, ConnectionError):
                    self._replace(worker, tasks[number].client, last=number in died)
                    died.add(number)
                    waiting.appendleft(number)
                else:
                    yield number, tasks[number].take(unwrap_answer(answer), worker.up)

    def _start(
        self, worker: WorkerHandle, task: WorkerTask, given: Callable[[ClientId], TaskInput]
    ) -> None:
        outline = worker.down.write([*given(task.client)])
        with suppress(ConnectionError):  # it died while it was idle: `take` will see it
            worker.link.give((task, outline))

    def _replace(self, worker: WorkerHandle, client: ClientId, last: bool) -> None:
        """Report whose worker died and start another one, unless that was its last chance."""
        code = worker.end()
        ending = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        whose = "the server" if client == SERVER else f"client {client}"  # its model is scored
        news = f"{whose}: its worker process died ({ending})"
        if last:
            self.workers.remove(worker)
            raise ProtofedError(
                f"{news} twice\nthe machine may lack memory: use fewer workers (--workers 1), "
                f"smaller batches, or look at the system's log"
            )
        self.tell(f"{news} and was started again")
        fresh = self.workers[self.workers.index(worker)] = WorkerHandle()
        fresh.set_up(self.setup, self.images)

    def end(self) -> None:
        """Leave nothing running."""
        while self.workers:
            self.workers.pop().end()
