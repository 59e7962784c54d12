"""Counting right answers: the one way in which anything is scored."""

from __future__ import annotations

from typing import NamedTuple

from protofed.core.message import Message
from protofed.core.method import C, Method, S
from protofed.core.site import Dataset, Site


class Tally(NamedTuple):
    """Right answers out of all answers on one test set."""

    correct: int
    total: int

    @property
    def accuracy(self) -> float | None:
        """In per cent; None where there was nothing to answer."""
        return 100 * self.correct / self.total if self.total else None


def tally(method: Method[S, C], site: Site, inbox: Message, state: C, test: Dataset) -> Tally:
    """Score a published message, with a client's state if the method is personal."""
    correct = 0
    for x, y, _ in site.scan(test):
        correct += int((method.predict(site, inbox, state, x).argmax(1) == y).sum())
    return Tally(correct, len(test))
