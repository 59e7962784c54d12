"""A system in its own process: rounds are asked for on its standard input, one line each.

python -m benchmarks.serve FD ORDER answers on the file descriptor FD; ORDER is JSON.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import NamedTuple, TextIO

from benchmarks.workloads import Workload


class LeftOutError(Exception):
    """Why a system cannot be measured here."""


class Round(NamedTuple):
    """What a round took, and what was done in it."""

    seconds: float
    steps: int
    samples: int
    loss: float  # the mean over all steps of all clients
    moved: float  # the distance of the new global weights from the old


@dataclass(frozen=True)
class Order:
    """Which system does which work, and how."""

    system: str  # ours, plain or flower
    work: Workload
    method: str = "fedavg"  # ours only
    workers: int = 2  # ours only

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

    rounds = asked(sys.stdin)
    try:
        if order.system == "ours":
            from benchmarks import ours

            ours.serve(order.work, order.method, order.workers, rounds, tell)
        elif order.system == "plain":
            from benchmarks import plain_loop

            plain_loop.serve(order.work, rounds, tell)
        else:
            from benchmarks import flower_sim

            flower_sim.serve(order.work, rounds, tell)
    except LeftOutError as reason:
        print(json.dumps({"skip": str(reason)}), file=answers, flush=True)


if __name__ == "__main__":
    # under its real name: what is defined here must be one thing in this and in other processes
    from benchmarks.serve import Order as RealOrder
    from benchmarks.serve import main as real_main

    with os.fdopen(int(sys.argv[1]), "w") as out:
        real_main(out, RealOrder.from_json(sys.argv[2]))
