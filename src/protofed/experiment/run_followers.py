"""Who follows a run: the progress display, trackers, and the caller's own function."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from pathlib import Path
from typing import Protocol, Self, TypeAlias, TypeVar, runtime_checkable

from protofed.engines.engine import reply_progress
from protofed.errors import ProtofedError
from protofed.experiment.result import RunResult
from protofed.experiment.round_report import RoundReport
from protofed.runtime.console import format_clock, telling
from protofed.runtime.progress_display import ProgressDisplay
from protofed.spec.experiment_spec import Experiment

Watch: TypeAlias = Callable[[RoundReport], None]
T = TypeVar("T")


@runtime_checkable
class Tracker(Protocol):
    """Logs a run somewhere else: TensorBoard, a database, a chat; three methods, none optional.

    A tracker that raises is reported once and switched off; the run goes on. `start` may be called
    for one run after another. ::

        class PrintScores:
            def start(self, experiment, folder): print(experiment.method.info.label)
            def round(self, report): print(report.round, report.mean)
            def end(self, result): print("not finished" if result is None else result.last.mean)
    """

    def start(self, experiment: Experiment, folder: Path) -> None:
        """Begin or continue a log, before the first round that is played.

        Of a resumed run the folder has the rounds that are kept: `read_reports` returns them.
        """

    def round(self, report: RoundReport) -> None:
        """Log a round that has just been played; of a resumed run perhaps for the second time."""

    def end(self, result: RunResult | None) -> None:
        """Close the log, also after a fault in `round`; no result means that the run is not over.

        Then it was paused, was interrupted or has failed, and may go on with another `start`.
        """


def check_trackers(trackers: Sequence[object]) -> None:
    """Refuse what is no tracker, such as a name, before anything runs or is read."""
    for given in trackers:
        if isinstance(given, type) or not isinstance(given, Tracker):  # a class has its methods
            raise ProtofedError(
                f"trackers: {given!r} is no tracker\ngive a list of objects with the methods "
                "start, round and end, as TensorBoardTracker() from "
                "protofed.tracking.tensorboard_tracker"
            )


class TrackerGuard:
    """A tracker that cannot end a run: its first fault is told as a line, and it is off then.

    Only its log is still closed at the end, if it was begun.
    """

    def __init__(self, tracker: Tracker, tell: Callable[[str], None]):
        self.tracker, self.tell = tracker, tell
        self.on, self.started = True, False

    def start(self, experiment: Experiment, folder: Path) -> None:
        if self.on:
            self._try(lambda: self.tracker.start(experiment, folder))
        self.started = self.on

    def round(self, report: RoundReport) -> None:
        if self.on:
            self._try(lambda: self.tracker.round(report))

    def end(self, result: RunResult | None) -> None:
        if self.started:
            self.started = False
            self._try(lambda: self.tracker.end(result))

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as fault:  # whatever the package raises: the run is worth more
            name, why = type(self.tracker).__name__, f"{type(fault).__name__}: {fault}"
            if self.on:
                self.tell(f"{name} failed and is switched off, the run goes on: {why}")
            self.on = False


class RunWatcher(ProgressDisplay):
    """Shows one run: a bar with round, accuracy and time left; in a log, lines.

    It can be the `watch` argument of `run`. In a log every round is a line; with `patient` there is
    at most one every 30 s, and none if the run ends before.
    """

    def __init__(
        self, experiment: Experiment, folder: Path, finished: int = 0, patient: bool = False
    ):
        super().__init__(
            "round", "{task.fields[mean]}  {task.fields[left]}", each=not patient, patient=patient
        )
        self.rounds, self.finished = experiment.rounds, finished
        self.training, self.step = False, "reading images"
        self.mean = self.left = ""
        self.task = self.bar.add_task("", total=self.rounds, completed=finished, mean="", left="")
        after = f", resuming after round {finished}" if finished else ""
        nets = " and ".join(dict.fromkeys(experiment.net_labels))
        method = experiment.method.info.label
        self.say(f"{method} on {experiment.data.label} with {nets} -> {folder}{after}")

    def __call__(self, report: RoundReport) -> None:
        for notice in report.notices:
            self.say(f"note: {notice}")
        self.finished, self.training, self.step = report.round, True, ""
        if math.isnan(report.seconds_left):
            return  # nothing is trained yet
        self.mean, self.left = report.accuracy, f"{format_clock(report.seconds_left)} left"
        self.bar.update(self.task, completed=report.round, mean=self.mean, left=self.left)
        self.show(f"round {report.round}/{report.rounds}  {self.mean}  {self.left}")

    def status(self) -> str:
        """What is being done, for how long, and the newest score."""
        now = f"training round {self.finished + 1}/{self.rounds}" if self.training else ""
        doing = ": ".join(word for word in (now, self.step) if word)
        left = self.left or f"{format_clock(self.clock() - self.began)} so far"
        return "  ".join(word for word in (doing, self.mean, left) if word)

    def _replied(self, done: int, asked: int) -> None:
        """Take how many clients of an exchange have replied."""
        self._doing(f"{done} of {asked} clients done")

    def _doing(self, step: str) -> None:
        self.step = step
        self.bar.update(self.task, left=f"{step}  {self.left}".rstrip())
        if self.is_notebook:
            self.show(self.status())

    def __enter__(self) -> Self:
        super().__enter__()
        told = telling.get()

        def tell(what: str, done: int, total: int) -> None:
            told(what, done, total)
            self._doing(f"{what}: {done:,} of {total:,}")

        _set_within(self.contexts, telling, tell)
        _set_within(self.contexts, reply_progress, self._replied)
        return self


def _set_within(stack: ExitStack, variable: ContextVar[T], value: T) -> None:
    """Set a context variable until the stack is closed."""
    stack.callback(variable.reset, variable.set(value))


class RunFollowers:
    """All who follow a run, as one function for `ExperimentRun.play`; a context manager.

    Trackers come first, so that a fault of theirs is among the notices that the others are told.
    Whatever happens to the run, each tracker that was started is ended.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        watch: Watch,
        trackers: Sequence[Tracker] = (),
        display: RunWatcher | None = None,
    ):
        self.experiment, self.folder, self.watch, self.display = experiment, folder, watch, display
        self.faults: list[str] = []
        self.trackers = [TrackerGuard(tracker, self.faults.append) for tracker in trackers]
        self.started = False
        self.contexts = ExitStack()

    def __call__(self, report: RoundReport) -> None:
        for tracker in self.trackers:
            if self.started:
                tracker.round(report)
            else:
                tracker.start(self.experiment, self.folder)
        self.started = True
        report = report._replace(notices=(*report.notices, *self.faults))
        self.faults.clear()
        if self.display:
            self.display(report)
        self.watch(report)

    def end(self, result: RunResult | None) -> None:
        """End the trackers; what goes wrong now is said beside the progress, or as a warning."""
        for tracker in self.trackers:
            tracker.end(result)
        for fault in self.faults:
            if self.display:
                self.display.say(f"note: {fault}")
            else:
                warnings.warn(fault, RuntimeWarning, stacklevel=3)
        self.faults.clear()

    def __enter__(self) -> Self:
        if self.display:
            self.contexts.enter_context(self.display)
        self.contexts.callback(self.end, None)
        return self

    def __exit__(self, *fault: object) -> None:
        self.contexts.close()
