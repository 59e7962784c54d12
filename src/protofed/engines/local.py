"""The local engine: all clients in this process, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Generic

from protofed.core.disk import write_whole
from protofed.core.message import Message
from protofed.core.method import C, Method, S
from protofed.core.pack import pack, unpack
from protofed.core.site import ClientId, Dataset, Site, Step
from protofed.core.tally import Tallies, tally
from protofed.engines.base import attempt

STATES = "clients.safetensors"


class LocalEngine(Generic[S, C]):
    """Simulates a federation; the order in which clients run never changes a bit."""

    def __init__(
        self,
        method: Method[S, C],
        sites: Mapping[ClientId, Site],
        order: Callable[[Iterable[ClientId]], Iterable[ClientId]] = sorted,
    ):
        self.method, self.sites, self.order = method, sites, order
        self.states: dict[ClientId, C] = {}  # only of clients that have trained

    def state(self, client: ClientId) -> C:
        """A client's private state; before its first training, the initial one."""
        if client in self.states:
            return self.states[client]
        return self.method.init_client(self.sites[client])

    def exchange(self, inboxes: Mapping[ClientId, Message], step: Step) -> dict[ClientId, Message]:
        replies: dict[ClientId, Message] = {}
        for client in self.order(inboxes):
            replies[client], self.states[client] = attempt(
                self.method, self.sites[client], inboxes[client], self.state(client), step
            )
        return {client: replies[client] for client in inboxes}

    def score(
        self, inbox: Message, tests: Mapping[str, Dataset]
    ) -> dict[ClientId, dict[str, Tallies]]:
        return {
            client: {
                name: tally(self.method, site, inbox, self.state(client), test)
                for name, test in tests.items()
            }
            for client, site in self.sites.items()
        }

    def save(self, folder: Path) -> None:
        write_whole(folder / STATES, pack(dict(sorted(self.states.items()))))

    def load(self, folder: Path) -> None:
        self.states = unpack((folder / STATES).read_bytes(), older=True)
