"""Memory that runs out, and memory that should not grow."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from faults import forks
from faults.work import Work, figures
from protofed.experiment.run_folder import RunDir

HEAVY = Work("fedavg", rounds=2)
# Activations of hundreds of megabytes: far more than all else that a run takes.
LOAD = {"net": "resnet10", "data.side": 32, "partition.samples": 256, "training.batch": 256}
MARGINS = (150, 200, 250, 300)  # megabytes beyond what the process has when the run begins
# Rounds between which memory is compared. The allocator, which is told to keep what is freed, fills
# its first blocks within some twenty rounds while the bytes in use stay the same.
FEW, MANY = 50, 250
MOST_GROWTH = 0.02
TOLD = re.compile(r"^error: client \d, in round 1, ran out of memory", re.MULTILINE)


def limit(folder: Path, quick: bool) -> dict[str, Any]:
    """A client that needs more memory than there is."""
    cases = [(margin, 0) for margin in MARGINS[:: 3 if quick else 1]]
    cases += [] if quick else [(MARGINS[0], 2)]
    return figures(forks.spread(cases, one_limit, folder / "cases"))


def one_limit(case: tuple[int, int], own: Path) -> list[str]:
    """A run with so many megabytes and workers ends with one clear line that names a client."""
    margin, workers = case
    load = [word for name, value in LOAD.items() for word in ("--set", f"{name}={value}")]
    words = [*HEAVY._replace(workers=workers).words(own / "run"), *load]
    ended = forks.call(words, own / "log", partial(at_most, margin * 2**20))
    if ended.code == 2 and TOLD.search(ended.told) and "Traceback" not in ended.told:
        return []
    return [f"{margin} MB, {workers} workers: ended with {ended.code}: {ended.told[-500:]}"]


def at_most(more: int) -> None:
    """Allow this process so many bytes beyond those that it has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + more
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def growth(folder: Path, quick: bool) -> dict[str, Any]:
    """The memory of fresh processes early and late in a long run."""
    methods = ("fedavg",) if quick else ("fedavg", "scaffold", "moon", "pgct")
    first, last = (25, 65) if quick else (FEW, MANY)
    cases = [Work(name, rounds=last) for name in methods]
    found = forks.spread(cases, partial(one_growth, first), folder / "cases")
    grown = [late / early - 1 for early, late in found]
    failures = [
        [] if more < MOST_GROWTH else [f"{work.method}: memory grew by {100 * more:.1f} %"]
        for work, more in zip(cases, grown, strict=True)
    ]
    worst = {"growth": round(max(grown), 4), "rounds": last - first}
    return figures(failures, **worst, megabytes=[round(late / 1024) for _, late in found])


def one_growth(first: int, work: Work, own: Path) -> tuple[int, int]:
    """The most kilobytes of its own within the first rounds, and the most after them.

    Both are peaks: a peak compared with a single moment would show growth where there is none.
    """
    command = [sys.executable, "-m", "protofed", *work.words(own / "run")]
    early = late = 0
    place = RunDir(own / "run")
    with (
        (own / "log").open("wb") as log,
        subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        while process.poll() is None:
            if finished := len(place.rounds_on_disk()) and place.rounds_on_disk()[-1]:
                now = _own_memory(process.pid)
                early, late = (
                    (max(now, early), late) if finished <= first else (early, max(now, late))
                )
            time.sleep(0.01)
    if process.returncode or not early or not late:
        raise RuntimeError((own / "log").read_text())
    return early, late


def _own_memory(pid: int) -> int:
    """The kilobytes that a process has filled itself.

    Pages of files count for nothing: the kernel takes those of libraries away and brings them back
    as other programs leave it room.
    """
    try:
        told = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return sum(map(int, re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+)", told, re.M)))
