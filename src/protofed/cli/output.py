"""What the terminal shows: progress on stderr, results on stdout, plain lines when piped."""

from __future__ import annotations

import io
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from protofed.errors import printable_text
from protofed.runtime.text_tables import (
    TableDocument,
    TableFormat,
    TextTable,
    render_document,
    terminal_table,
)

if TYPE_CHECKING:
    from protofed.analysis.parallel_runs import GridProgress
    from protofed.experiment.result import RunResult
    from protofed.experiment.runner import RunProgress
    from protofed.spec.experiment_spec import Experiment

UNREAD = 141  # 128 + SIGPIPE: how a shell tells of a program whose reader has gone


class QuietStream(io.FileIO):
    """The file behind stdout or stderr; it stays quiet when its reader has gone.

    Output that is `needed` ends the program as SIGPIPE would; other output is dropped.
    """

    def __init__(self, handle: int, needed: bool):
        super().__init__(handle, "wb", closefd=False)
        self.needed = needed  # whether to go on without a reader makes no sense

    def write(self, content: object) -> int:
        """All that the system takes; a stream that is not needed takes anything."""
        try:
            return super().write(content)  # type: ignore[arg-type]
        except OSError as fault:
            self._close()
            if not self.needed:
                return memoryview(content).nbytes  # type: ignore[arg-type]
            if isinstance(fault, BrokenPipeError):
                raise SystemExit(UNREAD) from None
            raise

    def _close(self) -> None:
        """Lead the stream nowhere, so that Python has nothing to complain of at its end."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


def guard_streams() -> None:
    """Let results on stdout need a reader, and progress on stderr none.

    So ``protofed methods | head`` ends quietly, and a run survives a closed terminal.
    """
    sys.stdout = _guarded(sys.stdout, sys.__stdout__, needed=True)
    sys.stderr = _guarded(sys.stderr, sys.__stderr__, needed=False)


def _guarded(stream: TextIO | None, own: TextIO | None, needed: bool) -> TextIO:
    if stream is None:  # closed from the start
        return open(os.devnull, "w", encoding="utf-8")
    if stream is not own or not isinstance(stream, io.TextIOWrapper):
        return stream  # somebody else's, as in tests
    return io.TextIOWrapper(
        io.BufferedWriter(QuietStream(stream.fileno(), needed)),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


STEPS = 100  # lines at most on a terminal, which rewrites them; a tenth of that elsewhere


def show_count_progress(what: str, done: int, total: int) -> None:
    """A line on stderr that counts up: every per cent on a terminal, every tenth in a file.

    Used for long work inside the library, such as decoding images.
    """
    live = sys.stderr.isatty()
    steps = STEPS if live else STEPS // 10
    if done < total and done * steps // total == (done - 1) * steps // total:
        return
    line = f"{what}: {done:,} of {total:,}"
    if live:
        sys.stderr.write(f"\r{line}" + ("\n" if done == total else ""))
        sys.stderr.flush()
    elif total >= 1000 or done == total:  # a few are done before anyone can read of them
        sys.stderr.write(f"{line}\n")


class ProgressFollower:
    """A progress bar on stderr with lines above it; without a terminal, lines only.

    Use it as a context manager, so the terminal is restored whatever happens.
    """

    def __init__(self, before: str, after: str):
        self.console = Console(stderr=True)
        self.bar = Bar(
            TextColumn(before),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn(after),
            console=self.console,
            disable=not self.console.is_terminal,
        )

    def say(self, line: str) -> None:
        """One line beside the progress."""
        self.console.print(printable_text(line), highlight=False, markup=False, soft_wrap=True)

    def __enter__(self) -> Self:
        self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bar.stop()


class RunWatcher(ProgressFollower):
    """Follows one run: a bar with round, accuracy and time left, or one line per round.

    It is the `watch` argument of `run`.
    """

    def __init__(self, experiment: Experiment, folder: Path, finished: int = 0):
        super().__init__("round", "{task.fields[mean]}  {task.fields[left]}")
        rounds, method = experiment.rounds, experiment.method.info.label
        self.task = self.bar.add_task("", total=rounds, completed=finished, mean="", left="")
        after = f", resuming after round {finished}" if finished else ""
        nets = " and ".join(dict.fromkeys(experiment.nets))
        self.say(f"{method} on {experiment.data.label} with {nets} -> {folder}{after}")

    def __call__(self, progress: RunProgress) -> None:
        for notice in progress.notices:
            self.say(f"note: {notice}")
        if math.isnan(progress.seconds_left):
            return  # nothing is trained yet
        lacks = f" without {', '.join(progress.missing)}" if progress.missing else ""
        mean = f"mean accuracy {format_percent(progress.mean)} %{lacks}"
        left = f"{format_clock(progress.seconds_left)} left"
        if self.console.is_terminal:
            self.bar.update(self.task, completed=progress.round, mean=mean, left=left)
        else:
            self.say(f"round {progress.round}/{progress.rounds}  {mean}  {left}")


class GridWatcher(ProgressFollower):
    """Follows a grid: one bar for all runs with the time left, and one line per run that ends.

    It is the `watch` argument of `run_all`.
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


def format_clock(seconds: float) -> str:
    """A duration for people: ``2:03`` for two minutes and three seconds, ``1:02:03`` with hours."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def print_result(result: RunResult, form: TableFormat = "terminal") -> None:
    """Print a finished run: scores by domain, the rules behind them, and where it is stored."""
    print_document(result_document(result), form)


def result_document(result: RunResult) -> TableDocument:
    """A finished run as tables: scores by domain and, for a personal method, by client.

    The notes are the run's notices, then its folder, digest and duration.
    """
    columns = {result.rules["last"]: result.last, result.rules["last_five"]: result.last_five}
    columns |= {f"{name}, last round": scores for name, scores in result.opinions.items()}
    if result.own is not None:
        columns["own domain only, last round"] = result.own
    domains = list(result.last.domains)
    rows = [
        [result.named(name), *(format_percent(scores.domains[name]) for scores in columns.values())]
        for name in domains
    ]
    rows += [
        [name, *(format_percent(getattr(scores, name)) for scores in columns.values())]
        for name in ("mean", "worst", "spread")
    ]
    tables = [TextTable(["accuracy %", *columns], rows, line_before=len(domains))]
    if result.clients is not None:
        head = ["client's own model on", *map(result.named, domains)]
        own = [[c, *(format_percent(row[d]) for d in domains)] for c, row in result.clients.items()]
        tables.append(TextTable(head, own))
    took = format_clock(result.seconds)
    where = f"run folder: {result.folder}  digest: {result.digest[:12]}  took: {took}"
    notes = [*(f"note: {notice}" for notice in result.notices), where]
    return TableDocument(tables, result.to_dict(), notes=notes)


def echo_line(line: str) -> None:
    """Print one line on stdout; control characters in it are escaped.

    Names may come from any folder or file, and none may steer the terminal.
    """
    typer.echo(printable_text(line))


def format_percent(score: float | None) -> str:
    """Two decimals, or a dash where there is no score."""
    return "-" if score is None else f"{score:.2f}"


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], line_before: int | None = None
) -> None:
    """Print a table on stdout as a terminal shows it.

    For commands that print more than tables; `print_document` has all formats.
    """
    table = TextTable(columns, rows, line_before=line_before)
    sys.stdout.write(terminal_table(table, _width()) + "\n")


def print_document(document: TableDocument, form: TableFormat = "terminal") -> None:
    """Print tables and notes on stdout in one of the formats.

    A terminal limits the width; a pipe gets up to 200 columns.
    """
    sys.stdout.write(render_document(document, form, _width()))


def _width() -> int | None:
    return None if sys.stdout.isatty() else 200  # a pipe has no width to fit into
