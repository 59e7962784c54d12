"""The one error that is meant for people: what, where, what is allowed, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ProtofedError(Exception):
    """Something the user can mend; shown as its message alone, without a traceback."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint to append to a message: ``; did you mean 'rounds'?``, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""


def known_name(what: str, word: str, known: Iterable[str]) -> str:
    """Return `word` if it is among `known`, else stop with the list of what is."""
    names = list(known)
    if word in names:
        return word
    raise ProtofedError(
        f"unknown {what} '{word}'{did_you_mean(word, names)}\nknown: {', '.join(names)}"
    )
