"""The local engine with worker processes: the same bits as in one process, sooner."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from protofed.core.machine import free_memory, usable_cores
from protofed.core.message import Message
from protofed.core.method import C, Method, S
from protofed.core.site import SCAN_BATCH, SERVER, ArrayDataset, ClientId, RoundContext, Site
from protofed.core.tally import Tallies, merge_counts
from protofed.engines.arena import SharedTreeBuffer, shared_memory_handle
from protofed.engines.crew import WorkerPool
from protofed.engines.local import LocalEngine
from protofed.engines.worker import (
    ScoreTask,
    TaskInput,
    TrainTask,
    WorkerSetup,
    WorkerTask,
    attach_images,
    shared_images,
)

CHUNK = 4 * SCAN_BATCH  # test images that a worker scores at a time: whole batches, as always
MEMORY_EACH = 2**29  # bytes that a worker may need: torch, a model, a batch's activations


def worker_count(participants: int, threads: int) -> int:
    """How many workers this machine can feed; none where one process does as well."""
    count = min(usable_cores() // threads, participants, free_memory() // (2 * MEMORY_EACH))
    return count if count > 1 else 0


class WorkerEngine(LocalEngine[S, C]):
    """Hands clients to processes, the longest first; their states stay in this process.

    Workers take a second or two to start, so it trains by itself for the first `patience`
    seconds: short runs end before that, and long ones do not notice.
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
        tell: Callable[[str], None] = lambda news: None,
    ):
        super().__init__(method, sites, tests, scratch=scratch)
        clients = len(sites.keys() - {SERVER})
        self.count, self.threads = min(workers, max(clients, 1)), threads
        self.patience, self.tell = patience, tell
        self.crew: WorkerPool | None = None
        self.images = SharedTreeBuffer(shared_memory_handle())
        self.bare = self.images.write(shared_images(self.sites, self.tests))
        whole = self.images.read(self.bare)
        self.sites, self.tests = attach_images(self.sites, self.tests, whole)

    def exchange(
        self, inboxes: Mapping[ClientId, Message], step: RoundContext
    ) -> Mapping[ClientId, Message]:
        return self._piled(self._trained(inboxes, step))

    def _trained(
        self, inboxes: Mapping[ClientId, Message], step: RoundContext
    ) -> Iterator[tuple[ClientId, Message, C]]:
        """Each client with its reply and its new state, as they finish."""
        waiting = sorted(inboxes, key=lambda c: (-len(self.sites[c].train), c))
        while waiting and not self._has_crew():
            client = waiting.pop(0)
            with self._patiently():
                made = self._train(client, inboxes[client], step)
            yield client, *made
        tasks = [TrainTask(client, step) for client in waiting]
        for number, (reply, state) in self._play(tasks, inboxes):
            yield waiting[number], reply, state

    def score(self, inbox: Message, who: Sequence[ClientId]) -> dict[ClientId, dict[str, Tallies]]:
        if not self._has_crew():
            with self._patiently():
                return super().score(inbox, who)
        tasks = [
            ScoreTask(client, name, first, first + CHUNK)
            for client in who
            for name, test in self.tests.items()
            for first in range(0, max(1, len(test)), CHUNK)
        ]
        parts = dict(self._play(tasks, dict.fromkeys(who, inbox)))
        cut: dict[tuple[ClientId, str], list[Tallies]] = {}
        for number, task in enumerate(tasks):
            cut.setdefault((task.client, task.test), []).append(parts[number])
        return {
            client: {name: merge_counts(cut[client, name]) for name in self.tests} for client in who
        }

    def _play(
        self, tasks: Sequence[WorkerTask], inboxes: Mapping[ClientId, Message]
    ) -> Iterator[tuple[int, Any]]:
        """Let the crew do it; a fault ends the crew, as others are still at work for nothing."""
        if not tasks or self.crew is None:
            return
        try:
            yield from self.crew.run_tasks(tasks, lambda c: TaskInput(inboxes[c], self.state(c)))
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
                self.crew.set_up(setup, self.images, self.tell)
            except Exception as fault:  # a method typed in at a prompt cannot be sent, for one
                self._dismiss()
                self.count = 0
                self.tell(f"workers cannot be used here, so one process does it all: {fault}")
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
