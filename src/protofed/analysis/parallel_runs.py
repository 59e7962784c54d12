"""Many runs side by side, each in a process of its own; what is finished is not run again.

A run that a process of somebody else is busy with is waited for: it is read when it is finished,
and gone on with here if that process ends before.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from protofed.analysis.run_process import (
    BUSY,
    RunOptions,
    RunProcess,
    can_travel,
    run_cell,
)
from protofed.analysis.sweep import GridCell
from protofed.errors import BusyError, ProtofedError
from protofed.experiment.run_folder import RunDir
from protofed.experiment.runner import Workers, pause_round
from protofed.experiment.stale_code import (
    StaleRule,
    StaleRunError,
    changed_code_note,
    must_repeat,
)
from protofed.runtime.atomic_io import is_locked
from protofed.runtime.code_reference import describe_fault
from protofed.runtime.console import format_clock
from protofed.runtime.progress_display import ProgressDisplay
from protofed.runtime.resources import usable_cores

LOOK = 0.3  # seconds between two looks at the runs
ENDINGS = (signal.SIGTERM, signal.SIGHUP)
DEFAULT_OPTIONS = RunOptions()


class GridProgress(NamedTuple):
    """How far a grid is; rounds are counted over all runs.

    `seconds_left` is None before the first round. `news` is a line about a run that just finished,
    failed or is waited for, and usually empty.
    """

    rounds: int
    of_rounds: int
    runs: int
    of_runs: int
    seconds_left: float | None
    news: str = ""


Watch = Callable[[GridProgress], None]


class GridWatcher(ProgressDisplay):
    """Follows a grid: one bar for all runs with the time left, and one line per run that ends.

    It is the `watch` argument of `run_all`. A log also says how far the grid is, every 30 s.
    """

    def __init__(self) -> None:
        super().__init__("runs {task.fields[runs]}  rounds", "{task.fields[left]}")
        self.task = self.bar.add_task("", total=None, runs="", left="")

    def __call__(self, now: GridProgress) -> None:
        left = "" if now.seconds_left is None else f"{format_clock(now.seconds_left)} left"
        runs = f"{now.runs}/{now.of_runs}"
        self.bar.update(self.task, total=now.of_rounds, completed=now.rounds, runs=runs, left=left)
        if now.news:
            self.say(f"[{runs}] {now.news}  {left}".rstrip())
        told = [f"runs {runs}", f"rounds {now.rounds}/{now.of_rounds}", left]
        self.show(", ".join(word for word in told if word))


def run_all(
    cells: Sequence[GridCell], workers: int, watch: Watch, options: RunOptions = DEFAULT_OPTIONS
) -> dict[Path, str]:
    """Run what is not finished, in `workers` processes at a time; return faults by run folder.

    With no workers the runs follow one another in this process. Ctrl-C stops all runs; the same
    grid started again resumes each from its last checkpoint.
    """
    for cell in cells:
        RunDir(cell.folder).check(cell.experiment)
    options.track.create()  # what is not installed is told before anything runs
    pool = RunPool(cells, workers, watch, options)
    in_main = threading.current_thread() is threading.main_thread()  # who alone may set signals
    heard = [n for n in ENDINGS if signal.getsignal(n) is not signal.SIG_IGN]  # not under nohup
    before = {n: signal.signal(n, _stop) for n in heard} if in_main else {}
    try:
        return pool.play()
    finally:
        pool.stop()
        for number, handler in before.items():
            signal.signal(number, handler)


def process_count(workers: Workers) -> int:
    """How many runs are at work at a time: one per core for ``auto``."""
    return usable_cores() if workers == "auto" else workers


def check_any_finished(cells: Sequence[GridCell], faults: Mapping[Path, str]) -> None:
    """Raise if every run has failed, with the different faults."""
    if all(cell.folder in faults for cell in cells):
        raise ProtofedError("every run failed:\n" + "\n".join(dict.fromkeys(faults.values())))


def stale_folders(cells: Sequence[GridCell], rule: StaleRule) -> set[Path]:
    """The folders of runs that must be repeated because other code has made them.

    With the rule "refuse" they are an error that names the first and counts the others.
    """
    repeat: set[Path] = set()
    faults: list[StaleRunError] = []
    for cell in cells:
        try:
            if must_repeat(RunDir(cell.folder), cell.experiment, rule):
                repeat.add(cell.folder)
        except StaleRunError as fault:
            faults.append(fault)
    if faults:
        more = f"\nso were {len(faults) - 1} more of these runs" if len(faults) > 1 else ""
        raise StaleRunError(
            f"{faults[0].args[0]}{more}",
            hint="repeat such runs with <stale=repeat>, or read the old numbers of finished ones "
            "with <stale=accept>",
        )
    return repeat


def changed_code_notes(cells: Sequence[GridCell]) -> list[str]:
    """What to say under a table whose runs are partly of other code, read as the user asked.

    One line per reason, with the rows and seeds that it is about.
    """
    found: dict[str, list[str]] = {}
    for cell in cells:
        if note := changed_code_note(RunDir(cell.folder), cell.experiment):
            found.setdefault(note, []).append(f"{cell.label} (seed {cell.seed})")
    return [f"{'; '.join(names)}: {note}" for note, names in found.items()]


def _stop(number: int, frame: object) -> None:
    """End as Ctrl-C does: a closed terminal or a batch system must not leave runs behind."""
    raise KeyboardInterrupt


class RunPool:
    """Runs the cells of a grid in processes and follows them by what their run folders say.

    A run that another program is executing is waited for: it is read when finished, and resumed
    here if that program ends early. `play` returns the faults of failed runs by folder.
    """

    def __init__(self, cells: Sequence[GridCell], workers: int, watch: Watch, options: RunOptions):
        self.cells = list({cell.folder: cell for cell in cells}.values())  # equal ones run once
        self.workers, self.watch, self.options = workers, watch, options
        self.repeat = stale_folders(self.cells, options.stale)
        self.waiting = [cell for cell in self.cells if not self._is_done(cell)]
        self.running: list[RunProcess] = []
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
            ended = [child for child in self.running if not child.running]
            for child in list(self.running):
                self._hear(child)
            for child in ended:
                self.running.remove(child)
                self._tell(self._take(child))
            if not ended:
                self._tell("")
        return self.faults

    def _begin(self, cell: GridCell) -> None:
        """Start a run, unless another process has it or has finished it since."""
        if is_locked(cell.folder):
            self._tell(self._wait_for(cell))
        elif not self._is_done(cell):
            if self.workers and can_travel(cell.experiment):
                self.running.append(RunProcess(cell, self.options))
            else:
                self._tell(self._run_here(cell))

    def _is_done(self, cell: GridCell) -> bool:
        return is_played(cell) and cell.folder not in self.repeat

    def _run_here(self, cell: GridCell) -> str:
        """Run in this process, for lack of workers; what became of it."""
        try:
            run_cell(cell, self.options, self._note(cell), lambda report: self._tell(""))
        except BusyError:
            return self._wait_for(cell)
        except Exception as fault:
            return self._failed(cell, describe_fault(fault))
        self.repeat.discard(cell.folder)
        return f"{_name(cell)}: {_ending(cell)}"

    def _note(self, cell: GridCell) -> Callable[[str], None]:
        """A function that tells a line about a run."""
        return lambda text: self._tell(f"{_name(cell)}: {text}")

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
            try:
                self.repeat |= stale_folders([cell], self.options.stale)
            except StaleRunError as fault:
                self._tell(self._failed(cell, str(fault)))
                continue
            if self._is_done(cell):
                self._tell(f"{_name(cell)}: {_ending(cell)} by another process")
            else:
                self.waiting.insert(0, cell)

    def _take(self, child: RunProcess) -> str:
        """What became of a run."""
        cell, code = child.cell, child.end()
        if code == BUSY:
            return self._wait_for(cell)
        if code == 0:
            self.repeat.discard(cell.folder)
            return f"{_name(cell)}: {_ending(cell)}"
        killed = f"its process ended with code {code}"  # perhaps memory ran out
        return self._failed(cell, child.fault or killed)

    def _hear(self, child: RunProcess) -> None:
        """Tell what a run's process has said."""
        for text in child.messages():
            self._note(child.cell)(text)

    def stop(self) -> None:
        """End whatever still runs; its folder keeps the last checkpoint."""
        for child in self.running:
            child.process.terminate()
        for child in self.running:
            child.end()

    def _rounds(self) -> int:
        return sum(min(_finished(cell), _end(cell)) for cell in self.cells)

    def _tell(self, news: str) -> None:
        now, total = self._rounds(), sum(map(_end, self.cells))
        made, spent = now - self.at_start, time.monotonic() - self.began
        left = spent / made * (total - now) if made else None
        done = sum(_has_ended(cell) and cell.folder not in self.repeat for cell in self.cells)
        self.watch(GridProgress(now, total, done, len(self.cells), left, news))


def _name(cell: GridCell) -> str:
    return f"{cell.label}, seed {cell.seed}"


def is_played(cell: GridCell) -> bool:
    """Whether a cell's run is finished, or has come as far as the cell asks for."""
    place = RunDir(cell.folder)
    if cell.stop_after is None or place.done.exists():
        return place.done.exists()
    return place.find().round >= _end(cell)


def _end(cell: GridCell) -> int:
    """The round up to which a cell is to be played."""
    return pause_round(cell.experiment, cell.stop_after)


def _has_ended(cell: GridCell) -> bool:
    """As `is_played`, but cheap enough to be asked all the time."""
    if RunDir(cell.folder).done.exists():
        return True
    return cell.stop_after is not None and _finished(cell) >= _end(cell)


def _ending(cell: GridCell) -> str:
    """How a run ended that did not fail."""
    if cell.stop_after is None:
        return "finished"
    return f"round {_end(cell)} of {cell.experiment.rounds} finished"


def _finished(cell: GridCell) -> int:
    """The rounds that a run has behind it, counted in its file."""
    try:
        return RunDir(cell.folder).rounds.read_bytes().count(b"\n")
    except OSError:
        return 0
