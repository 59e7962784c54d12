"""Progress of work that a command did not name, such as packing a folder of images: on stderr."""

from __future__ import annotations

import sys

STEPS = 100  # lines at most on a terminal, which rewrites them; a tenth of that elsewhere


def show_count_progress(what: str, done: int, total: int) -> None:
    """A line that counts up, every per cent on a terminal and every tenth in a file."""
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
