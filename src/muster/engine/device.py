"""Which device and how many workers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from muster.core.errors import ConfigError

WORKERS_PER_ACCELERATOR = 2
#: More than any machine has cores for: a slip of the keyboard, which would fill its memory.
MAX_WORKERS = 1024


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def resolve_device(device: str) -> str:
    """The device to use for "auto" | "cpu" | "cuda" | "cuda:1" | "mps"."""
    # Asking the driver library instead of the runtime keeps this process free to fork workers.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    kind = device.split(":", maxsplit=1)[0]
    present: dict[str, Callable[[], bool]] = {
        "cpu": lambda: True,
        "cuda": torch.cuda.is_available,
        "mps": torch.backends.mps.is_available,
    }
    if device == "auto":
        return next((kind for kind in ("cuda", "mps") if present[kind]()), "cpu")
    if kind not in present:
        raise ConfigError(f"unknown device '{device}'", expected="auto, cpu, cuda, cuda:1 or mps")
    if not present[kind]():
        raise ConfigError(f"device '{device}' is not available here", fix="use device = 'auto' or 'cpu'")
    return device


@contextmanager
def single_threaded() -> Iterator[None]:
    """One thread and a private random state: the conditions that a worker has, so that results are the same."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_num_threads(threads)
