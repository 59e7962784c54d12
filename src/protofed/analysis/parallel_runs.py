"""Many runs side by side, each in a process of its own; what is finished is not run again.

A run that a process of somebody else is busy with is waited for: it is read when it is finished,
and gone on with here if that process ends before.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import NamedTuple

from protofed.analysis.sweep import GridCell
from protofed.errors import BusyError, ProtofedError
from protofed.experiment.run_folder import RunDir
from protofed.runtime.atomic_io import is_locked
from protofed.runtime.child_process import exit_with_parent, ignore_sigint_in_children

ENDINGS = (signal.SIGTERM, signal.SIGHUP)
LOOK = 0.3  # seconds between two looks at the runs
BUSY = 3  # exit code of a process that found its run held by another


class GridProgress(NamedTuple):
    """How far a grid is; rounds are counted over all runs.

    `seconds_left` is None before the first round. `news` is a line about a run that just finished,
    failed or is waited for, and usually empty.
    """

    rounds: int
    of_rounds: int
    runs: int
    of_runs: int
    seconds_left: float | None  # none before the first round
    news: str = ""  # a run that just ended, or is waited for


Watch = Callable[[GridProgress], None]


def run_all(cells: Sequence[GridCell], workers: int, watch: Watch) -> dict[Path, str]:
    """Run what is not finished, in `workers` processes at a time; return faults by run folder.

    With no workers the runs follow one another in this process. Ctrl-C stops all runs; the same
    grid started again resumes each from its last checkpoint.
    """
    for cell in cells:
        RunDir(cell.folder).check(cell.experiment)
    pool = RunPool(cells, workers, watch)
    before = {number: signal.signal(number, _stop) for number in ENDINGS}
    try:
        return pool.play()
    finally:
        pool.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(number: int, frame: object) -> None:
    """End as Ctrl-C does: a closed terminal or a batch system must not leave runs behind."""
    raise KeyboardInterrupt


class RunPool:
    """Runs the cells of a grid in processes and follows them by what their run folders say.

    A run that another program is executing is waited for: it is read when finished, and resumed
    here if that program ends early. `play` returns the faults of failed runs by folder.
    """

    def __init__(self, cells: Sequence[GridCell], workers: int, watch: Watch):
        self.cells = list({cell.folder: cell for cell in cells}.values())  # equal ones run once
        self.workers, self.watch = workers, watch
        self.waiting = [cell for cell in self.cells if not RunDir(cell.folder).done.exists()]
        self.running: list[tuple[GridCell, SpawnProcess, Connection]] = []
        self.elsewhere: list[GridCell] = []  # at work in a process that is not ours
        self.faults: dict[Path, str] = {}
        self.began, self.at_start = time.monotonic(), self._rounds()

    def play(self) -> dict[Path, str]:
        """Until nothing waits and nothing runs."""
        self._tell("")
        while self.waiting or self.running or self.elsewhere:
            self._look_elsewhere()
            while self.waiting and len(self.running) < max(1, self.workers):
                self._begin(self.waiting.pop(0))
            if self.running or self.elsewhere:
                time.sleep(LOOK)
            ended = [job for job in self.running if not job[1].is_alive()]
            self.running = [job for job in self.running if job not in ended]
            for job in ended:
                self._tell(self._take(*job))
            if not ended:
                self._tell("")
        return self.faults

    def _begin(self, cell: GridCell) -> None:
        """Start a run, unless another process has it or has finished it since."""
        if is_locked(cell.folder):
            self._tell(self._wait_for(cell))
        elif not RunDir(cell.folder).done.exists():
            if self.workers:
                self.running.append(_start(cell))
            else:
                self._tell(self._run_here(cell))

    def _run_here(self, cell: GridCell) -> str:
        """Run in this process, for lack of workers; what became of it."""
        from protofed.experiment.runner import run

        try:
            run(cell.experiment, cell.folder, lambda progress: self._tell(""), workers=0)
        except BusyError:
            return self._wait_for(cell)
        except Exception as fault:
            return self._failed(cell, _describe(fault))
        return f"{_name(cell)}: finished"

    def _failed(self, cell: GridCell, fault: str) -> str:
        self.faults[cell.folder] = fault
        return f"{_name(cell)}: failed: {fault}"

    def _wait_for(self, cell: GridCell) -> str:
        self.elsewhere.append(cell)
        return f"waiting for {_name(cell)}, which another process is running in {cell.folder}"

    def _look_elsewhere(self) -> None:
        """Take over what another process has left, finished or not."""
        for cell in [cell for cell in self.elsewhere if not is_locked(cell.folder)]:
            self.elsewhere.remove(cell)
            if RunDir(cell.folder).done.exists():
                self._tell(f"{_name(cell)}: finished by another process")
            else:
                self.waiting.insert(0, cell)

    def _take(self, cell: GridCell, process: SpawnProcess, pipe: Connection) -> str:
        """What became of a run."""
        process.join()
        if process.exitcode == BUSY:
            return self._wait_for(cell)
        if process.exitcode == 0:
            return f"{_name(cell)}: finished"
        try:
            return self._failed(cell, str(pipe.recv()))
        except EOFError:  # killed, perhaps because memory ran out
            return self._failed(cell, f"its process ended with code {process.exitcode}")

    def stop(self) -> None:
        """End whatever still runs; its folder keeps the last checkpoint."""
        for _, process, _ in self.running:
            process.terminate()
        for _, process, _ in self.running:
            process.join()

    def _rounds(self) -> int:
        return sum(_finished(cell) for cell in self.cells)

    def _tell(self, news: str) -> None:
        now, total = self._rounds(), sum(cell.experiment.rounds for cell in self.cells)
        made, spent = now - self.at_start, time.monotonic() - self.began
        left = spent / made * (total - now) if made else None
        done = sum(RunDir(cell.folder).done.exists() for cell in self.cells)
        self.watch(GridProgress(now, total, done, len(self.cells), left, news))


def _name(cell: GridCell) -> str:
    return f"{cell.label}, seed {cell.seed}"


def _finished(cell: GridCell) -> int:
    """The rounds that a run has behind it, counted in its file."""
    try:
        return RunDir(cell.folder).rounds.read_bytes().count(b"\n")
    except OSError:
        return 0


def _start(cell: GridCell) -> tuple[GridCell, SpawnProcess, Connection]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(cell, theirs), daemon=True)
    with ignore_sigint_in_children():  # the parent decides
        process.start()
    theirs.close()
    return cell, process, ours


def _work(cell: GridCell, pipe: Connection) -> None:
    """One run, in its own process; a fault that is for people goes back through the pipe."""
    for number in ENDINGS:
        signal.signal(number, signal.SIG_DFL)
    exit_with_parent()  # its folder keeps the last checkpoint
    from protofed.experiment.runner import run

    try:
        run(cell.experiment, cell.folder, workers=0)  # the grid's runs are side by side already
    except BusyError:
        raise SystemExit(BUSY) from None
    except ProtofedError as fault:
        pipe.send(_describe(fault))
        raise SystemExit(1) from None
    except Exception as fault:
        pipe.send(_describe(fault))
        raise


def _describe(fault: Exception) -> str:
    return str(fault) if isinstance(fault, ProtofedError) else f"{type(fault).__name__}: {fault}"
