"""Freed memory stays in the process: allocating the same size again costs no page faults."""

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource
import torch
from muster.engine.allocator import keep_freed_memory

if {keep}:
    assert keep_freed_memory()
sizes = [5_000_000, 9_000_000, 7_000_000]
def allocate():
    # Ever larger blocks defeat glibc's own adaptation of its threshold.
    for size in sizes:
        torch.zeros(size)
for _ in range(10):
    allocate()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    allocate()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(keep: bool) -> int:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(keep=keep)], capture_output=True, text=True, check=True, timeout=120
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_freed_memory_is_used_again():
    kept, default = faults(keep=True), faults(keep=False)
    assert kept < 500
    assert default > 20 * max(1, kept)
