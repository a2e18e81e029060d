"""What is measured: the workloads, the sides that each is run on, and the ratios that Muster is to reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from harness.processes import peer_python, run_side
from harness.report import Target
from harness.workload import Workload

TITLES = {
    "muster": "Muster",
    "bare": "bare PyTorch, tuned",
    "bare-stock": "bare PyTorch",
    "plain": "plain loop, one process",
    "pfl": "pfl-research",
    "flower": "Flower",
    "flower-tensors": "Flower, bare loop",
    "flower-tuned": "Flower, clients tuned",
}


@dataclass(frozen=True)
class Case:
    """A workload with its sides."""

    title: str
    workload: Workload
    targets: tuple[Target, ...]
    #: What the network and the sizes are, for the page.
    description: str
    #: Sides that are run beside Muster's.
    against: tuple[str, ...]
    #: Sides that are so slow that fewer rounds are timed.
    rounds: Mapping[str, int] = field(default_factory=dict)
    #: Sides that cannot hold the population: clients that they have instead.
    clients: Mapping[str, int] = field(default_factory=dict)
    #: pfl-research runs in one process: with the number of threads that serves it best.
    pfl_threads: int = 2

    def sides(self, without: tuple[str, ...] = ()) -> tuple[str, ...]:
        return ("muster", *(side for side in self.against if side.partition("-")[0] not in without))

    def workload_of(self, side: str) -> Workload:
        rounds = self.rounds.get(side, self.workload.rounds)
        return replace(
            self.workload,
            rounds=rounds,
            clients=self.clients.get(side, self.workload.clients),
            workers=1 if side == "plain" else self.workload.workers,
        )

    def measure(self, side: str) -> dict[str, float]:
        """Run a side in fresh processes."""
        text = self.workload_of(side).to_json()
        runs: dict[str, Callable[[], dict[str, float]]] = {
            "muster": lambda: run_side("harness.side_muster", [text]),
            "bare": lambda: run_side("harness.side_bare", [text, "tuned"]),
            "bare-stock": lambda: run_side("harness.side_bare", [text, "stock"]),
            "plain": lambda: run_side("harness.side_bare", [text, "tuned"]),
            "pfl": lambda: run_side("harness.side_pfl", [text, str(self.pfl_threads)], peer_python("pfl")),
            "flower": lambda: run_side("harness.side_flower", [text, "examples"], peer_python("flower")),
            "flower-tensors": lambda: run_side("harness.side_flower", [text, "tensors"], peer_python("flower")),
            "flower-tuned": lambda: run_side("harness.side_flower", [text, "tuned"], peer_python("flower")),
        }
        return runs[side]()


CASES = {
    "femnist-cnn": Case(
        "FEMNIST network",
        Workload(rounds=2),
        (Target("bare", 0.97), Target("pfl", 1.7), Target("flower", 2.0)),
        "conv 5×5×32, pool, conv 5×5×64, pool, 512, 10 on 28×28×1 pictures",
        ("bare", "bare-stock", "pfl", "flower", "flower-tensors", "flower-tuned"),
    ),
    "cifar-cnn": Case(
        "CIFAR-10 network",
        Workload(network="cifar-cnn", clients=1000, samples=50, cohort=50, batch=10, rounds=2),
        (Target("bare", 0.95), Target("pfl", 1.7), Target("flower", 5.0)),
        "conv 3×3×32, conv 3×3×64, pool, 128, 10 on 32×32×3 pictures (pfl-research's recipe)",
        ("bare", "pfl", "flower"),
    ),
    "mlp": Case(
        "MLP, cross-device",
        Workload(network="mlp", clients=1000, samples=50, cohort=50, batch=10, rounds=60),
        (Target("plain", 4.0), Target("pfl", 5.0), Target("flower", 50.0)),
        "784, 64, 10",
        ("plain", "bare", "pfl", "flower"),
        {"plain": 20, "bare": 40, "pfl": 20, "flower": 4},
        pfl_threads=1,
    ),
    "logistic": Case(
        "Logistic regression, large cohort",
        Workload(network="logistic", clients=100_000, samples=20, cohort=1000, batch=10, rounds=40),
        (Target("plain", 10.0), Target("pfl", 10.0), Target("flower", 100.0)),
        "60 features, 10 classes",
        ("plain", "bare", "pfl", "flower"),
        {"plain": 5, "bare": 10, "pfl": 3, "flower": 1},
        clients={"flower": 2000},
        pfl_threads=1,
    ),
    "char-lstm": Case(
        "Character LSTM",
        Workload(network="char-lstm", clients=100, samples=100, cohort=20, batch=10, rounds=3),
        (Target("bare", 0.95), Target("pfl", 1.5), Target("flower", 1.8)),
        "embedding 32, LSTM 128 over 80 characters, 90 classes",
        ("bare", "pfl", "flower"),
        pfl_threads=1,
    ),
}
