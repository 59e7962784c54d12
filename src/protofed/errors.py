"""The one error that is meant for people: what, where, what is allowed, what to do."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable
from pathlib import Path


class ProtofedError(Exception):
    """Something the user can mend; shown as its message alone, without a traceback."""


class BusyError(ProtofedError):
    """Another process is at it; who can wait may try again."""


class DivergedError(ProtofedError):
    """Training came to NaN or infinity; who trained, and in which round, only the engine knows."""

    def __init__(self, step: int, what: str):
        super().__init__(step, what)  # both, so that it can cross to another process
        self.step, self.what = step, what

    def __str__(self) -> str:
        return f"{self.what} turned NaN or infinite in step {self.step} of its training"


def printable_text(text: str, most: int | None = None) -> str:
    """A stranger's text on one line, cut at `most`; what could steer a terminal is escaped."""
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:most])
    return shown if most is None or len(text) <= most else f"{shown}..."


def count_noun(count: int, word: str) -> str:
    """A number of things: ``1 file``, ``2 files``."""
    return f"{count} {word}{'s' * (count != 1)}"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint to append to a message: ``; did you mean 'rounds'?``, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""


def require_known_name(what: str, word: str, known: Iterable[str]) -> str:
    """Return `word` if it is among `known`, else stop with the list of what is."""
    names = list(known)
    if word in names:
        return word
    raise ProtofedError(
        f"unknown {what} '{word}'{did_you_mean(word, names)}\nknown: {', '.join(names)}"
    )


def display_path(name: str | Path) -> str:
    """A stranger's file name as one printable line."""
    return printable_text(os.fsencode(name).decode("utf-8", "backslashreplace"))
