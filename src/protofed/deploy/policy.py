"""What may leave a site."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from protofed.core.message import Message
from protofed.core.method import AnyMethod
from protofed.experiment.parse import read_spec


class Policy(BaseModel):
    """What a site allows."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    min_examples: int = 1  # behind a prototype
    send_counts: bool = True  # how many are behind each

    def allows(self, method: str | AnyMethod, rounds: int) -> str | None:
        """Why a run is not allowed; None if it is."""
        return None

    def filtered(self, reply: Message) -> Message:
        """A reply without what must not leave the site."""
        return reply


def read_policy(path: Path | None) -> Policy:
    """The policy in a file; without one, everything is allowed."""
    return Policy.model_validate(read_spec(path)) if path else Policy()
