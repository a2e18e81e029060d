"""The limit: single-threaded PyTorch processes that only train, in `channels_last`, without any federation.

Every process has the data in RAM as tensors and takes its share of the clients that a round would have. There
is no server, no aggregation and no waiting for each other between rounds. With one worker it is the plain loop.
"Tuned" keeps freed memory in the processes.
"""

from __future__ import annotations

import json
import multiprocessing as mp
import sys
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier

import torch

from harness.allocator import keep_freed_memory
from harness.workload import ClientTensors, Workload, network, train_plainly


def _trainer(number: int, workload: Workload, tuned: bool, start: Barrier, done: Queue[tuple[int, float]]) -> None:
    torch.set_num_threads(1)
    if tuned:
        keep_freed_memory()
    torch.manual_seed(workload.seed)
    model = network(workload)
    if len(workload.shape) == 3:
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    origin = [parameter.detach().clone() for parameter in model.parameters()]
    data = ClientTensors(workload, torch.channels_last)
    share = range(number, workload.rounds * workload.cohort, workload.workers)

    def train(turn: int) -> int:
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), origin, strict=True):
                parameter.copy_(value)
        return train_plainly(model, *data[turn % workload.clients], workload)

    train(number)
    start.wait()
    seen = sum(train(turn) for turn in share)
    done.put((seen, time.perf_counter()))


def measure(workload: Workload, tuned: bool) -> dict[str, float]:
    context = mp.get_context("spawn")
    start, done = context.Barrier(workload.workers + 1), context.Queue()
    trainers = [
        context.Process(target=_trainer, args=(number, workload, tuned, start, done))
        for number in range(workload.workers)
    ]
    for trainer in trainers:
        trainer.start()
    start.wait()
    begin = time.perf_counter()
    results = [done.get() for _ in trainers]
    for trainer in trainers:
        trainer.join()
    return {"samples": sum(seen for seen, _ in results), "seconds": max(end for _, end in results) - begin}


if __name__ == "__main__":
    print(json.dumps(measure(Workload.from_json(sys.argv[1]), tuned=sys.argv[2] == "tuned")))
