"""What the figures were taken on, without anything that names the machine or its owner."""

from __future__ import annotations

import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

BFLOAT16_FLAGS = ("avx512_bf16", "amx_bf16")  # either multiplies bfloat16 at full speed
FLAGS = ("avx2", "avx512f", *BFLOAT16_FLAGS, "amx_tile", "asimd", "sve")


def describe() -> dict[str, Any]:
    """Cores, instruction sets, memory and versions."""
    info = Path("/proc/cpuinfo")
    text = info.read_text() if info.exists() else ""
    model = re.search(r"^model name\s*:\s*(.*)", text, re.M)
    have = re.search(r"^(?:flags|Features)\s*:\s*(.*)", text, re.M)
    flags = have[1].split() if have else []
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cores": os.cpu_count(),
        "cpu": model[1].strip() if model else platform.machine(),
        "flags": [flag for flag in FLAGS if flag in flags],
        "capability": torch.backends.cpu.get_cpu_capability(),  # what torch's kernels use
        "memory_gb": round(pages / 2**30),
        "versions": {"Python": platform.python_version(), **_versions()},
    }


def _versions() -> dict[str, str]:
    found = {}
    for name in ("torch", "numpy", "flwr", "ray", "finch-clust"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found
