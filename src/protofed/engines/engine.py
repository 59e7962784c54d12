"""What the runner asks of an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from protofed.core.message import Message
from protofed.core.method import C, Method, S
from protofed.core.metrics import Tallies
from protofed.core.site import ClientId, RoundContext, Site
from protofed.errors import DivergedError
from protofed.runtime.resources import explain_oom


def try_training(
    method: Method[S, C], site: Site, inbox: Message, state: C, step: RoundContext
) -> tuple[Message, C]:
    """Let a client train; where its training diverges, it says so and keeps its old state."""
    try:
        with explain_oom(f"client {site.id}, in round {step.round + 1},"):
            return method.train(site, inbox, state, step)
    except DivergedError as fault:
        return Message(fault=str(fault)), state


class Engine(Protocol):
    """Carries messages to the clients and back, and holds what the clients keep private."""

    def exchange(
        self, inboxes: Mapping[ClientId, Message], step: RoundContext
    ) -> Mapping[ClientId, Message]:
        """Let each addressed client train; the replies, in any order and without lost ones."""

    def score(self, inbox: Message, who: Sequence[ClientId]) -> dict[ClientId, dict[str, Tallies]]:
        """The models of some clients, or of the server, on every test set that the engine can
        bring them to; changes no state.
        """

    def save(self, folder: Path) -> None:
        """Write the private states of all clients into a folder."""

    def load(self, folder: Path) -> None:
        """Take the private states back from a folder that `save` wrote."""

    def close(self) -> None:
        """Leave nothing running."""
