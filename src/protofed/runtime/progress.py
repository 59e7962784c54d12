"""Progress of long work deep inside a call, for whoever wants to show it."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

Tell = Callable[[str, int, int], None]  # what is done, how far, of how much


def _silent(what: str, done: int, total: int) -> None:
    """A library says nothing unless it is asked to."""


telling: ContextVar[Tell] = ContextVar("telling", default=_silent)
