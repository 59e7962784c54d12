"""A worker: a process that trains and scores clients for the one that started it.

It is started by a command of its own (`COMMAND`) rather than by multiprocessing, which would run
the caller's script a second time.
"""

from __future__ import annotations

import pickle
import sys
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from typing import Any, NamedTuple, Protocol, TypeVar

import torch

from protofed.core import tree
from protofed.core.allocator import tune_malloc
from protofed.core.lifeline import exit_with_pipe
from protofed.core.message import Message
from protofed.core.method import AnyMethod
from protofed.core.site import ArrayDataset, ClientId, RoundContext, Site
from protofed.core.tally import Tallies, count_correct
from protofed.engines.arena import SharedTreeBuffer
from protofed.engines.base import try_training

T = TypeVar("T")
COMMAND = (  # Ctrl-C goes to the parent, who decides; from the first moment on
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "from protofed.engines.worker import main; main()"
)


class WorkerLink:
    """One end of a socket between two processes of one user, so pickled objects may pass.

    Plain pickle: the kind that torch gives to multiprocessing would move tensors elsewhere.
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
    """What a worker inherits, by number: a socket, a pipe that ends with the parent, two arenas."""

    link: int
    life: int
    down: int  # arena for what a client is given
    up: int  # arena for what a client gives back


@dataclass(frozen=True)
class WorkerSetup:
    """A federation for a worker; its images are outlines, the pixels come in an arena."""

    method: AnyMethod
    threads: int
    sites: Mapping[ClientId, Site]
    tests: Mapping[str, ArrayDataset]


class TaskInput(NamedTuple):
    """A message and a client's state: what a task starts from, in the arena `down`."""

    inbox: Message
    state: Any


class WorkerTask(Protocol):
    """Something that a worker does for a client."""

    @property
    def client(self) -> ClientId:
        """Whose work it is."""

    def do(self, given: TaskInput, desk: WorkerContext) -> Any:
        """Work, at the worker; the answer that goes over the socket."""

    def take(self, answer: Any, up: SharedTreeBuffer) -> Any:
        """What came of it, at the parent."""


@dataclass(frozen=True)
class TrainTask:
    """Let a client train; gives its reply and its new state."""

    client: ClientId
    step: RoundContext

    def do(self, given: TaskInput, desk: WorkerContext) -> list[Any]:
        site = desk.sites[self.client]
        return desk.up.write(
            [*try_training(desk.method, site, given.inbox, given.state, self.step)]
        )

    def take(self, answer: list[Any], up: SharedTreeBuffer) -> list[Any]:
        return tree.clone(up.read(answer))


@dataclass(frozen=True)
class ScoreTask:
    """Count a client's right answers on some rows of a test set."""

    client: ClientId
    test: str
    first: int
    last: int

    def do(self, given: TaskInput, desk: WorkerContext) -> Tallies:
        some = desk.tests[self.test].slice(self.first, self.last)
        return count_correct(desk.method, desk.sites[self.client], given.inbox, given.state, some)

    def take(self, answer: Tallies, up: SharedTreeBuffer) -> Tallies:
        return answer


class WorkerContext:
    """What a worker has before it: a federation, and the arena for what clients give back."""

    def __init__(self, setup: WorkerSetup, images: SharedTreeBuffer, up: SharedTreeBuffer):
        self.method, self.up = setup.method, up
        pixels = images.read(shared_images(setup.sites, setup.tests))
        self.sites, self.tests = attach_images(setup.sites, setup.tests, pixels)


def shared_images(sites: Mapping[ClientId, Site], tests: Mapping[str, ArrayDataset]) -> list[Any]:
    """Every tensor that sites and test sets hold, as a tree."""
    trains = [[site.train.images, site.train.labels] for site in sites.values()]
    sets = [[test.images, test.labels] for test in tests.values()]
    return [trains, sets, next(iter(sites.values())).public]  # public: the same at every site


def attach_images(
    sites: Mapping[ClientId, Site], tests: Mapping[str, ArrayDataset], images: list[Any]
) -> tuple[dict[ClientId, Site], dict[str, ArrayDataset]]:
    """Sites and test sets with the tensors of a tree that `images_of` made."""
    trains, sets, public = images
    furnished = {
        client: replace(site, train=ArrayDataset(*pair), public=public)
        for (client, site), pair in zip(sites.items(), trains, strict=True)
    }
    return furnished, {name: ArrayDataset(*pair) for name, pair in zip(tests, sets, strict=True)}


class WorkerProcess:
    """A worker's place: it is briefed on a federation, then does tasks for it, until it is not."""

    def __init__(self, handles: WorkerHandles):
        self.link = WorkerLink(handles.link)
        self.down, self.up = SharedTreeBuffer(handles.down), SharedTreeBuffer(handles.up)
        self.desk: WorkerContext | None = None

    def serve(self) -> None:
        """Answer whatever comes over the socket; EOFError when the parent has closed it."""
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
    """Work with the handles that the command line names."""
    handles = WorkerHandles(*map(int, sys.argv[1:]))
    tune_malloc()
    exit_with_pipe(handles.life)
    with suppress(EOFError, OSError):  # the parent has gone, perhaps in mid-message
        WorkerProcess(handles).serve()
