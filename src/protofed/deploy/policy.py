"""What may leave a site."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from protofed.core.message import Message


class Policy(BaseModel):
    """What a site allows."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    def allows(self, method_name: str, rounds: int) -> str | None:
        """Why a run is not allowed; None if it is."""
        return None

    def filtered(self, reply: Message) -> Message:
        """A reply without what must not leave the site."""
        return reply


def read_policy(path: Path | None) -> Policy:
    """The policy in a file; without one, everything is allowed."""
    return Policy()
