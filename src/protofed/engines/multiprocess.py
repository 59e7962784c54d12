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
from protofed.core.metrics import Tallies, count_correct, merge_counts
from protofed.core.site import SCAN_BATCH, SERVER, ArrayDataset, ClientId, RoundContext, Site
from protofed.engines.engine import try_training
from protofed.engines.local_engine import LocalEngine
from protofed.engines.shared_memory import SharedTreeBuffer, shared_memory_handle
from protofed.errors import ProtofedError
from protofed.runtime.child_process import exit_with_pipe
from protofed.runtime.resources import free_memory, tune_malloc, usable_cores

T = TypeVar("T")
COMMAND = (  # Ctrl-C goes to the parent, who decides; from the first moment on
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
    down: int  # arena for what a client is given
    up: int  # arena for what a client gives back


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

    def do(self, given: TaskInput, desk: WorkerContext) -> Any:
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

    def do(self, given: TaskInput, desk: WorkerContext) -> list[Any]:
        site = desk.sites[self.client]
        return desk.up.write(
            [*try_training(desk.method, site, given.received, given.state, self.context)]
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

    def do(self, given: TaskInput, desk: WorkerContext) -> Tallies:
        some = desk.tests[self.test].slice(self.first, self.last)
        return count_correct(
            desk.method, desk.sites[self.client], given.received, given.state, some
        )

    def take(self, answer: Tallies, up: SharedTreeBuffer) -> Tallies:
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
    furnished = {
        client: replace(site, train=ArrayDataset(*pair), public=public)
        for (client, site), pair in zip(sites.items(), trains, strict=True)
    }
    return furnished, {name: ArrayDataset(*pair) for name, pair in zip(tests, sets, strict=True)}


class WorkerProcess:
    """The worker's side: it is given a federation, then does tasks for it until the parent leaves.

    It may be given another federation later, so one pool can serve several runs.
    """

    def __init__(self, handles: WorkerHandles):
        self.link = WorkerLink(handles.link)
        self.down, self.up = SharedTreeBuffer(handles.down), SharedTreeBuffer(handles.up)
        self.desk: WorkerContext | None = None

    def serve(self) -> None:
        """Answer each request from the socket; EOFError when the parent has closed it."""
        sys.path[:] = self.link.take()  # so that a user's own method is found here too
        while True:
            letter = self.link.connection.recv_bytes()
            self.link.give(_faults_as_answers(partial(self._answer, letter)))

    def _answer(self, letter: bytes) -> object:
        wish, given = pickle.loads(letter)  # a fault where the method is of a module not found here
        if isinstance(wish, WorkerSetup):
            torch.set_num_threads(wish.threads)  # variables of the environment could say otherwise
            self.desk = WorkerContext(
                wish, SharedTreeBuffer(recv_handle(self.link.connection)), self.up
            )
            return "ready"
        assert self.desk is not None, "briefed before any task"
        task: WorkerTask = wish
        return task.do(TaskInput(*self.down.read(given)), self.desk)


def _faults_as_answers(work: Callable[[], T]) -> T | Exception:
    """What some work gives; a fault is an answer too, with its trace as a note."""
    try:
        return work()
    except Exception as fault:
        trace = "".join(traceback.format_exception(fault))
        try:
            told: Exception = pickle.loads(pickle.dumps(fault))
        except Exception:  # not every exception can be built again from its arguments
            told = RuntimeError(f"{type(fault).__name__}: {fault}")
        told.add_note(f"in a worker process:\n{trace}")
        return told


def worker_main() -> None:
    """The entry point of a worker process, with the descriptors that its command line names."""
    handles = WorkerHandles(*map(int, sys.argv[1:]))
    tune_malloc()
    exit_with_pipe(handles.life)
    with suppress(EOFError, OSError):  # the parent has gone, perhaps in mid-message
        WorkerProcess(handles).serve()


LONGEST_END = 5  # seconds that a worker has to end by itself


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

    def set_up(self, setup: WorkerSetup, images: SharedTreeBuffer) -> None:
        """Give it a federation and wait until it is ready."""
        self.link.give((setup, None))
        send_handle(self.link.connection, images.handle, self.process.pid)
        unwrap_answer(self.link.take())

    def end(self) -> int:
        """End the process, by force if it does not end by itself; returns its exit code."""
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
        self.workers = [WorkerHandle() for _ in range(count)]  # they import torch side by side

    def set_up(
        self, setup: WorkerSetup, images: SharedTreeBuffer, tell: Callable[[str], None]
    ) -> None:
        """Give all workers a federation; may be called again for another one.

        `tell` gets a line of text whenever a worker has died.
        """
        self.setup, self.images, self.tell = setup, images, tell
        for worker in self.workers:
            worker.set_up(setup, images)

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
                f"{news} twice",
                hint="the machine may lack memory: use fewer workers (<workers=1>), smaller "
                "batches, or look at the system's log",
            )
        self.tell(f"{news} and was started again")
        fresh = self.workers[self.workers.index(worker)] = WorkerHandle()
        fresh.set_up(self.setup, self.images)

    def end(self) -> None:
        """End all workers."""
        while self.workers:
            self.workers.pop().end()


CHUNK = 4 * SCAN_BATCH  # test images that a worker scores at a time: whole batches, as always
MEMORY_EACH = 2**29  # bytes that a worker may need: torch, a model, a batch's activations


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
    notice.
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
        scratch: Path | None = None,
    ):
        super().__init__(method, sites, tests, scratch=scratch)
        clients = len(sites.keys() - {SERVER})
        self.count, self.threads = min(workers, max(clients, 1)), threads
        self.patience = patience
        self.crew: WorkerPool | None = None
        self.images = SharedTreeBuffer(shared_memory_handle())
        self.bare = self.images.write(shared_images(self.sites, self.tests))
        whole = self.images.read(self.bare)
        self.sites, self.tests = attach_images(self.sites, self.tests, whole)

    def exchange(
        self, messages: Mapping[ClientId, Message], context: RoundContext
    ) -> Mapping[ClientId, Message | Failure]:
        return self._collect(self._trained(messages, context))

    def _trained(
        self, messages: Mapping[ClientId, Message], context: RoundContext
    ) -> Iterator[tuple[ClientId, Message | Failure, C]]:
        """Each client with its reply and its new state, as they finish."""
        waiting = sorted(messages, key=lambda c: (-len(self.sites[c].train), c))
        while waiting and not self._has_crew():
            client = waiting.pop(0)
            with self._patiently():
                made = self._train(client, messages[client], context)
            yield client, *made
        tasks = [TrainTask(client, context) for client in waiting]
        for number, (reply, state) in self._play(tasks, messages):
            yield waiting[number], reply, state

    def score(
        self, received: Message, who: Sequence[ClientId]
    ) -> dict[ClientId, dict[str, Tallies]]:
        if not self._has_crew():
            with self._patiently():
                return super().score(received, who)
        tasks = [
            ScoreTask(client, name, first, first + CHUNK)
            for client in who
            for name, test in self.tests.items()
            for first in range(0, max(1, len(test)), CHUNK)
        ]
        parts = dict(self._play(tasks, dict.fromkeys(who, received)))
        cut: dict[tuple[ClientId, str], list[Tallies]] = {}
        for number, task in enumerate(tasks):
            cut.setdefault((task.client, task.test), []).append(parts[number])
        return {
            client: {name: merge_counts(cut[client, name]) for name in self.tests} for client in who
        }

    def _play(
        self, tasks: Sequence[WorkerTask], messages: Mapping[ClientId, Message]
    ) -> Iterator[tuple[int, Any]]:
        """Let the crew do it; a fault ends the crew, as others are still at work for nothing."""
        if not tasks or self.crew is None:
            return
        try:
            yield from self.crew.run_tasks(tasks, lambda c: TaskInput(messages[c], self.state(c)))
        except BaseException:
            self._dismiss()
            raise

    def _has_crew(self) -> bool:
        """Whether workers are there; they are started once patience is at its end."""
        if self.crew is None and self.count and self.patience <= 0:
            without_pixels = attach_images(self.sites, self.tests, self.bare)
            self.crew = self._hire()
            try:
                setup = WorkerSetup(self.method, self.threads, *without_pixels)
                self.crew.set_up(setup, self.images, self.news.append)
            except Exception as fault:  # a method typed in at a prompt cannot be sent, for one
                self._dismiss()
                self.count = 0
                self.news.append(
                    f"workers cannot be used here, so one process does it all: {fault}"
                )
        return self.crew is not None

    def _hire(self) -> WorkerPool:
        return WorkerPool(self.count)

    @contextmanager
    def _patiently(self) -> Iterator[None]:
        began = time.monotonic()
        yield
        self.patience -= time.monotonic() - began

    def _dismiss(self) -> None:
        if self.crew is not None:
            self.crew.end()
            self.crew = None

    def close(self) -> None:
        self._dismiss()
        os.close(self.images.handle)
