"""A site's own record of what it has answered, by which it judges what it is asked next."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
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
class AnsweredRun:
    """What a site has answered in one run: by round and leg, the messages that it answered to."""

    spec: str  # SHA-256 of what the run is about
    begun: float  # seconds since 1970
    trained: dict[tuple[int, int], list[str]] = field(default_factory=dict)  # each training
    scored: dict[int, list[str]] = field(default_factory=dict)

    def count_scores(self) -> int:
        """How many different scores have left this site."""
        return sum(len(set(keys)) for keys in self.scored.values())


class AnswerLedger:
    """All answers of a site, in a file that only grows; read again when the site starts anew."""

    def __init__(self, home: Path):
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.answered, self.refused = home / ANSWERED, home / REFUSED
        self.runs: dict[str, AnsweredRun] = {}
        self.sides: dict[int, float] = {}  # of images: when each was last packed for a server
        self._cut_torn_line()
        for line in self._lines():
            self._take(line)

    def _cut_torn_line(self) -> None:
        """Cut off what a crash left of a last line, or the next one would be joined to it."""
        raw = self.answered.read_bytes() if self.answered.exists() else b""
        if raw and not raw.endswith(b"\n"):
            os.truncate(self.answered, raw.rfind(b"\n") + 1)

    def _lines(self) -> Iterator[dict[str, Any]]:
        raw = self.answered.read_bytes().splitlines() if self.answered.exists() else []
        for number, text in enumerate(raw, 1):
            try:
                yield _checked(parse_json(text, f"line {number}"))
            except ProtofedError as fault:
                raise ProtofedError(
                    f"{self.answered}: line {number} is damaged, so that this site does not know "
                    f"what it has answered\nrestore the file, or move it away to begin with a new "
                    f"record"
                ) from fault

    def _take(self, line: dict[str, Any]) -> None:
        if line["what"] == "side":
            self.sides[line["round"]] = line["time"]
            return
        run = self.runs.setdefault(line["run"], AnsweredRun(line["spec"], line["time"]))
        if line["what"] == "train":
            run.trained.setdefault((line["round"], line["leg"]), []).append(line["message"])
        elif line["what"] == "score":
            run.scored.setdefault(line["round"], []).append(line["message"])

    def sides_today(self) -> set[int]:
        """The sizes of images that were asked for in the last 24 hours."""
        return {side for side, when in self.sides.items() if time.time() - when < DAY}

    def begun_today(self) -> int:
        """How many runs have begun in the last 24 hours."""
        return sum(time.time() - run.begun < DAY for run in self.runs.values())

    def write(
        self, run: str, spec: str, what: str, number: int = 0, leg: int = 0, message: str = ""
    ) -> None:
        """Put an answer on record, before it leaves this site."""
        line = {"time": round(time.time(), 3), "run": run, "spec": spec, "what": what}
        line |= {"round": number, "leg": leg, "message": message}
        try:
            disk.append_durably(self.answered, (json.dumps(line) + "\n").encode())
        except OSError as fault:  # a full disk: what is not on record does not leave
            with suppress(OSError):
                self._cut_torn_line()
            raise ProtofedError(f"its record cannot be written: {fault.strerror}") from fault
        self._take(line)

    def write_refusal(self, run: str, what: str, reason: str) -> None:
        """Put on record what was asked and not answered; a flood of such does not fill the disk."""
        if self.refused.exists() and self.refused.stat().st_size > MOST_REFUSED:
            disk.rename_over(self.refused, self.refused.with_suffix(".old.jsonl"))
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
