"""What people are told: a line for each thing that was looked at, or that happened."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from protofed.errors import printable_text

MOST_NAMED = 5
NETWORK = "is the server running, the port open in its firewall, and the address right?"


class CheckLine(NamedTuple):
    """One thing that was looked at."""

    name: str
    ok: bool | None  # None: it will do, but somebody should know
    text: str
    fix: str = ""


def format_check_lines(lines: list[CheckLine]) -> str:
    """The lines for people; what is wrong comes with what to do."""
    words = {True: "ok", False: "FAIL", None: "note"}
    wide = max(len(line.name) for line in lines)
    shown = []
    for line in lines:
        shown.append(printable_text(f"{words[line.ok]:<5} {line.name:<{wide}}  {line.text}"))
        if line.fix and not line.ok:
            shown.append(printable_text(f"{'':<5} {'':<{wide}}  -> {line.fix}"))
    return "\n".join(shown)


def print_line(text: str) -> None:
    """A line at once; work goes on where nobody reads it, as after `join | head`."""
    with suppress(OSError, ValueError):
        print(printable_text(text), flush=True)


def name_some(names: list[str] | tuple[str, ...]) -> str:
    """The first of some names, and how many more there are."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more
