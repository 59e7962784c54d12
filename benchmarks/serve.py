"""A system in its own process: rounds are asked for on its standard input, one line each.

python -m benchmarks.serve FD ORDER answers on the file descriptor FD; ORDER is JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import NamedTuple, TextIO

from benchmarks.workloads import Workload
from protofed.core.model import Precision


class LeftOutError(Exception):
    """Why a system cannot be measured here."""


class Round(NamedTuple):
    """What a round took, and what was done in it."""

    seconds: float
    steps: int
    samples: int
    loss: float  # the mean over all steps of all clients
    moved: float  # the distance of the new global weights from the old
    about: str = ""  # the version that played it, where `machine.describe` cannot know


Tell = Callable[[Round], None]


class System(NamedTuple):
    """Where a system's `serve(order, rounds, tell)` is, and what may name its interpreter."""

    module: str
    python: str = ""  # an environment variable; without it, it runs in ours


SYSTEMS = {
    "ours": System("benchmarks.ours"),
    "plain": System("benchmarks.plain_loop"),
    "flower": System("benchmarks.flower_sim"),
    "blazefl-processes": System("benchmarks.blazefl_sim", "BLAZEFL_PYTHON"),
    "blazefl-threads": System("benchmarks.blazefl_sim", "BLAZEFL_PYTHON"),
    "pfllib": System("benchmarks.pfllib_loop"),
}


@dataclass(frozen=True)
class Order:
    """Which system does which work, and how."""

    system: str  # one of SYSTEMS
    work: Workload
    method: str = "fedavg"  # ours only
    workers: int = 2  # ours only
    precision: Precision = "float32"  # ours only

    def python(self) -> str:
        """The interpreter that runs the system."""
        return os.environ.get(SYSTEMS[self.system].python) or sys.executable

    def to_json(self) -> str:
        """As one line of text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Order:
        """The order that a line of text states."""
        plain = json.loads(text)
        work = plain.pop("work")
        return cls(work=Workload(**{**work, "sizes": tuple(work["sizes"])}), **plain)


def asked(requests: TextIO) -> Iterator[int]:
    """The numbers of the rounds to play, until the asking side closes."""
    while line := requests.readline():
        yield int(line)


def main(answers: TextIO, order: Order) -> None:
    """Serve until no more is asked for; if that cannot be, say why."""

    def tell(played: Round) -> None:
        print(json.dumps(played._asdict()), file=answers, flush=True)

    try:
        import_module(SYSTEMS[order.system].module).serve(order, asked(sys.stdin), tell)
    except LeftOutError as reason:
        print(json.dumps({"skip": str(reason)}), file=answers, flush=True)


if __name__ == "__main__":
    # under its real name: what is defined here must be one thing in this and in other processes
    from benchmarks.serve import Order as RealOrder
    from benchmarks.serve import main as real_main

    with os.fdopen(int(sys.argv[1]), "w") as out:
        real_main(out, RealOrder.from_json(sys.argv[2]))
