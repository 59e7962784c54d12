"""The one error that is meant for people: what, where, what is allowed, what to do."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

_OPTION = re.compile(r"<([a-z][\w.]*)(?:=([^<>]*))?>")


class ProtofedError(Exception):
    """Something that the user can fix; the command line shows it without a traceback.

    The hint says what to do about it. It names an option as ``<rounds>`` or ``<data.side=32>``,
    so that every caller reads it in its own language::

        ProtofedError("runs/a is not an empty folder", hint="choose another <out>")

    prints "choose another `out`" in Python and "choose another --out" on the command line.
    """

    def __init__(self, text: object = "", hint: str = ""):
        super().__init__(*([text, hint] if hint else [text]))  # all, to cross to other processes

    @property
    def hint(self) -> str:
        """What to do about it, with options as ``<name>`` or ``<name=value>``; may be empty."""
        return str(self.args[1]) if len(self.args) > 1 else ""

    def render(self, option: Callable[[str, str], str]) -> str:
        """The message and its hint; `option` writes an option with its value, if it has one."""
        hint = render_options(self.hint, option)
        return f"{self.args[0]}\n{hint}" if hint else f"{self.args[0]}"

    def __str__(self) -> str:
        return self.render(python_option)


def render_options(hint: str, option: Callable[[str, str], str]) -> str:
    """A hint with each of its options, ``<name>`` or ``<name=value>``, as `option` writes them."""
    return _OPTION.sub(lambda found: option(found[1], found[2] or ""), hint)


def python_option(name: str, value: str = "") -> str:
    """An option of a hint as a keyword of a function: ```out```, ```training.epochs=1```."""
    return f"`{name}={value}`" if value else f"`{name}`"


class BusyError(ProtofedError):
    """Another process is at it; who can wait may try again."""


class DivergedError(ProtofedError):
    """Training came to NaN or infinity; who trained, and in which round, only the engine knows."""

    def __init__(self, step: int, what: str):
        super().__init__(f"{what} turned NaN or infinite in step {step} of its training")
        self.step, self.what = step, what

    def __reduce__(self) -> tuple[type[DivergedError], tuple[int, str]]:
        return type(self), (self.step, self.what)  # so that it can cross to another process


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
