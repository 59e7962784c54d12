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
from protofed.core.allocator import keep_memory
from protofed.core.lifeline import end_with_the_pipe
from protofed.core.message import Message
from protofed.core.method import AnyMethod
from protofed.core.site import ClientId, Dataset, Site, Step
from protofed.core.tally import Tallies, tally
from protofed.engines.arena import Arena
from protofed.engines.base import attempt

T = TypeVar("T")
COMMAND = (  # Ctrl-C goes to the parent, who decides; from the first moment on
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); "
    "from protofed.engines.worker import main; main()"
)


class Link:
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


class Handles(NamedTuple):
    """What a worker inherits, by number: a socket, a pipe that ends with the parent, two arenas."""

    link: int
    life: int
    down: int  # arena for what a client is given
    up: int  # arena for what a client gives back


@dataclass(frozen=True)
class Setup:
    """A federation for a worker; its images are outlines, the pixels come in an arena."""

    method: AnyMethod
    threads: int
    sites: Mapping[ClientId, Site]
    tests: Mapping[str, Dataset]


class Given(NamedTuple):
    """A message and a client's state: what a task starts from, in the arena `down`."""

    inbox: Message
    state: Any


class Task(Protocol):
    """Something that a worker does for a client."""

    @property
    def client(self) -> ClientId:
        """Whose work it is."""

    def do(self, given: Given, desk: Desk) -> Any:
        """Work, at the worker; the answer that goes over the socket."""

    def take(self, answer: Any, up: Arena) -> Any:
        """What came of it, at the parent."""


@dataclass(frozen=True)
class Train:
    """Let a client train; gives its reply and its new state."""

    client: ClientId
    step: Step

    def do(self, given: Given, desk: Desk) -> list[Any]:
        site = desk.sites[self.client]
        return desk.up.write([*attempt(desk.method, site, given.inbox, given.state, self.step)])

    def take(self, answer: list[Any], up: Arena) -> list[Any]:
        return tree.clone(up.read(answer))


@dataclass(frozen=True)
class Score:
    """Count a client's right answers on some rows of a test set."""

    client: ClientId
    test: str
    first: int
    last: int

    def do(self, given: Given, desk: Desk) -> Tallies:
        some = desk.tests[self.test].slice(self.first, self.last)
        return tally(desk.method, desk.sites[self.client], given.inbox, given.state, some)

    def take(self, answer: Tallies, up: Arena) -> Tallies:
        return answer


class Desk:
    """What a worker has before it: a federation, and the arena for what clients give back."""

    def __init__(self, setup: Setup, images: Arena, up: Arena):
        self.method, self.up = setup.method, up
        pixels = images.read(images_of(setup.sites, setup.tests))
        self.sites, self.tests = with_images(setup.sites, setup.tests, pixels)


def images_of(sites: Mapping[ClientId, Site], tests: Mapping[str, Dataset]) -> list[Any]:
    """Every tensor that sites and test sets hold, as a tree."""
    trains = [[site.train.images, site.train.labels] for site in sites.values()]
    sets = [[test.images, test.labels] for test in tests.values()]
    return [trains, sets, next(iter(sites.values())).public]  # public: the same at every site


def with_images(
    sites: Mapping[ClientId, Site], tests: Mapping[str, Dataset], images: list[Any]
) -> tuple[dict[ClientId, Site], dict[str, Dataset]]:
    """Sites and test sets with the tensors of a tree that `images_of` made."""
    trains, sets, public = images
    furnished = {
        client: replace(site, train=Dataset(*pair), public=public)
        for (client, site), pair in zip(sites.items(), trains, strict=True)
    }
    return furnished, {name: Dataset(*pair) for name, pair in zip(tests, sets, strict=True)}


class Bench:
    """A worker's place: it is briefed on a federation, then does tasks for it, until it is not."""

    def __init__(self, handles: Handles):
        self.link = Link(handles.link)
        self.down, self.up = Arena(handles.down), Arena(handles.up)
        self.desk: Desk | None = None

    def serve(self) -> None:
        """Answer whatever comes over the socket; EOFError when the parent has closed it."""
        sys.path[:] = self.link.take()  # so that a user's own method is found here too
        while True:
            letter = self.link.connection.recv_bytes()
            self.link.give(_faults_as_answers(partial(self._answer, letter)))

    def _answer(self, letter: bytes) -> object:
        wish, given = pickle.loads(letter)  # a fault where the method is of a module not found here
        if isinstance(wish, Setup):
            torch.set_num_threads(wish.threads)  # variables of the environment could say otherwise
            self.desk = Desk(wish, Arena(recv_handle(self.link.connection)), self.up)
            return "ready"
        assert self.desk is not None, "briefed before any task"
        task: Task = wish
        return task.do(Given(*self.down.read(given)), self.desk)


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


def main() -> None:
    """Work with the handles that the command line names."""
    handles = Handles(*map(int, sys.argv[1:]))
    keep_memory()
    end_with_the_pipe(handles.life)
    with suppress(EOFError, OSError):  # the parent has gone, perhaps in mid-message
        Bench(handles).serve()
