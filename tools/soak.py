"""A long run of a tiny model: memory, time a round and the size of the store (docs/reliability.md).

    python tools/soak.py --rounds 20000

Everything is in one process, and time is processor time. On a busy machine even that varies by a third, with what
else is in the caches, so a fixed piece of work is timed every few rounds, and rounds are measured in units of it.
The run is kept in a store, with a checkpoint after every round, as `muster run` does it.
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil
import torch

import muster
from muster.experiment import from_dict
from muster.results.store import DATABASE
from muster.server.ledger import Ledger
from muster.server.loop import Observer
from muster.server.record import RoundRecord

TINY = {
    "data": {"source": "synthetic", "samples": 400},
    "partition": {"scheme": "iid", "clients": 20},
    "model": {"name": "logistic"},
    "training": {"lr": 0.01, "batch_size": 32},
    "selection": {"method": "random", "clients_per_round": 4},
}


#: Rounds between two pieces of the fixed work.
_APART = 10


def fixed_work() -> None:
    """Of the same kind as a round: small multiplications, Python objects, text."""
    model = torch.nn.Linear(64, 10)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    features, labels = torch.ones(32, 64), torch.zeros(32, dtype=torch.int64)
    for _ in range(40):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(features), labels).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        json.dumps([{"round": number, "clients": list(range(8))} for number in range(10)])


@dataclass
class Soak(Observer):
    """Looks at the process and its store after every block of rounds."""

    folder: Path
    every: int
    #: After each block: processor seconds of its rounds and of the fixed work beside them, megabytes that the
    #: process has, bytes of the database.
    seconds: list[float] = field(default_factory=list)
    fixed: list[float] = field(default_factory=list)
    memory: list[float] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)
    _rounds: float = 0.0
    _fixed: float = 0.0
    _since: float = 0.0

    def started(self, server: object, rounds: int, done: int) -> None:
        fixed_work()  # the first time takes longer
        self._since = time.process_time()

    def round_ended(self, record: RoundRecord, ledger: Ledger) -> None:
        if record.round % _APART:
            return
        now = time.process_time()
        self._rounds += now - self._since
        fixed_work()
        self._fixed += time.process_time() - now
        if record.round % self.every == 0:
            self._block_ended()
        self._since = time.process_time()

    def _block_ended(self) -> None:
        self.seconds.append(self._rounds)
        self.fixed.append(self._fixed)
        self._rounds = self._fixed = 0.0
        gc.collect()
        self.memory.append(psutil.Process().memory_info().rss / 2**20)
        self.stored.append(sum(path.stat().st_size for path in self.folder.glob(f"{DATABASE}*")))


@dataclass(frozen=True)
class Figures:
    """The first block of rounds against the last."""

    rounds: int
    block: int
    first_ms: float
    last_ms: float
    #: By what share the rounds of the last block took longer, in units of the fixed work beside them.
    slower: float
    first_megabytes: float
    last_megabytes: float
    #: Bytes of the database that a round adds, in the first and in the second half of the run.
    first_bytes: float
    last_bytes: float
    database_megabytes: float

    @property
    def grown(self) -> float:
        """By what share memory grew."""
        return self.last_megabytes / self.first_megabytes - 1


def soak(rounds: int, block: int, folder: Path) -> Figures:
    """Run it: `rounds` is a multiple of `block`, and at least four blocks."""
    seen = Soak(folder, block)
    experiment = from_dict(TINY | {"rounds": rounds})
    muster.run(experiment, workers=0, out=folder, observers=[seen])
    blocks, half = len(seen.seconds), len(seen.seconds) // 2
    per_round = 1000 / block
    return Figures(
        rounds,
        block,
        seen.seconds[0] * per_round,
        seen.seconds[-1] * per_round,
        (seen.seconds[-1] / seen.fixed[-1]) / (seen.seconds[0] / seen.fixed[0]) - 1,
        seen.memory[0],
        seen.memory[-1],
        (seen.stored[half - 1] - seen.stored[0]) / (block * (half - 1)),
        (seen.stored[-1] - seen.stored[half]) / (block * (blocks - 1 - half)),
        (folder / DATABASE).stat().st_size / 1e6,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--block", type=int, default=1_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="muster-soak-") as folder:
        figures = soak(options.rounds, options.block, Path(folder))
    print(json.dumps(asdict(figures) | {"grown": figures.grown}, indent=1))
    if abs(figures.slower) > 0.1:
        raise SystemExit(f"a round takes {figures.slower:+.1%} processor time at the end")


if __name__ == "__main__":
    main()
