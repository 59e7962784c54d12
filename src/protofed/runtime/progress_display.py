"""Progress of a long call on stderr: a bar on a terminal, one line in a notebook, or a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

from protofed.errors import printable_text

LONGEST_SILENCE = 30.0  # seconds between two lines of a log
LOOK = 0.5  # seconds between two looks at the clock
REDRAW = 0.2  # seconds between two versions of a notebook's line


class ProgressDisplay:
    """Shows on stderr how far a long call is; a context manager.

    A terminal gets a bar with lines above it, a notebook one line that is rewritten, anything else
    a log: at least one line every 30 s, also while nothing is reported. With `each`, the log gets
    every progress line at once. A `patient` log keeps silent for the first 30 s, so that short
    calls print nothing. Subclasses call `show`, and `say` for lines that must be seen.
    """

    def __init__(
        self,
        before: str,
        after: str,
        *,
        each: bool = False,
        patient: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.console = Console(stderr=True)
        self.is_notebook = self.console.is_jupyter
        self.is_log = not self.is_notebook and not self.console.is_terminal
        self.each, self.patient, self.clock = each, patient, clock
        self.held: list[str] | None = [] if patient and self.is_log else None  # not yet said
        self.newest = self.shown = ""  # progress lines: the newest, and the one last written
        self.began = self.last = clock()
        self.writing = threading.RLock()  # the clock's thread writes lines, too
        self.ended = threading.Event()
        self.thread: threading.Thread | None = None
        self.contexts = ExitStack()  # what is undone at the end; subclasses add to it
        self.bar = Bar(
            TextColumn(before),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn(after),
            console=self.console,
            disable=self.is_log or self.is_notebook,
        )

    def say(self, line: str) -> None:
        """One line beside the progress."""
        line = printable_text(line)
        with self.writing:
            if self.held is not None:
                self.held.append(line)
            elif self.is_notebook:
                _write(f"\r{line:<{len(self.shown)}}\n")
                self.shown = ""
            elif self.is_log:
                _write(f"{line}\n")
                self.last = self.clock()
            else:
                self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def show(self, line: str) -> None:
        """Take the newest progress line; a log may print it later, or never."""
        with self.writing:
            self.newest = line
            if self.is_notebook and self.clock() - self.last >= REDRAW:
                self._redraw()
            elif self.is_log and self.each:
                self.say(line)
                self.shown = line

    def status(self) -> str:
        """What a log says after a long silence."""
        return self.newest

    def beat(self) -> None:
        """Break a silence of a log that has lasted too long; called twice a second."""
        with self.writing:
            line = self.status()
            if not line or self.clock() - self.last < LONGEST_SILENCE:
                return
            held, self.held = self.held or [], None
            for one in (*held, line):
                self.say(one)
            self.shown = line

    def _redraw(self) -> None:
        """Write over the line of a notebook, where a carriage return works as on a terminal."""
        line = printable_text(self.newest)
        _write(f"\r{line:<{len(self.shown)}}")
        self.shown, self.last = line, self.clock()

    def _keep_beating(self) -> None:
        while not self.ended.wait(LOOK):
            self.beat()

    def __enter__(self) -> Self:
        self.bar.start()
        if self.is_log:
            self.thread = threading.Thread(target=self._keep_beating, daemon=True)
            self.thread.start()
        self.contexts.callback(self._finish)
        return self

    def __exit__(self, *fault: object) -> None:
        self.contexts.close()

    def _finish(self) -> None:
        """Leave the newest line behind, and stop what draws."""
        self.ended.set()
        if self.thread:
            self.thread.join()
        if self.is_notebook and self.newest:
            if self.shown != printable_text(self.newest):
                self._redraw()
            _write("\n")
        elif self.patient and self.held is None and self.newest not in ("", self.shown):
            self.say(self.newest)  # how it ended, where there was a log
        self.bar.stop()


def _write(text: str) -> None:
    """Write to stderr at once; work continues without a reader."""
    with suppress(OSError, ValueError):
        if sys.stderr is not None:  # closed from the start
            sys.stderr.write(text)
            sys.stderr.flush()
