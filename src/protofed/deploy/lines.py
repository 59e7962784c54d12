"""What was looked at, a line each."""

from __future__ import annotations

from typing import NamedTuple

from protofed.core.errors import printable


class Line(NamedTuple):
    """One thing that was looked at."""

    name: str
    ok: bool | None  # None: it will do, but somebody should know
    text: str
    fix: str = ""


def show(lines: list[Line]) -> str:
    """The lines for people; what is wrong comes with what to do."""
    words = {True: "ok", False: "FAIL", None: "note"}
    wide = max(len(line.name) for line in lines)
    shown = []
    for line in lines:
        shown.append(printable(f"{words[line.ok]:<5} {line.name:<{wide}}  {line.text}"))
        if line.fix and not line.ok:
            shown.append(printable(f"{'':<5} {'':<{wide}}  -> {line.fix}"))
    return "\n".join(shown)
