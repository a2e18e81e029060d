"""How long the installed command takes until the first round can train, on a data set of 60,000 pictures."""

from __future__ import annotations

import gzip
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt

from harness.processes import SideFailed, environment
from harness.workload import Workload, arrays

_CONFIG = """
name = "start-up"
rounds = 1
[data]
source = "fashion-mnist"
[partition]
scheme = "iid"
clients = {clients}
[model]
name = "femnist-cnn"
[training]
batch_size = {batch}
steps = 1
[selection]
method = "random"
clients_per_round = {cohort}
"""


def write_idx(path: Path, array: npt.NDArray[np.uint8]) -> None:
    """The file format of MNIST and its successors."""
    shape = b"".join(length.to_bytes(4, "big") for length in array.shape)
    path.write_bytes(gzip.compress(bytes([0, 0, 8, array.ndim]) + shape + array.tobytes(), compresslevel=1))


def prepare(folder: Path, workload: Workload) -> Path:
    """Files like Fashion-MNIST's with the benchmark's pictures, and an experiment on them."""
    features, labels = arrays(workload)
    data = folder / "fashion-mnist"
    data.mkdir()
    for name, rows in {"train": slice(None), "t10k": slice(0, 10_000)}.items():
        write_idx(data / f"{name}-images-idx3-ubyte.gz", features[rows, 0])
        write_idx(data / f"{name}-labels-idx1-ubyte.gz", labels[rows].astype(np.uint8))
    config = folder / "start-up.toml"
    config.write_text(
        _CONFIG.format(clients=workload.clients, batch=workload.batch, cohort=workload.cohort), encoding="utf-8"
    )
    return config


def seconds_to_first_round(config: Path, workers: int, out: Path) -> float:
    """From the start of the process to the line by which `muster run` says that set-up is over."""
    command = [str(Path(sys.executable).parent / "muster"), "run", str(config)]
    begin = time.perf_counter()
    with subprocess.Popen(
        [*command, "--workers", str(workers), "--out", str(out)],
        env=environment(MUSTER_DATA=str(config.parent), MUSTER_CACHE=str(config.parent / "cache")),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        seen = []
        for line in process.stderr:
            seen.append(line)
            if "worker process" in line:
                seconds = time.perf_counter() - begin
                process.stderr.read()
                break
        else:
            raise SideFailed("".join(seen[-30:]))
    return seconds


def measure(workload: Workload, repeats: int) -> list[float]:
    """Seconds of every start; the first one also decodes the data files, later ones find them in the cache."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        config = prepare(folder, workload)
        return [
            seconds_to_first_round(config, workload.workers, folder / f"out{number}") for number in range(repeats)
        ]
