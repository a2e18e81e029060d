"""What the processor can do: the rates of a large convolution and matrix product, one thread on every core."""

from __future__ import annotations

import json
import multiprocessing as mp
import statistics
import sys
import time
from collections.abc import Callable
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier

import torch
from torch import nn

from harness.allocator import keep_freed_memory

SECONDS = 3.0


def _rates(start: Barrier, found: Queue[dict[str, float]]) -> None:
    torch.set_num_threads(1)
    keep_freed_memory()
    pictures = torch.randn(32, 64, 28, 28).to(memory_format=torch.channels_last)
    filters = torch.randn(64, 64, 3, 3).to(memory_format=torch.channels_last)
    matrix = torch.randn(512, 512)
    kernels: dict[str, tuple[Callable[[], object], int]] = {
        "convolution": (
            lambda: nn.functional.conv2d(pictures, filters, padding=1),
            2 * 32 * 64 * 28 * 28 * 64 * 9,
        ),
        "matrix product": (lambda: matrix @ matrix, 2 * 512**3),
    }
    answer = {}
    for name, (kernel, operations) in kernels.items():
        kernel()
        start.wait()
        times, end = [], time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            begin = time.perf_counter()
            kernel()
            times.append(time.perf_counter() - begin)
        answer[name] = operations / statistics.median(times)
    found.put(answer)


def measure(workers: int) -> dict[str, float]:
    """Floating-point operations a second, of all workers together, by kernel."""
    context = mp.get_context("spawn")
    start, found = context.Barrier(workers), context.Queue()
    processes = [context.Process(target=_rates, args=(start, found)) for _ in range(workers)]
    for process in processes:
        process.start()
    answers = [found.get() for _ in processes]
    for process in processes:
        process.join()
    return {name: sum(answer[name] for answer in answers) for name in answers[0]}


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
