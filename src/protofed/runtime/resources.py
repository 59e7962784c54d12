"""Processors and memory: what the machine has, and what to say when memory runs out."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protofed.errors import ProtofedError

MEMORY_OF_GROUP = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def usable_cores() -> int:
    """The number of processors that this process may use.

    Fewer than the machine has, if its affinity is restricted (containers, ``taskset``).
    """
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory() -> int:
    """How many bytes this process can take before the machine, or its container, runs out.

    The smallest of physical memory, what the kernel calls available, and what is left of the
    container's limit.
    """
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) * 1024)
    for limit, used in MEMORY_OF_GROUP:
        most, now = _read(limit).strip(), _read(used).strip()
        if most.isdigit() and now.isdigit():
            found.append(max(0, int(most) - int(now)))
    return min(found)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:  # not Linux, or no container
        return ""


# How torch, oneDNN and C++ word it; all of them raise a bare RuntimeError.
SIGNS = ("can't allocate memory", "out of memory", "not enough memory", "bad_alloc", "bad alloc")
ASKED = re.compile(r"tried to allocate (\d+) bytes")


def is_out_of_memory(fault: BaseException) -> bool:
    """Whether an exception means that there was not enough memory.

    Torch raises a bare RuntimeError for it, which is recognised by its text.
    """
    if isinstance(fault, RuntimeError):
        text = str(fault).lower()
        return any(sign in text for sign in SIGNS)
    return isinstance(fault, MemoryError) or getattr(fault, "errno", None) == errno.ENOMEM


TRAINING = "use smaller batches (training.batch), a smaller net, or fewer processes (<workers=0>)"


@contextmanager
def explain_oom(whom: str, advice: str = TRAINING) -> Iterator[None]:
    """Turn running out of memory in this block into a `ProtofedError` with advice.

    `whom` begins the text ("client 3, in round 2,") and `advice` is the hint. Other exceptions pass
    unchanged.
    """
    try:
        yield
    except (MemoryError, RuntimeError, OSError) as fault:
        if not is_out_of_memory(fault):
            raise
        asked = ASKED.search(str(fault))
        more = f" when {int(asked[1]) / 1e6:,.1f} MB more were needed" if asked else ""
        raise ProtofedError(f"{whom} ran out of memory{more}", hint=advice) from None


# From glibc's malloc.h. Large tensors then come from the heap, and freed ones stay in it. Without
# this every step pays for new pages, which the kernel must first fill with zeros.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
SETTINGS = {M_MMAP_THRESHOLD: 2**30, M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: 2**26}


def tune_malloc() -> bool:
    """Set up glibc's allocator for training; False if there is no glibc. Changes no result.

    Freed memory is kept for the next batch instead of being returned to the system.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(mallopt(option, value) for option, value in SETTINGS.items())
