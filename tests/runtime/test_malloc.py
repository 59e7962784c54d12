"""The allocator's settings hold memory and change no result."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

CODE = """
import resource, sys, torch
from protofed.runtime.resources import tune_malloc
torch.set_num_threads(1)
print(tune_malloc()) if "keep" in sys.argv else print("plain")
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
# larger than what glibc would keep by itself
step = lambda: (torch.ones(12_000_000) * 3).sum()
before = [step() for _ in range(12)]
start = faults()
total = sum(float(step()) for _ in range(5))
print(faults() - start)
print(total)
"""


@pytest.mark.long
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_memory_is_kept_between_steps() -> None:
    def lines(*words: str) -> list[str]:
        command = [sys.executable, "-c", CODE, *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    kept, plain = lines("keep"), lines()
    assert kept[0] == "True"
    assert int(kept[1]) < int(plain[1]) / 4  # pages that the kernel had to bring
    assert kept[2] == plain[2]
