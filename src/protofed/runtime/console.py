"""Lines for people: progress of long work, the result of a check, something that happened."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import NamedTuple

from protofed.errors import printable_text, python_option, render_options

Tell = Callable[[str, int, int], None]  # what, how many are done, of how many


def _silent(what: str, done: int, total: int) -> None:
    """The default: a library prints nothing unless asked."""


telling: ContextVar[Tell] = ContextVar("telling", default=_silent)


MOST_NAMED = 5
NETWORK = "is the server running, the port open in its firewall, and the address right?"


class CheckLine(NamedTuple):
    """The result of one check: what was checked, how it went, and how to fix it.

    `ok` is None for what works but should be known. `fix` may name options as the hint of a
    `ProtofedError` does: ``choose another <home>``.
    """

    name: str
    ok: bool | None
    text: str
    fix: str = ""


def format_check_lines(
    lines: list[CheckLine], option: Callable[[str, str], str] = python_option
) -> str:
    """The lines for people, in columns; what is wrong comes with what to do.

    `option` writes an option of a fix with its value, as for `ProtofedError.render`.
    """
    words = {True: "ok", False: "FAIL", None: "note"}
    wide = max(len(line.name) for line in lines)
    shown = []
    for line in lines:
        shown.append(printable_text(f"{words[line.ok]:<5} {line.name:<{wide}}  {line.text}"))
        if line.fix and not line.ok:
            fix = render_options(line.fix, option)
            shown.append(printable_text(f"{'':<5} {'':<{wide}}  -> {fix}"))
    return "\n".join(shown)


def print_line(text: str) -> None:
    """Print a line at once; without a reader, as after ``join | head``, work continues."""
    with suppress(OSError, ValueError):
        print(printable_text(text), flush=True)


def name_some(names: list[str] | tuple[str, ...]) -> str:
    """The first of some names, and how many more there are: ``a, b, c, d, e and 2 more``."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def format_clock(seconds: float) -> str:
    """A duration for people: ``2:03`` for two minutes and three seconds, ``1:02:03`` with hours."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def format_percent(score: float | None) -> str:
    """Two decimals, or a dash where there is no score."""
    return "-" if score is None else f"{score:.2f}"
