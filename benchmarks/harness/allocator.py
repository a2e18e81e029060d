"""Lets a process keep the memory that it frees, as Muster's workers do: saves page faults in every step."""

from __future__ import annotations

import ctypes
import sys

# From malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> None:
    """Only for glibc; elsewhere there is nothing to set."""
    if sys.platform.startswith("linux"):
        library = ctypes.CDLL(None)
        library.mallopt(_M_MMAP_THRESHOLD, 2**30)
        library.mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
