"""The local engine: all clients in this process, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Generic, TypeVar

import torch

from protofed.core import tree
from protofed.core.disk import write_whole
from protofed.core.message import Message
from protofed.core.method import C, Method, S
from protofed.core.pack import pack, unpack
from protofed.core.site import ClientId, Dataset, Site, Step
from protofed.core.tally import Tallies, tally
from protofed.engines.arena import on_disk
from protofed.engines.base import attempt

T = TypeVar("T")
CPU = torch.device("cpu")
IN_MEMORY = 2**30  # bytes of client states, and of one exchange's replies; more goes to disk
SHARD = 2**28  # bytes of client states in one file of a checkpoint


class LocalEngine(Generic[S, C]):
    """Simulates a federation; the order in which clients run never changes a bit.

    `scratch` is the folder for states and replies that would not fit into memory. On another
    `device` than the CPU clients compute one at a time; their states stay in this machine's memory.
    """

    def __init__(
        self,
        method: Method[S, C],
        sites: Mapping[ClientId, Site],
        tests: Mapping[str, Dataset] | None = None,
        order: Callable[[Iterable[ClientId]], Iterable[ClientId]] = sorted,
        scratch: Path | None = None,
        device: torch.device = CPU,
    ):
        self.method, self.sites, self.tests, self.order = method, sites, tests or {}, order
        self.states: dict[ClientId, C] = {}  # only of clients that have trained
        self.on_disk, self.device = on_disk(scratch), device

    def state(self, client: ClientId) -> C:
        """A client's private state; before its first training, the initial one."""
        if client in self.states:
            return self.states[client]
        return self.method.init_client(self.sites[client])

    def exchange(self, inboxes: Mapping[ClientId, Message], step: Step) -> dict[ClientId, Message]:
        replies: dict[ClientId, Message] = {}
        for client in self.order(inboxes):
            made = self._train(client, inboxes[client], step)
            replies[client] = self._keep(client, *made, of=len(inboxes))
        return {client: replies[client] for client in inboxes}

    def _train(self, client: ClientId, inbox: Message, step: Step) -> tuple[Message, C]:
        """A client's reply and state; on another device there is room for one client at a time."""
        site, state = self.sites[client], self.state(client)
        if self.device == CPU:
            return attempt(self.method, site, inbox, state, step)
        there = site.on(self.device), tree.to(inbox, self.device), tree.to(state, self.device)
        reply, after = attempt(self.method, *there, step)
        return tree.to(reply, CPU), tree.to(after, CPU)

    def _keep(self, client: ClientId, reply: Message, state: C, of: int) -> Message:
        """Take a client's new state, and the reply as one `of` so many."""
        self.states[client] = self._kept(state, len(self.sites))
        return self._kept(reply, of)

    def _kept(self, thing: T, of: int) -> T:
        """A tree where it shall lie: in memory, or on disk if `of` such ones are too many."""
        return self.on_disk(thing) if tree.nbytes(thing) * of > IN_MEMORY else thing

    def score(self, inbox: Message, who: Sequence[ClientId]) -> dict[ClientId, dict[str, Tallies]]:
        return {
            client: {name: self._tally(client, inbox, test) for name, test in self.tests.items()}
            for client in who
        }

    def _tally(self, client: ClientId, inbox: Message, test: Dataset) -> Tallies:
        site, state = self.sites[client].on(self.device), tree.to(self.state(client), self.device)
        return tally(self.method, site, tree.to(inbox, self.device), state, test.to(self.device))

    def close(self) -> None:
        """Nothing to end: it all happened in this process."""

    def save(self, folder: Path) -> None:
        for number, clients in enumerate(self._shards()):
            shard = {client: self.states[client] for client in clients}
            write_whole(folder / f"clients-{number}.safetensors", pack(shard))

    def _shards(self) -> list[list[ClientId]]:
        """The clients with a state, cut so that no group's states are larger than a file may be."""
        cut, size = [], 0
        for client in sorted(self.states):
            size += tree.nbytes(self.states[client])
            cut.append((size // SHARD, client))
        return [[client for _, client in group] for _, group in groupby(cut, lambda pair: pair[0])]

    def load(self, folder: Path) -> None:
        self.states = {}
        for file in sorted(folder.glob("clients*.safetensors")):
            shard: dict[ClientId, C] = unpack(file.read_bytes(), older=True)
            for client, state in shard.items():
                self.states[client] = self._kept(state, len(self.sites))
