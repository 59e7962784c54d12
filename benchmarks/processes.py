"""What a process and all below it use: memory, with shared pages counted once, and CPU time."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")
SAMPLE_SECONDS = 0.1


def tree(root: int) -> list[int]:
    """The ids of a process and all below it."""
    parents = {}
    for folder in PROC.iterdir():
        if folder.name.isdigit() and (fields := _stat(int(folder.name))):
            parents[int(folder.name)] = int(fields[1])
    found = [root]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _stat(pid: int) -> list[str]:
    """The fields of a process's stat from its state on; none if it has ended."""
    return _named_stat(pid)[1]


def _named_stat(pid: int) -> tuple[str, list[str]]:
    try:
        before, _, after = (PROC / str(pid) / "stat").read_text().rpartition(")")
    except OSError:
        return "", []
    return before.partition("(")[2], after.split()


def seconds_of_each() -> dict[int, tuple[str, float]]:
    """The name and the processor time of every process, by its id."""
    stats = {int(f.name): _named_stat(int(f.name)) for f in PROC.iterdir() if f.name.isdigit()}
    return {
        pid: (name, sum(map(int, fields[11:13])) / TICKS)
        for pid, (name, fields) in stats.items()
        if fields
    }


def cpu_seconds(root: int) -> float:
    """The processor time that a tree of processes has used, with those of it that have ended."""
    used = [_stat(pid) for pid in tree(root)]
    return sum(int(value) for fields in used for value in fields[11:15]) / TICKS


def busy_seconds() -> float:
    """The processor time that the whole machine has used."""
    user, nice, system, _idle, _wait, *rest = _ticks()
    return (user + nice + system + sum(rest[:2])) / TICKS


def stolen_seconds() -> float:
    """The processor time that a virtual machine wanted and its host gave to others."""
    return sum(_ticks()[7:8]) / TICKS


def _ticks() -> list[int]:
    return [int(field) for field in (PROC / "stat").read_text().splitlines()[0].split()[1:]]


def in_memory(root: int) -> int:
    """The bytes of a tree in memory: its own and shared pages once, files as in the largest.

    Files are mostly torch's libraries, which other trees of the machine map as well.
    """
    pids = tree(root)
    own = [_kilobytes(pid, "smaps_rollup", f"Pss_{k}") for pid in pids for k in ("Anon", "Shmem")]
    files = max(_kilobytes(pid, "status", "RssFile") for pid in pids)
    return (sum(own) + files) * 1024


def highest(pid: int) -> int:
    """The most bytes that one process has had in memory so far."""
    return _kilobytes(pid, "status", "VmHWM") * 1024


def _kilobytes(pid: int, file: str, field: str) -> int:
    try:
        found = re.search(rf"^{field}:\s+(\d+) kB", (PROC / str(pid) / file).read_text(), re.M)
    except OSError:  # it has ended
        return 0
    return int(found[1]) if found else 0


@contextmanager
def highest_of_tree(root: int) -> Iterator[list[int]]:
    """Sample a tree's memory; the list holds the highest value in bytes at the end."""
    peak, stop = [in_memory(root)], threading.Event()

    def watch() -> None:
        while not stop.wait(SAMPLE_SECONDS):
            peak[0] = max(peak[0], in_memory(root))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


def send(pids: Iterable[int], what: signal.Signals) -> None:
    """Send a signal to processes that we started; some may have ended."""
    for pid in pids:
        try:
            os.kill(pid, what)
        except ProcessLookupError:
            continue
