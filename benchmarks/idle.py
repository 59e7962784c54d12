"""Whether the machine is idle: what other processes use of its cores, and which they are."""

from __future__ import annotations

import os
import time
from typing import NamedTuple

from benchmarks import processes

LIMIT = 0.05  # of all cores
LOOK_SECONDS = 3.0
NAMED = 5


class Look(NamedTuple):
    """What was seen; all shares are of all cores."""

    share: float
    busiest: list[tuple[str, float]]

    def words(self) -> str:
        """The share and the busiest processes, for people."""
        cores = os.cpu_count() or 1
        lines = [f"others use {self.share:.0%} of the {cores} cores (at most {LIMIT:.0%})"]
        return "\n".join([*lines, *(f"  {part:4.0%}  {name}" for name, part in self.busiest)])


def look(seconds: float = LOOK_SECONDS) -> Look:
    """Watch for a while; this process and all below it do not count."""
    mine = processes.tree(os.getpid())
    before, began = _seconds(mine), time.perf_counter()
    time.sleep(seconds)
    after, ended = _seconds(mine), time.perf_counter()
    whole = (ended - began) * (os.cpu_count() or 1)
    busiest = [
        (f"{name} (process {pid})", (used - before.each.get(pid, (name, used))[1]) / whole)
        for pid, (name, used) in after.each.items()
    ]
    busiest.append(
        ("taken by the host of this virtual machine", (after.host - before.host) / whole)
    )
    busiest = [(name, part) for name, part in busiest if part >= 0.005]
    busiest.sort(key=lambda item: -item[1])
    return Look(max(0.0, after.others - before.others) / whole, busiest[:NAMED])


class _Seconds(NamedTuple):
    others: float  # with those of the host
    host: float
    each: dict[int, tuple[str, float]]


def _seconds(mine: list[int]) -> _Seconds:
    each, host = processes.seconds_of_each(), processes.stolen_seconds()
    own = sum(each.pop(pid, ("", 0.0))[1] for pid in mine)
    return _Seconds(processes.busy_seconds() - own + host, host, each)
