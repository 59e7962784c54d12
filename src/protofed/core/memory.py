"""Memory that runs out, told to people: whose work it was, how much was missing, what to do."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

from protofed.core.errors import ProtofedError

# What torch, oneDNN and C++ say of it; all of them raise a bare RuntimeError.
SIGNS = ("can't allocate memory", "out of memory", "not enough memory", "bad_alloc", "bad alloc")
ASKED = re.compile(r"tried to allocate (\d+) bytes")


def is_out_of_memory(fault: BaseException) -> bool:
    """Whether a fault means that there was not enough memory."""
    if isinstance(fault, RuntimeError):
        told = str(fault).lower()
        return any(sign in told for sign in SIGNS)
    return isinstance(fault, MemoryError) or getattr(fault, "errno", None) == errno.ENOMEM


TRAINING = "use smaller batches (training.batch), a smaller net, or fewer processes (--workers 0)"


@contextmanager
def explain_oom(whom: str, advice: str = TRAINING) -> Iterator[None]:
    """Say of memory that runs out in here that it was `whom` who needed it, and what helps."""
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as fault:
        if not is_out_of_memory(fault):
            raise
        asked = ASKED.search(str(fault))
        more = f" when {int(asked[1]) / 1e6:,.1f} MB more were needed" if asked else ""
        raise ProtofedError(f"{whom} ran out of memory{more}\n{advice}") from None
