"""The k-th step on the disk fails, or the process dies at it, for every k."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from faults import forks
from faults.work import Work, damage, differences, figures, state, unbroken
from protofed.experiment.run_folder import RunDir
from protofed.runtime import atomic_io

WORK = Work("scaffold", rounds=3)  # with states at the clients, and an old checkpoint to drop
STEPS = ("write_all", "sync_file", "rename_over")
LAST = 8  # steps of the two files that end a run, card.md and done
COUNT = "steps"  # the file in which a child counts


class Fault(NamedTuple):
    """What happens at which step."""

    kind: str  # "error", "kill" before it, or "torn": killed when half of it is done
    step: int


def steps(folder: Path, quick: bool) -> dict[str, Any]:
    """Every step of a run, with every fault that can happen at it."""
    whole = unbroken(WORK, folder / "whole", keep=True).folder
    names = counted(folder / "counted")
    every = chosen(len(names), quick)
    cases = [Fault(kind, step) for step in every for kind in ("error", "kill")]
    cases += [Fault("torn", step) for step in every if names[step - 1] == "write_all"]
    found = forks.spread(cases, lambda fault, own: one(fault, own, whole), folder / "cases")
    return figures(found, steps=len(names))


def chosen(count: int, quick: bool) -> list[int]:
    """Which steps of a run are tried: all, or some of them and always the last ones."""
    every = range(1, count + 1)
    return sorted({*every[::13], *every[-LAST:]}) if quick else list(every)


def counted(folder: Path) -> list[str]:
    """The names of all steps that a run takes."""
    folder.mkdir(parents=True)
    ended = forks.call(WORK.words(folder / "run"), folder / "log", lambda: watch(folder / COUNT))
    if ended.code:
        raise RuntimeError(ended.told)
    return (folder / COUNT).read_text().split()


def watch(record: Path, fault: Fault | None = None) -> None:
    """Let this process count its steps, and meet a fault at one of them."""
    for name in STEPS:
        setattr(atomic_io, name, _watched(name, getattr(atomic_io, name), record, fault))


def _watched(
    name: str, real: Callable[..., None], record: Path, fault: Fault | None
) -> Callable[..., None]:
    def step(*given: Any) -> None:
        with record.open("a") as stream:
            stream.write(f"{name}\n")
        number = len(record.read_text().split())
        if fault is not None and number == fault.step:
            if fault.kind == "error":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            if fault.kind == "torn":
                real(given[0], given[1][: len(given[1]) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        real(*given)

    return step


def one(fault: Fault, own: Path, whole: Path) -> list[str]:
    """A run that meets a fault leaves an old or a new state, and ends equal when gone on with."""
    run = own / "run"
    hit = forks.call(WORK.words(run), own / "log", lambda: watch(own / COUNT, fault))
    expected = 2 if fault.kind == "error" else -signal.SIGKILL
    failures = [f"{fault}: left {what}" for what in damage(run)]
    if hit.code != expected or "Traceback" in hit.told:
        failures.append(f"{fault}: ended with {hit.code}: {hit.told[-300:]}")
    if fault.kind == "error" and "cannot write to" not in hit.told:
        failures.append(f"{fault}: told {hit.told[-300:]}")
    before = RunDir(run).find().round
    if state(run, before) != (state(whole, before) if before else {}):
        failures.append(f"{fault}: the state of round {before} is a mix")
    ended = forks.call(WORK.words(run), own / "log")
    if ended.code:
        failures.append(f"{fault}: going on ended with {ended.code}: {ended.told[-300:]}")
    return failures + [f"{fault}: other {n}" for n in differences(run, whole, WORK.rounds)]
