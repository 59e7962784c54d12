"""Standard streams that somebody may close while we write: a tool then ends, a run goes on."""

from __future__ import annotations

import io
import os
import sys
from typing import TextIO

UNREAD = 141  # 128 + SIGPIPE: how a shell tells of a program whose reader has gone


class QuietStream(io.FileIO):
    """A stream's file; once nobody reads it, what is still written to it goes nowhere."""

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
    """Let results need a reader, and progress none: work is not lost because nobody looks."""
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
