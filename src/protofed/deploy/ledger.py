"""A site's own record of what it has answered, by which it judges what it is asked next."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protofed.core import disk
from protofed.core.errors import ProtofedError
from protofed.core.jsonfile import parse_json

ANSWERED, REFUSED = "answered.jsonl", "refused.jsonl"
MOST_REFUSED = 1 << 20  # bytes of refusals; older ones then go to a second file, and later away
DAY = 86400.0  # seconds


@dataclass
class RunRecord:
    """What a site has answered in one run: by round and leg, the messages that it answered to."""

    spec: str  # SHA-256 of what the run is about
    begun: float  # seconds since 1970
    trained: dict[tuple[int, int], set[str]] = field(default_factory=dict)
    scored: dict[int, set[str]] = field(default_factory=dict)

    def count_scores(self) -> int:
        """How many different scores have left this site."""
        return sum(len(messages) for messages in self.scored.values())


class Ledger:
    """All answers of a site, in a file that only grows; read again when the site starts anew."""

    def __init__(self, home: Path):
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.answered, self.refused = home / ANSWERED, home / REFUSED
        self.runs: dict[str, RunRecord] = {}
        for line in self._lines():
            self._take(line)

    def _lines(self) -> Iterator[dict[str, Any]]:
        raw = self.answered.read_bytes().splitlines() if self.answered.exists() else []
        for number, text in enumerate(raw, 1):
            try:
                yield _checked(parse_json(text, f"line {number}"))
            except ProtofedError as fault:
                if number < len(raw):  # a crash can only cut the last one short
                    raise ProtofedError(
                        f"{self.answered}: line {number} is damaged, so that this site does not "
                        f"know what it has answered\nrestore the file, or move it away to begin "
                        f"with a new record"
                    ) from fault

    def _take(self, line: dict[str, Any]) -> None:
        run = self.runs.setdefault(line["run"], RunRecord(line["spec"], line["time"]))
        if line["what"] == "train":
            run.trained.setdefault((line["round"], line["leg"]), set()).add(line["message"])
        elif line["what"] == "score":
            run.scored.setdefault(line["round"], set()).add(line["message"])

    def begun_today(self) -> int:
        """How many runs have begun in the last 24 hours."""
        return sum(time.time() - run.begun < DAY for run in self.runs.values())

    def write(
        self, run: str, spec: str, what: str, number: int = 0, leg: int = 0, message: str = ""
    ) -> None:
        """Put an answer on record, before it leaves this site."""
        line = {"time": round(time.time(), 3), "run": run, "spec": spec, "what": what}
        line |= {"round": number, "leg": leg, "message": message}
        disk.append(self.answered, (json.dumps(line) + "\n").encode())
        self._take(line)

    def write_refusal(self, run: str, what: str, reason: str) -> None:
        """Put on record what was asked and not answered; a flood of such does not fill the disk."""
        if self.refused.exists() and self.refused.stat().st_size > MOST_REFUSED:
            disk.replace(self.refused, self.refused.with_suffix(".old.jsonl"))
        line = {"time": round(time.time(), 3), "run": run[:64], "what": what[:20], "why": reason}
        with self.refused.open("a", encoding="utf-8") as stream:
            stream.write(json.dumps(line) + "\n")


def _checked(line: object) -> dict[str, Any]:
    """A line of the record as it is written; anything else is damage."""
    kinds = {"time": (int, float), "round": int, "leg": int}
    texts = dict.fromkeys(("run", "spec", "what", "message"), str)
    wanted: dict[str, Any] = {**kinds, **texts}
    if not isinstance(line, dict) or set(line) != set(wanted):
        raise ProtofedError("not a line of the record")
    if any(
        isinstance(line[k], bool) or not isinstance(line[k], kind) for k, kind in wanted.items()
    ):
        raise ProtofedError("not a line of the record")
    return line
