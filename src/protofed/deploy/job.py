"""What `protofed submit` writes down for the process that plays the run, and hears from it."""

from __future__ import annotations

import json
import math
import os
import socket
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from protofed.core.disk import write_json
from protofed.experiment.runner import Progress

SOCKET = "progress.sock"


@dataclass(frozen=True)
class Job:
    """A run to be played."""

    spec: dict[str, Any]
    here: str  # the folder in which `submit` was called
    out: str  # the run folder; "" for the default one
    sites: tuple[str, ...]  # who must take part; none for whoever is there
    count: int  # of sites that must be there
    deadline: float  # seconds for one exchange
    wait: float  # seconds for the sites to come online
    resume: bool

    def write(self, folder: Path) -> Path:
        """Write it into a folder; the file."""
        write_json(folder / "job.json", asdict(self))
        return folder / "job.json"

    @classmethod
    def read(cls, file: Path) -> Self:
        """What `write` wrote."""
        told = json.loads(file.read_text(encoding="utf-8"))
        return cls(**{**told, "sites": tuple(told["sites"])})


class Line:
    """Tells `submit` how far the run is; when `submit` has gone, the run ends too."""

    def __init__(self, folder: Path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(str(folder / SOCKET))
        threading.Thread(target=self._end_with_submit, daemon=True).start()

    def _end_with_submit(self) -> None:
        """Nobody writes to this end: reading ends when `submit` has ended, however it did."""
        self.socket.recv(1)
        os._exit(1)

    def tell(self, **what: object) -> None:
        """One line of JSON."""
        self.socket.sendall((json.dumps(what) + "\n").encode())

    def watch(self, progress: Progress) -> None:
        """How far the run is."""
        left = progress.seconds_left
        told = progress._replace(seconds_left=left if math.isfinite(left) else -1.0)
        self.tell(progress=told)


def lines(connection: socket.socket) -> Iterator[dict[str, Any]]:
    """What comes over a line until it ends."""
    with connection.makefile(encoding="utf-8") as stream:
        for text in stream:
            yield json.loads(text)


def progress_from(told: list[Any]) -> Progress:
    """What `Line.watch` told."""
    finished, rounds, mean, left, notices, missing = told
    left = math.nan if left < 0 else left
    return Progress(finished, rounds, mean, left, tuple(notices), tuple(missing))
