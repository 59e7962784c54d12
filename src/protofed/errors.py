"""The errors that are meant for people, and helpers that write their texts."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

_OPTION = re.compile(r"<([a-z][\w.]*)(?:=([^<>]*))?>")


class ProtofedError(Exception):
    """An error that the user can fix; the command line shows it without a traceback.

    The text says what is wrong. The hint says what to do about it and names options as ``<rounds>``
    or ``<data.side=32>``, so each caller can render them in its own way::

        ProtofedError("runs/a is not an empty folder", hint="choose another <out>")

    Python prints "choose another `out`"; the command line prints the flag of that option instead.
    """

    def __init__(self, text: object = "", hint: str = ""):
        super().__init__(*([text, hint] if hint else [text]))  # as args, so it can be pickled

    @property
    def hint(self) -> str:
        """What to do about the error; names options as ``<name>`` or ``<name=value>``."""
        return str(self.args[1]) if len(self.args) > 1 else ""

    def render(self, option: Callable[[str, str], str]) -> str:
        """The text and, on a second line, the hint.

        `option(name, value)` writes one option of the hint; `value` is empty if the hint gives
        none.
        """
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
    """Another process holds the lock of a folder or file.

    Nothing is broken: a caller that can wait may try again later.
    """


class DivergedError(ProtofedError):
    """A loss, a weight or a buffer became NaN or infinite during training.

    `step` counts from 1 within one call of `fit_model`, and `what` names the loss or the tensor.
    The engine adds which client trained, and in which round.
    """

    def __init__(self, step: int, what: str):
        super().__init__(f"{what} turned NaN or infinite in step {step} of its training")
        self.step, self.what = step, what

    def __reduce__(self) -> tuple[type[DivergedError], tuple[int, str]]:
        return type(self), (self.step, self.what)  # so it can be pickled


def printable_text(text: str, most: int | None = None) -> str:
    """Untrusted text on one line, cut after `most` characters.

    Characters that could control a terminal (escape codes, line breaks) are written as escapes, so
    the result is safe to print and to log.
    """
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:most])
    return shown if most is None or len(text) <= most else f"{shown}..."


def count_noun(count: int, word: str) -> str:
    """A count with its noun: ``1 file``, ``2 files``.

    The plural is the noun with an s, so give nouns that form it this way.
    """
    return f"{count} {word}{'s' * (count != 1)}"


def join_words(words: Sequence[str]) -> str:
    """Join words as in a sentence: ``a``, ``a and b``, ``a, b and c``.

    No words give an empty text.
    """
    return " and ".join([", ".join(words[:-1])] * (len(words) > 1) + list(words[-1:]))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A suffix for an error message: ``; did you mean 'rounds'?``.

    It is "" if no known name is close to `word`.
    """
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{close[0]}'?" if close else ""


def require_known_name(what: str, word: str, known: Iterable[str]) -> str:
    """Return `word` if it is one of `known`; otherwise raise a `ProtofedError` that lists them.

    `what` names the kind of thing in the message: ``unknown method 'fedagv'; did you mean ...``.
    """
    names = list(known)
    if word in names:
        return word
    raise ProtofedError(
        f"unknown {what} '{word}'{did_you_mean(word, names)}\nknown: {', '.join(names)}"
    )


def display_path(name: str | Path) -> str:
    """An untrusted file name as one printable line.

    Bytes that are not UTF-8 and characters that could control a terminal are escaped.
    """
    return printable_text(os.fsencode(name).decode("utf-8", "backslashreplace"))
