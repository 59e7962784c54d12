"""The local engine with worker processes: the same bits as in one process, but faster.

A worker is started by its own command (`COMMAND`) rather than by multiprocessing, which would run
the caller's script a second time.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle, send_handle
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from protofed.core import tree
from protofed.core.message import Failure, Message
from protofed.core.method import AnyMethod, C, Method, S
from protofed.core.metrics import CorrectCounts, CountedPart, count_part, merge_counts
from protofed.core.site import SCAN_BATCH, SERVER, ArrayDataset, ClientId, RoundContext, Site
from protofed.engines.engine import try_training
from protofed.engines.local_engine import LocalEngine
from protofed.engines.shared_memory import SharedTreeBuffer, shared_memory_handle
from protofed.errors import ProtofedError
from protofed.runtime.child_process import exit_with_pipe
from protofed.runtime.resources import free_memory, tune_malloc, usable_cores

T = TypeVar("T")
COMMAND = (  # ignores Ctrl-C from the start: the parent decides what it means
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "from protofed.engines.multiprocess import worker_main; worker_main()"
)


class WorkerLink:
    """One end of a socket between two processes of one user, so pickled objects may pass.

    Plain pickle: torch's own for multiprocessing would move tensors to shared memory of its own.
    """

    def __init__(self, handle: int):
        self.connection = Connection(handle)

    def give(self, thing: object) -> None:
        """Send an object that pickle knows."""
        self.connection.send_bytes(pickle.dumps(thing))

    def take(self) -> Any:
        """Wait for an object; EOFError if the other end is gone."""
        return pickle.loads(self.connection.recv_bytes())


class WorkerHandles(NamedTuple):
    """The file descriptors that a worker inherits: a socket, a pipe, and two shared buffers.

    The pipe `life` closes when the parent ends, and the worker ends with it.
    """

    link: int
    life: int
    down: int  # shared buffer for what a client is given
    up: int  # shared buffer for what a client gives back


@dataclass(frozen=True)
class WorkerSetup:
    """A federation for a worker; its images are outlines, the pixels come in a shared buffer."""

    method: AnyMethod
    threads: int
    sites: Mapping[ClientId, Site]
    tests: Mapping[str, ArrayDataset]


class TaskInput(NamedTuple):
    """What a task starts from: a message and a client's state, in the shared buffer `down`."""

    received: Message
    state: Any


class WorkerTask(Protocol):
    """Work that a worker does for one client.

    `do` runs in the worker and returns what goes back over the socket; `take` runs in the parent
    and makes the result of it.
    """

    @property
    def client(self) -> ClientId:
        """The client whose work it is."""

    def do(self, given: TaskInput, worker: WorkerContext) -> Any:
        """Do the work, in the worker; returns what goes over the socket."""

    def take(self, answer: Any, up: SharedTreeBuffer) -> Any:
        """Make the result from a worker's answer, in the parent."""


@dataclass(frozen=True)
class TrainTask:
    """Let a client train; the result is its reply (or failure) and its new state.

    Both come back in the shared buffer `up`; only their outline goes over the socket.
    """

    client: ClientId
    context: RoundContext

    def do(self, given: TaskInput, worker: WorkerContext) -> list[Any]:
        site = worker.sites[self.client]
        return worker.up.write(
            [*try_training(worker.method, site, given.received, given.state, self.context)]
        )

    def take(self, answer: list[Any], up: SharedTreeBuffer) -> list[Any]:
        return tree.clone(up.read(answer))


@dataclass(frozen=True)
class ScoreTask:
    """Count a client's correct predictions on rows `first` to `last` of a test set.

    Large test sets are scored in parts; `merge_counts` adds them up.
    """

    client: ClientId
    test: str
    first: int
    last: int

    def do(self, given: TaskInput, worker: WorkerContext) -> CountedPart:
        rows = worker.tests[self.test].slice(self.first, self.last)
        return count_part(
            worker.method, worker.sites[self.client], given.received, given.state, rows
        )

    def take(self, answer: CountedPart, up: SharedTreeBuffer) -> CountedPart:
        return answer


class WorkerContext:
    """What a worker needs for its tasks: the federation, and the shared buffer for results.

    Sites and test sets see their images in the buffer that all workers share, without a copy.
    """

    def __init__(self, setup: WorkerSetup, images: SharedTreeBuffer, up: SharedTreeBuffer):
        self.method, self.up = setup.method, up
        pixels = images.read(shared_images(setup.sites, setup.tests))
        self.sites, self.tests = attach_images(setup.sites, setup.tests, pixels)


def shared_images(sites: Mapping[ClientId, Site], tests: Mapping[str, ArrayDataset]) -> list[Any]:
    """Every image tensor of sites and test sets as one tree, to be written to a shared buffer.

    `attach_images` is the inverse.
    """
    trains = [[site.train.images, site.train.labels] for site in sites.values()]
    sets = [[test.images, test.labels] for test in tests.values()]
    return [trains, sets, next(iter(sites.values())).public]  # public: the same at every site


def attach_images(
    sites: Mapping[ClientId, Site], tests: Mapping[str, ArrayDataset], images: list[Any]
) -> tuple[dict[ClientId, Site], dict[str, ArrayDataset]]:
    """Sites and test sets with the tensors of a tree that `shared_images` made.

    The tensors may be views of shared memory, or outlines without memory.
    """
    trains, sets, public = images
    with_images = {
        client: replace(site, train=ArrayDataset(*pair), public=public)
        for (client, site), pair in zip(sites.items(), trains, strict=True)
    }
    return with_images, {name: ArrayDataset(*pair) for name, pair in zip(tests, sets, strict=True)}


class WorkerProcess:
    """The worker's side: it is given a federation, then does tasks for it until the parent leaves.

    It may be given another federation later, so one pool can serve several runs.
    """

    def __init__(self, handles: WorkerHandles):
        self.link = WorkerLink(handles.link)
        self.down, self.up = SharedTreeBuffer(handles.down), SharedTreeBuffer(handles.up)
        self.context: WorkerContext | None = None

    def serve(self) -> None:
        """Answer each request from the socket; EOFError when the parent has closed it."""
        sys.path[:] = self.link.take()  # so a user's own method is found here too
        while True:
            request = self.link.connection.recv_bytes()
            self.link.give(_result_or_exception(partial(self._answer, request)))

    def _answer(self, request: bytes) -> object:
        work, given = pickle.loads(request)  # fails if the method's module is not found here
        if isinstance(work, WorkerSetup):
            torch.set_num_threads(work.threads)  # whatever environment variables say
            self.context = WorkerContext(
                work, SharedTreeBuffer(recv_handle(self.link.connection)), self.up
            )
            return "ready"
        assert self.context is not None, "set up before any task"
        task: WorkerTask = work
        return task.do(TaskInput(*self.down.read(given)), self.context)


def _result_or_exception(work: Callable[[], T]) -> T | Exception:
    """The result of `work`, or the exception that it raised, with its traceback as a note."""
    try:
        return work()
    except Exception as fault:
        trace = "".join(traceback.format_exception(fault))
        try:
            answer: Exception = pickle.loads(pickle.dumps(fault))
        except Exception:  # not every exception can be rebuilt from its arguments
            answer = RuntimeError(f"{type(fault).__name__}: {fault}")
        answer.add_note(f"in a worker process:\n{trace}")
        return answer


def worker_main() -> None:
    """The entry point of a worker process, with the descriptors that its command line names."""
    handles = WorkerHandles(*map(int, sys.argv[1:]))
    tune_malloc()
    exit_with_pipe(handles.life)
    with suppress(EOFError, OSError):  # the parent has ended, perhaps in mid-message
        WorkerProcess(handles).serve()


LONGEST_END = 5  # seconds after which a worker is killed


class WorkerHandle:
    """The parent's side of one worker process: starting it, talking to it, ending it.

    `down` and `up` are the shared buffers for what it is given and what it returns.
    """

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
        self.ready = False  # until it has a federation

    def set_up(self, setup: WorkerSetup, images: SharedTreeBuffer) -> None:
        """Give it a federation and wait until it is ready."""
        self.link.give((setup, None))
        send_handle(self.link.connection, images.handle, self.process.pid)
        unwrap_answer(self.link.take())
        self.ready = True

    def end(self) -> int:
        """End the process, by force if it does not end by itself; returns its exit code."""
        self.link.connection.close()
        os.close(self.life)
        if not self.ready:  # it may be importing torch, and nobody waits for that
            self.process.kill()
        try:
            code = self.process.wait(LONGEST_END)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        os.close(self.down.handle)
        os.close(self.up.handle)
        return code


def unwrap_answer(answer: Any) -> Any:
    """A worker's answer; an exception that it met is raised here."""
    if isinstance(answer, Exception):
        raise answer
    return answer


class WorkerPool:
    """Worker processes that share a queue of tasks.

    A worker that dies is replaced and its task repeated; if it dies on the same task again, that is
    an error.
    """

    def __init__(self, count: int):
        self.workers = [WorkerHandle() for _ in range(count)]  # they import torch in parallel

    def set_up(
        self,
        setup: WorkerSetup,
        images: SharedTreeBuffer,
        tell: Callable[[str], None],
        check_code: Callable[[], None] = lambda: None,
    ) -> None:
        """Give all workers a federation; may be called again for another one.

        `tell` gets a line of text whenever a worker has died. `check_code` is called whenever
        workers have imported their code; it raises if that may not be the code of this process.
        """
        self.setup, self.images, self.tell, self.check_code = setup, images, tell, check_code
        for worker in self.workers:
            worker.set_up(setup, images)
        check_code()

    def run_tasks(
        self, tasks: Sequence[WorkerTask], given: Callable[[ClientId], TaskInput]
    ) -> Iterator[tuple[int, Any]]:
        """Each task's number and result, as they finish; tasks start in their order."""
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
        with suppress(ConnectionError):  # it died while idle: `take` will notice
            worker.link.give((task, outline))

    def _replace(self, worker: WorkerHandle, client: ClientId, last: bool) -> None:
        """Report that a worker died and start another one; if this was the last try, raise."""
        code = worker.end()
        ending = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        # The server has tasks too: its model is scored.
        whose = "the server" if client == SERVER else f"client {client}"
        news = f"{whose}: its worker process died ({ending})"
        if last:
            self.workers.remove(worker)
            raise ProtofedError(
                f"{news} twice",
                hint="the machine may lack memory: use fewer workers (<workers=1>), smaller "
                "batches, or look at the system's log",
            )
        self.tell(f"{news} and was started again")
        started = self.workers[self.workers.index(worker)] = WorkerHandle()
        started.set_up(self.setup, self.images)
        self.check_code()

    def shrink(self, count: int) -> None:
        """End all workers but `count`."""
        while len(self.workers) > count:
            self.workers.pop().end()

    def end(self) -> None:
        """End all workers."""
        self.shrink(0)


CHUNK = 4 * SCAN_BATCH  # test images per task: the same batches as in one process
MEMORY_EACH = 2**29  # bytes that a worker may need for torch, a model and activations


def worker_count(participants: int, threads: int) -> int:
    """How many workers suit this machine; 0 if one process does as well.

    At most one per participant, and no more than free cores and memory allow.
    """
    count = min(usable_cores() // threads, participants, free_memory() // (2 * MEMORY_EACH))
    return count if count > 1 else 0


class WorkerEngine(LocalEngine[S, C]):
    """Lets worker processes train clients, the largest first; states stay in this process.

    Results are bit for bit those of `LocalEngine`. Workers take a second or two to start, so for
    the first `patience` seconds it trains by itself: short runs end before that, long ones do not
    notice. A `pool` that was started before is used at once, and ended with the engine.
    """

    def __init__(
        self,
        method: Method[S, C],
        sites: Mapping[ClientId, Site],
        tests: Mapping[str, ArrayDataset] | None = None,
        *,
        workers: int,
        threads: int = 1,
        patience: float = 0,
        pool: WorkerPool | None = None,
        scratch: Path | None = None,
        check_code: Callable[[], None] = lambda: None,
    ):
        super().__init__(method, sites, tests, scratch=scratch)
        clients = len(sites.keys() - {SERVER})
        self.count, self.threads = min(workers, max(clients, 1)), threads
        self.patience, self.check_code = 0 if pool else patience, check_code
        self.started = pool  # workers that have no federation yet
        self.pool: WorkerPool | None = None
        self.images = SharedTreeBuffer(shared_memory_handle())
        self.outline = self.images.write(shared_images(self.sites, self.tests))
        whole = self.images.read(self.outline)
        self.sites, self.tests = attach_images(self.sites, self.tests, whole)

    def exchange(
        self, messages: Mapping[ClientId, Message], context: RoundContext
    ) -> Mapping[ClientId, Message | Failure]:
        return self._collect(self._trained(messages, context), len(messages))

    def _trained(
        self, messages: Mapping[ClientId, Message], context: RoundContext
    ) -> Iterator[tuple[ClientId, Message | Failure, C]]:
        """Each client with its reply and its new state, as they finish."""
        waiting = sorted(messages, key=lambda c: (-len(self.sites[c].train), c))
        while waiting and not self._has_workers():
            client = waiting.pop(0)
            with self._spend_patience():
                made = self._train(client, messages[client], context)
            yield client, *made
        tasks = [TrainTask(client, context) for client in waiting]
        for number, (reply, state) in self._run_tasks(tasks, messages):
            yield waiting[number], reply, state

    def score(
        self, received: Message, who: Sequence[ClientId]
    ) -> dict[ClientId, dict[str, CorrectCounts]]:
        if not self._has_workers():
            with self._spend_patience():
                return super().score(received, who)
        tasks = [
            ScoreTask(client, name, first, first + CHUNK)
            for client in who
            for name, test in self.tests.items()
            for first in range(0, max(1, len(test)), CHUNK)
        ]
        parts = dict(self._run_tasks(tasks, dict.fromkeys(who, received)))
        by_test: dict[tuple[ClientId, str], list[CountedPart]] = {}
        for number, task in enumerate(tasks):
            by_test.setdefault((task.client, task.test), []).append(parts[number])
        return {
            client: {name: merge_counts(by_test[client, name]) for name in self.tests}
            for client in who
        }

    def _run_tasks(
        self, tasks: Sequence[WorkerTask], messages: Mapping[ClientId, Message]
    ) -> Iterator[tuple[int, Any]]:
        """Let the workers do it; an exception stops them all, as the rest would be in vain."""
        if not tasks or self.pool is None:
            return
        try:
            yield from self.pool.run_tasks(tasks, lambda c: TaskInput(messages[c], self.state(c)))
        except BaseException:
            self._stop_workers()
            raise

    def _has_workers(self) -> bool:
        """Whether workers are running; they are started once patience is used up."""
        if self.pool is None and self.count and self.patience <= 0:
            without_pixels = attach_images(self.sites, self.tests, self.outline)
            self.pool = self._start_workers()
            try:
                setup = WorkerSetup(self.method, self.threads, *without_pixels)
                self.pool.set_up(setup, self.images, self.news.append, self.check_code)
            except Exception as fault:  # for example, a method typed at a prompt cannot be pickled
                self._stop_workers()
                self.count = 0
                self.news.append(
                    f"workers cannot be used here, so one process does it all: {fault}"
                )
        return self.pool is not None

    def _start_workers(self) -> WorkerPool:
        pool, self.started = self.started or WorkerPool(self.count), None
        pool.shrink(self.count)
        return pool

    @contextmanager
    def _spend_patience(self) -> Iterator[None]:
        """Subtract the time that the block takes from the patience left."""
        began = time.monotonic()
        yield
        self.patience -= time.monotonic() - began

    def _stop_workers(self) -> None:
        if self.pool is not None:
            self.pool.end()
            self.pool = None

    def close(self) -> None:
        self._stop_workers()
        if self.started:
            self.started.end()
        os.close(self.images.handle)
