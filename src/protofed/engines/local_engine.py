"""The local engine: all clients in this process, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Generic

import torch

from protofed.core import tree
from protofed.core.message import Failure, Message
from protofed.core.method import C, Method, S
from protofed.core.metrics import CorrectCounts, count_correct
from protofed.core.serialization import pack_tree, unpack_tree
from protofed.core.site import ArrayDataset, ClientId, RoundContext, Site
from protofed.engines.engine import reply_progress, try_training
from protofed.engines.shared_memory import SpillDict
from protofed.errors import ProtofedError
from protofed.runtime.atomic_io import atomic_write

CPU = torch.device("cpu")
IN_MEMORY = 2**27  # bytes of client states, and of one exchange's replies; more goes to disk
SHARD = 2**28  # bytes of client states in one file of a checkpoint


class LocalEngine(Generic[S, C]):
    """Simulates a federation in this process; the order in which clients run never changes a bit.

    `scratch` is the folder for states and replies that do not fit into memory. On a `device` other
    than the CPU, clients compute one at a time; their states stay in this machine's memory. Server
    and clients are in `sites`; `tests` are the test sets by domain.
    """

    def __init__(
        self,
        method: Method[S, C],
        sites: Mapping[ClientId, Site],
        tests: Mapping[str, ArrayDataset] | None = None,
        order: Callable[[Iterable[ClientId]], Iterable[ClientId]] = sorted,
        scratch: Path | None = None,
        device: torch.device = CPU,
    ):
        self.method, self.sites, self.tests, self.order = method, sites, tests or {}, order
        self.scratch, self.device = scratch, device
        self.news: list[str] = []
        self.states: MutableMapping[ClientId, C]  # of clients that have trained
        self.states = SpillDict(IN_MEMORY, scratch)

    def state(self, client: ClientId) -> C:
        """A client's private state; before its first training, the initial one."""
        if client in self.states:
            return self.states[client]
        return self.method.init_client(self.sites[client])

    def exchange(
        self, messages: Mapping[ClientId, Message], context: RoundContext
    ) -> Mapping[ClientId, Message | Failure]:
        trained = ((c, *self._train(c, messages[c], context)) for c in self.order(messages))
        return self._collect(trained, len(messages))

    def _collect(
        self, trained: Iterable[tuple[ClientId, Message | Failure, C]], asked: int
    ) -> Mapping[ClientId, Message | Failure]:
        """Store the clients' states as they arrive, and collect their replies."""
        replies: SpillDict[ClientId, Message | Failure] = SpillDict(IN_MEMORY, self.scratch)
        tell = reply_progress.get()
        tell(0, asked)
        for client, reply, state in trained:
            replies[client], self.states[client] = reply, state
            tell(len(replies), asked)
        return replies

    def _train(
        self, client: ClientId, received: Message, context: RoundContext
    ) -> tuple[Message | Failure, C]:
        """A client's reply and state; on another device there is room for one client at a time."""
        site, state = self.sites[client], self.state(client)
        if self.device == CPU:
            return try_training(self.method, site, received, state, context)
        there = (
            site.to_device(self.device),
            tree.to(received, self.device),
            tree.to(state, self.device),
        )
        reply, after = try_training(self.method, *there, context)
        return tree.to(reply, CPU), tree.to(after, CPU)

    def score(
        self, received: Message, who: Sequence[ClientId]
    ) -> dict[ClientId, dict[str, CorrectCounts]]:
        return {
            client: {
                name: self._count_correct(client, received, test)
                for name, test in self.tests.items()
            }
            for client in who
        }

    def _count_correct(
        self, client: ClientId, received: Message, test: ArrayDataset
    ) -> CorrectCounts:
        site, state = (
            self.sites[client].to_device(self.device),
            tree.to(self.state(client), self.device),
        )
        return count_correct(
            self.method, site, tree.to(received, self.device), state, test.to(self.device)
        )

    def close(self) -> None:
        """Nothing to stop: everything happens in this process."""

    def save(self, folder: Path) -> None:
        for number, clients in enumerate(self._shards()):
            shard = {client: self.states[client] for client in clients}
            atomic_write(folder / f"clients-{number}.safetensors", pack_tree(shard))

    def _shards(self) -> list[list[ClientId]]:
        """The clients with a state, in groups whose states fit into one file each."""
        numbered, size = [], 0
        for client in sorted(self.states):
            size += tree.nbytes(self.states[client])
            numbered.append((size // SHARD, client))
        return [
            [client for _, client in group] for _, group in groupby(numbered, lambda pair: pair[0])
        ]

    def load(self, folder: Path) -> None:
        self.states = SpillDict(IN_MEMORY, self.scratch)
        for file in sorted(folder.glob("clients*.safetensors")):
            shard: dict[ClientId, C] = unpack_tree(file.read_bytes())
            if not isinstance(shard, dict) or not all(isinstance(client, int) for client in shard):
                raise ProtofedError(f"{file} does not hold the states of clients")
            self.states.update(shard)
