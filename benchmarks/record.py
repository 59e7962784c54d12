"""What measurements share: parts chosen by name, results kept part by part, tables within pages."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Collection
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

Results = dict[str, Any]


class Span(NamedTuple):
    """The part of a page that is made from results."""

    file: Path
    begin: str
    end: str

    def within(self, text: str, body: str) -> str:
        """A page's text with this part made anew."""
        before, _, rest = text.partition(self.begin)
        _, _, after = rest.partition(self.end)
        return f"{before}{self.begin}\n{body.rstrip()}\n{self.end}{after}"

    def write(self, body: str) -> None:
        """Bring the page in line."""
        text = self.file.read_text(encoding="utf-8")
        self.file.write_text(self.within(text, body), encoding="utf-8")


def some_of(parts: Collection[str]) -> Callable[[str], list[str]]:
    """A type for argparse: names with commas, of which each must be known."""

    def names(text: str) -> list[str]:
        chosen = text.split(",")
        if wrong := [name for name in chosen if name not in parts]:
            known = ", ".join(parts)
            raise argparse.ArgumentTypeError(f"no part {', '.join(wrong)}; there are {known}")
        return chosen

    return names


def now() -> str:
    """The time, to the minute."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def kept(file: Path, conditions: Results) -> Results:
    """The parts that a call under equal conditions has kept in a file."""
    before = json.loads(file.read_text()) if file.exists() else {}
    same = all(before.get(key) == value for key, value in conditions.items())
    return dict(before["parts"]) if before and same else {}


def keep(file: Path, results: Results, parts: Results, order: Collection[str]) -> None:
    """Write what there is so far, so that a long call may be ended."""
    results["made"] = now()
    results["parts"] = {part: parts[part] for part in order if part in parts}
    file.write_text(json.dumps(results, indent=1) + "\n")
