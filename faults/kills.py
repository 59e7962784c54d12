"""SIGKILL at random moments, of runs in one process and with workers, and of one worker."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

from benchmarks.processes import tree

from faults import forks
from faults.work import METHODS, Unbroken, Work, damage, differences, figures, unbroken

CHAIN, SHORT_CHAIN = 4, 1  # kills of one run, one after the other, before it may end
TOLD = re.compile(r"(client \d|the server): its worker process died \(SIGKILL\) and was")
PATIENCE = 20.0  # seconds for workers to notice that their parent is gone


def kills(folder: Path, quick: bool) -> dict[str, Any]:
    """Runs killed some times and gone on with, alternately by `run` and `resume`."""
    alone, several = (len(METHODS), 1) if quick else (42, 8)  # runs; those with workers are slow
    cases = [Work(METHODS[i % len(METHODS)]) for i in range(alone)]
    cases += [Work(METHODS[i % len(METHODS)], workers=2) for i in range(several)]
    whole = {name: unbroken(Work(name), folder / name) for name in METHODS}
    often = SHORT_CHAIN if quick else CHAIN
    slower = unbroken(Work("fedavg", workers=2), folder / "slower").seconds
    found = forks.spread(
        list(enumerate(cases)),
        lambda case, own: chain(case[1], own, whole[case[1].method], slower, case[0], often),
        folder / "chains",
    )
    return {
        "tried": sum(one["kills"] for one in found),
        "held": sum(one["kills"] for one in found if not one["failures"]),
        "runs": len(cases),
        "with_workers": sum(one["kills"] for one in found[alone:]),
        "unfinished": sum(one["unfinished"] for one in found),
        "failures": [failure for one in found for failure in one["failures"]],
    }


def chain(
    work: Work, own: Path, whole: Unbroken, slower: float, seed: int, often: int
) -> dict[str, Any]:
    """Kill a run at random moments until it was killed `often`; then let it end.

    What it ends with is compared with a run in one process, also where it has workers.
    """
    draw, run, log = random.Random(seed), own / "run", own / "log"
    longest = whole.seconds + (slower if work.workers else 0)
    made, unfinished, failures = 0, 0, []
    while made < often:
        words = work.again(run) if made % 2 and (run / "spec.json").exists() else work.words(run)
        child = forks.start(words, log)
        time.sleep(draw.uniform(0, longest))
        family = tree(child)
        os.kill(child, signal.SIGKILL)
        code = forks.wait(child)
        if code != -signal.SIGKILL:  # it was faster: no kill; is it equal? then once more
            failures += [f"{work}: other {n}" for n in differences(run, whole.folder, work.rounds)]
            if failures:
                break
            shutil.rmtree(run)
            continue
        made += 1
        unfinished += any(run.rglob(".*.tmp"))
        failures += [f"{work}: kill {made} left {fault}" for fault in damage(run)]
        failures += [f"{work}: worker {pid} stayed" for pid in staying(family[1:])]
    ended = forks.call(work.words(run), log)
    if ended.code:
        failures.append(f"{work}: going on ended with {ended.code}: {ended.told[-300:]}")
    failures += [f"{work}: other {name}" for name in differences(run, whole.folder, work.rounds)]
    if any(run.rglob(".*.tmp")):
        failures.append(f"{work}: unfinished files were left")
    return {"kills": made, "unfinished": unfinished, "failures": failures}


def staying(pids: list[int]) -> list[int]:
    """Which of some processes do not end though their parent was killed."""
    until = time.monotonic() + PATIENCE
    while (left := [pid for pid in pids if alive(pid)]) and time.monotonic() < until:
        time.sleep(0.02)
    return left


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and is only not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def worker(folder: Path, quick: bool) -> dict[str, Any]:
    """One of two workers killed in the middle of a run."""
    work = Work("scaffold", workers=2, rounds=8)
    whole = unbroken(work._replace(workers=0), folder / "whole")
    found = forks.spread(
        range(1 if quick else 6), lambda n, own: one_worker(work, own, whole, n), folder / "cases"
    )
    return figures(found)


def one_worker(work: Work, own: Path, whole: Unbroken, number: int) -> list[str]:
    """Kill a worker once rounds are being played; the run must tell of it and end equal."""
    run, log = own / "run", own / "log"
    child = forks.start(work.words(run), log)
    record = run / "rounds.jsonl"
    while alive(child) and not (record.exists() and record.stat().st_size):
        time.sleep(0.01)
    time.sleep(0.05 * number)
    below = tree(child)[1:]
    if below:
        os.kill(below[number % len(below)], signal.SIGKILL)
    code, told = forks.wait(child), log.read_text()
    failures = [f"other {name}" for name in differences(run, whole.folder, work.rounds)]
    if len(below) != work.workers:
        failures.append(f"{len(below)} workers were there")
    if code or not TOLD.search(told):
        failures.append(f"ended with {code}, telling {told[-300:]}")
    return failures
