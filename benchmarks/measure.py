"""Systems side by side: each in its own process, warmed up, asked for rounds in turn."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import processes
from benchmarks.serve import LeftOutError, Order, Round

ROOT = Path(__file__).parent.parent
GRACE_SECONDS = 60
MEGABYTE = 1e6


class System:
    """One system at its work in a process of its own, stopped while others are measured."""

    def __init__(self, order: Order):
        answers, out = os.pipe()
        self.order, self.log = order, tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            [order.python(), "-m", "benchmarks.serve", str(out), order.to_json()],
            stdin=subprocess.PIPE,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            pass_fds=[out],
            cwd=ROOT,
            text=True,
        )
        os.close(out)
        self.answers = os.fdopen(answers)

    @property
    def pid(self) -> int:
        return self.process.pid

    def round(self, number: int) -> Round:
        """Ask for a round and wait for it."""
        assert self.process.stdin
        print(number, file=self.process.stdin, flush=True)
        line = self.answers.readline()
        if not line:
            code = self.process.wait(GRACE_SECONDS)
            self.log.seek(0)
            raise RuntimeError(
                f"{self.order.system} ended early with code {code}:\n{self.log.read()[-4000:]}"
            )
        answer = json.loads(line)
        if "skip" in answer:
            raise LeftOutError(answer["skip"])
        return Round(**answer)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Let it work inside, and stop its whole tree afterwards: Flower polls when idle."""
        processes.send(processes.tree(self.pid), signal.SIGCONT)
        try:
            yield
        finally:
            processes.send(processes.tree(self.pid), signal.SIGSTOP)

    def close(self) -> None:
        """Let it end; what is left after a while is killed."""
        family = processes.tree(self.pid)
        processes.send(family, signal.SIGCONT)
        assert self.process.stdin
        self.process.stdin.close()
        try:
            self.process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            processes.send(family, signal.SIGKILL)
            self.process.wait()
        self.answers.close()
        self.log.close()


@dataclass
class Record:
    """All that was seen of one system."""

    rounds: list[Round] = field(default_factory=list)  # those that warm up too
    others: list[float] = field(default_factory=list)  # share of the machine used by others
    tree_mb: float | None = None
    process_mb: float | None = None

    def play(self, system: System, number: int) -> None:
        """One round, with a look at what else the machine did meanwhile."""
        with system.awake():
            busy, mine, began = _clocks(system.pid)
            self.rounds.append(system.round(number))
            later, mine_later, ended = _clocks(system.pid)
        spent = (ended - began) * (os.cpu_count() or 1)
        self.others.append(max(0.0, (later - busy) - (mine_later - mine)) / spent)

    def weigh(self, system: System, number: int) -> None:
        """One more round, not timed: reading a tree's memory takes time from it."""
        with system.awake(), processes.highest_of_tree(system.pid) as highest:
            self.rounds.append(system.round(number))
            self.process_mb = processes.highest(system.pid) / MEGABYTE
        self.tree_mb = highest[0] / MEGABYTE

    def plain(self, warm: int, repeats: int) -> dict[str, Any]:
        """As plain data; `seconds` and `others` without the rounds that warmed up."""
        timed = slice(warm, warm + repeats)
        about = self.rounds[0].about
        return {
            **({"about": about} if about else {}),
            "seconds": [round(r.seconds, 4) for r in self.rounds[timed]],
            "others": [round(share, 3) for share in self.others[timed]],
            "loss": [round(r.loss, 4) for r in self.rounds],
            "steps": self.rounds[0].steps,
            "samples": self.rounds[0].samples,
            "tree_mb": self.tree_mb and round(self.tree_mb),
            "process_mb": self.process_mb and round(self.process_mb),
        }


def _clocks(pid: int) -> tuple[float, float, float]:
    return processes.busy_seconds(), processes.cpu_seconds(pid), time.perf_counter()


def interleave(orders: Mapping[str, Order], repeats: int, warm: int = 1) -> dict[str, Any]:
    """Rounds in the order A-B-C-A-B-C; ratios are to the first system, repeat by repeat."""
    systems: dict[str, System] = {}
    records: dict[str, Record] = {}
    skipped: dict[str, str] = {}
    with ExitStack() as stack:
        for name, order in orders.items():
            system, record = System(order), Record()
            stack.callback(system.close)
            try:
                for number in range(warm):
                    record.play(system, number)
                systems[name], records[name] = system, record
            except LeftOutError as reason:
                skipped[name] = str(reason)
                print(f"  {name} is left out: {reason}", flush=True)
        for number in range(warm, warm + repeats):
            for name, system in systems.items():
                records[name].play(system, number)
        for name, system in systems.items():
            records[name].weigh(system, warm + repeats)
    for name, record in records.items():
        check(name, orders[name], record.rounds)
    plain = {name: record.plain(warm, repeats) for name, record in records.items()}
    first = next(iter(orders))
    work = orders[first].work.words()
    return {"work": work, "systems": plain, "skipped": skipped, "ratios": ratios(plain, first)}


def ratios(systems: Mapping[str, Mapping[str, Any]], first: str) -> dict[str, float]:
    """The median over repeats of each system's seconds by the first one's."""
    if first not in systems:
        return {}
    base = systems[first]["seconds"]
    return {
        name: round(
            statistics.median(b / a for a, b in zip(base, record["seconds"], strict=True)), 4
        )
        for name, record in systems.items()
        if name != first
    }


def check(name: str, order: Order, rounds: list[Round]) -> None:
    """Refuse figures of a system that did not do the work."""
    for played in rounds:
        if (played.steps, played.samples) != order.work.expected():
            raise RuntimeError(
                f"{name} did other work on {order.work.name}: {played.steps} steps on "
                f"{played.samples} samples, not {order.work.expected()}"
            )
        if not played.moved > 0:
            raise RuntimeError(f"{name} did not move the weights on {order.work.name}")
    # FPL adds terms to its loss from the second round on
    if order.method == "fedavg" and not rounds[-1].loss < rounds[0].loss:
        losses = [round(played.loss, 4) for played in rounds]
        raise RuntimeError(f"{name} did not learn on {order.work.name}: losses {losses}")
