"""The C library's memory: kept between training steps instead of given back and asked for again."""

from __future__ import annotations

import ctypes
import platform

# From glibc's malloc.h. Large tensors then come from the heap, and freed ones stay in it: without
# this every step pays for fresh pages, which the kernel must fill with zeros first.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
SETTINGS = {M_MMAP_THRESHOLD: 2**30, M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: 2**26}


def tune_malloc() -> bool:
    """Set up glibc's allocator for training; False where there is no glibc. Changes no result."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return all(mallopt(option, value) for option, value in SETTINGS.items())
