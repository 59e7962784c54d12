"""What this machine has to give: processors and memory."""

from __future__ import annotations

import os
from pathlib import Path

MEMORY_OF_GROUP = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
)


def usable_cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_memory() -> int:
    """Bytes that may be taken before the machine, or this container, runs out of memory."""
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
