"""Progress of long work deep inside a call, for whoever wants to show it."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

Tell = Callable[[str, int, int], None]  # what, how many are done, of how many


def _silent(what: str, done: int, total: int) -> None:
    """The default: a library prints nothing unless asked."""


telling: ContextVar[Tell] = ContextVar("telling", default=_silent)
