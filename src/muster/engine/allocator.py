"""Keeps memory that PyTorch frees inside the process.

glibc gives large blocks back to the system as soon as they are freed, and every training step requests them again:
the page faults cost convolutional networks a tenth or more of their time on a CPU.
"""

from __future__ import annotations

import ctypes
import sys

# From malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Tell glibc to keep what is freed, for the life of this process. False with any other C library."""
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all([mallopt(_M_MMAP_THRESHOLD, 2**30), mallopt(_M_TRIM_THRESHOLD, _LARGEST)])
