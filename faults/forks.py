"""Commands as processes of their own that start in milliseconds.

Python and torch take seconds to start. They are imported once, here, with one thread; each command
is then a fork of this process: a real one, with its own memory, that a real SIGKILL ends.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

import protofed.cli.output
import protofed.experiment.runner  # noqa: F401  so that no fork imports it again
from protofed.cli import main

torch.set_num_threads(1)  # a pool of threads would not outlive a fork
T = TypeVar("T")
LANES = min(2, len(os.sched_getaffinity(0)))  # cases at a time
UNCAUGHT = 70


class Ended(NamedTuple):
    """A command that has ended: its exit code, or the signal below zero, and what it printed."""

    code: int
    told: str


def nothing() -> None:
    """Prepare a child with nothing."""


def start(words: Sequence[str], log: Path, prepare: Callable[[], None] = nothing) -> int:
    """Begin ``protofed WORDS...`` in a process of its own, which first prepares itself; its id."""
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if not child:
        _be(words, log, prepare)
    return child


def _be(words: Sequence[str], log: Path, prepare: Callable[[], None]) -> None:
    """Be that command, in a child; does not return."""
    code = UNCAUGHT
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        prepare()
        sys.argv = ["protofed", *words]
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(child: int) -> int:
    """A child's exit code once it has ended; the signal that ended it below zero."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def call(words: Sequence[str], log: Path, prepare: Callable[[], None] = nothing) -> Ended:
    """Run a command to its end."""
    code = wait(start(words, log, prepare))
    return Ended(code, log.read_text(errors="replace"))


def spread(cases: Sequence[T], do: Callable[[T, Path], Any], folder: Path) -> list[Any]:
    """What `do` finds for each case, in their order; some cases at a time, in folders of their own.

    Each lane is a fork too, so what `do` returns must be plain data.
    """
    folder.mkdir(parents=True, exist_ok=True)
    children = [_lane(number, cases, do, folder) for number in range(LANES)]
    codes = [wait(child) for child in children]
    if any(codes):
        raise RuntimeError(f"a lane of {folder.name} ended with {codes}; see above")
    found = [json.loads((folder / f"lane-{number}.json").read_text()) for number in range(LANES)]
    return [found[number % LANES][number // LANES] for number in range(len(cases))]


def _lane(number: int, cases: Sequence[T], do: Callable[[T, Path], Any], folder: Path) -> int:
    sys.stdout.flush()
    child = os.fork()
    if child:
        return child
    try:
        found = []
        for place, case in list(enumerate(cases))[number::LANES]:
            own = folder / f"case-{place}"
            own.mkdir()
            found.append(do(case, own))
        (folder / f"lane-{number}.json").write_text(json.dumps(found))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
