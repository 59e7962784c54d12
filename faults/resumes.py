"""Every method, killed in every round and gone on with."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

from faults import forks
from faults.work import METHODS, Work, differences, unbroken
from protofed import methods
from protofed.experiment.runner import ExperimentRun

ROUNDS = 3


def resumes(folder: Path, quick: bool) -> dict[str, Any]:
    """Some methods, or all, each killed in some rounds, or all."""
    names = METHODS if quick else tuple(methods.METHODS)
    rounds = (2,) if quick else range(1, ROUNDS + 1)
    found = forks.spread(names, lambda name, own: one(name, own, tuple(rounds)), folder / "cases")
    return {
        "tried": len(names) * len(rounds),
        "held": len(names) * len(rounds) - sum(map(len, found)),
        "methods": len(names),
        "failures": [failure for failures in found for failure in failures],
    }


def one(name: str, own: Path, rounds: tuple[int, ...]) -> list[str]:
    """One line for each round in which a method's run was killed and then ended otherwise."""
    work, failures = Work(name, rounds=ROUNDS), []
    whole = unbroken(work, own / "whole").folder
    for number in rounds:
        run, log = own / f"killed-{number}" / "run", own / "log"
        run.parent.mkdir()
        hit = forks.call(work.words(run), log, partial(die_in, number))
        ended = forks.call(work.again(run), log)
        other = differences(run, whole, ROUNDS)
        if hit.code != -signal.SIGKILL or ended.code or other:
            failures.append(f"{name} in round {number}: {hit}, {ended}, other {other}")
    return failures


def die_in(number: int) -> None:
    """Let this process be killed when a round is trained and nothing of it is saved."""
    play = ExperimentRun._round

    def killed(self: ExperimentRun[Any, Any], server: Any, now: int) -> Any:
        after = play(self, server, now)
        if now + 1 == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return after

    ExperimentRun._round = killed  # type: ignore[method-assign,assignment]
