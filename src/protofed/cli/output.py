"""What the terminal shows: progress on stderr, results on stdout, plain lines when piped."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

import typer

from protofed.errors import printable_text
from protofed.runtime.text_tables import (
    PLAIN_WIDTH,
    TableDocument,
    TableFormat,
    TextTable,
    render_document,
    terminal_table,
)

if TYPE_CHECKING:
    from protofed.experiment.result import RunResult

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


def print_result(result: RunResult, form: TableFormat = "terminal") -> None:
    """Print a finished run: scores by domain, the rules behind them, and where it is stored."""
    from protofed.experiment.result import result_document

    print_document(result_document(result), form)


def echo_line(line: str) -> None:
    """Print one line on stdout; control characters in it are escaped.

    Names may come from any folder or file, and none may steer the terminal.
    """
    typer.echo(printable_text(line))


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
    return None if sys.stdout.isatty() else PLAIN_WIDTH  # a pipe has no width to fit into
