"""Fixtures for tests of aggregators: layouts, cohorts of updates, quadratic federations with a known optimum."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from muster.aggregation import Aggregated, Aggregator, Updates
from muster.core.component import Population
from muster.core.parameters import ParameterSpec, SpecEntry
from muster.engine.base import TrainOrder
from muster.engine.trial import TrialEngine
from muster.pacing import Pacing
from muster.pacing.buffered import Buffered
from muster.selection.random import RandomSelection
from muster.server import Server
from muster.server.ledger import Ledger
from muster.server.loop import Observer
from muster.server.record import RoundRecord
from muster.server.result import Result
from muster.world.devices.base import Devices


def _layout(parameters: list[int], buffers: int = 0, counters: int = 0) -> ParameterSpec:
    at, entries = 0, []
    for number, size in enumerate(
        [*parameters, *([buffers] if buffers else []), *([counters] if counters else [])]
    ):
        entries.append(SpecEntry(f"t{number}", (size,), at, at + size))
        at += size
    first, second = len(parameters), len(parameters) + bool(buffers)
    return ParameterSpec(tuple(entries[:first]), tuple(entries[first:second]), tuple(entries[second:]))


def _cohort(movements, clients=None, sizes=None, steps=None, multiplicity=None, **more) -> Updates:
    movements = np.asarray(movements, dtype=np.float32)
    count = len(movements)
    steps = np.ones(count, dtype=np.int64) if steps is None else np.asarray(steps)
    more.setdefault("reports", {"local_progress": steps.astype(float), "start_loss": np.ones(count)})
    more.setdefault("extra", {"control_change": np.zeros_like(movements)})
    multiplicity = np.ones(count, dtype=np.int64) if multiplicity is None else np.asarray(multiplicity)
    if more.get("lr_factors") is not None:
        more["lr_factors"] = np.asarray(more["lr_factors"], dtype=float)
    made = Updates.from_movements(
        movements,
        clients=clients,
        sizes=sizes,
        steps=steps,
        multiplicity=multiplicity,
        lr=more.pop("lr", 0.1),
        **more,
    )
    return replace(made, lr=made.lr * made.lr_factors)


@pytest.fixture
def layout() -> Callable[..., ParameterSpec]:
    """`layout([3, 2], buffers=2, counters=1)`: tensors of these lengths."""
    return _layout


@pytest.fixture
def cohort() -> Callable[..., Updates]:
    """`cohort(movements, sizes=…)`: updates with sensible values for everything that is not given."""
    return _cohort


@pytest.fixture
def population() -> Callable[..., Population]:
    def make(clients: int = 20, parameters: int = 2) -> Population:
        return Population(np.full(clients, 10), 2, _layout([parameters]), 10)

    return make


@pytest.fixture
def advance(population) -> Callable[..., Aggregated]:
    """`advance(aggregator, current, movements, sizes=…)`: one aggregation of a model without buffers."""

    def run(aggregator: Aggregator, current, movements, seed: int = 0, **more) -> Aggregated:
        updates = _cohort(movements, **more)
        aggregator.prepare(population(max(20, len(updates))))
        aggregator.draw_from(np.random.default_rng(seed))
        parameters = np.asarray(current, dtype=np.float32)
        return aggregator.aggregate(parameters, updates, _layout([len(parameters)]))

    return run


@dataclass
class Quadratic:
    """Clients with losses ½·h_k‖w − b_k‖² that take exact gradient steps."""

    centres: np.ndarray
    curvatures: np.ndarray
    lr: float = 0.1

    @property
    def optimum(self) -> np.ndarray:
        """Where the sum of the losses is smallest."""
        return self.curvatures @ self.centres / self.curvatures.sum()

    def movement(self, client: int, start: np.ndarray, steps: int) -> np.ndarray:
        kept = (1 - self.lr * self.curvatures[client]) ** steps
        return (kept - 1) * (start - self.centres[client])

    def run(self, aggregator: Aggregator, rounds: int, steps: list[int]) -> np.ndarray:
        clients = len(self.centres)
        spec = _layout([self.centres.shape[1]])
        aggregator.prepare(Population(np.ones(clients, dtype=np.int64), 2, spec, rounds))
        current = np.zeros(spec.size, dtype=np.float32)
        for _ in range(rounds):
            moved = [self.movement(k, current.astype(float), steps[k]) for k in range(clients)]
            current = aggregator.aggregate(current, _cohort(moved, steps=steps, lr=self.lr), spec).parameters
        return current


@pytest.fixture
def quadratic() -> Quadratic:
    """Three clients that disagree about the optimum and about how curved the world is."""
    return Quadratic(np.array([[4.0, 0.0], [-2.0, 3.0], [0.0, -6.0]]), np.array([1.0, 0.5, 2.0]))


class QuadraticEngine(TrialEngine):
    """Clients of a quadratic federation, trained on the models that the server sends them."""

    def __init__(self, problem: Quadratic, steps: int) -> None:
        clients, size = problem.centres.shape
        super().__init__(clients, sizes=np.full(clients, 100), spec=_layout([size]))
        self._problem, self._local_steps = problem, steps

    def _answers(self, order: TrainOrder, clients: np.ndarray) -> Updates:
        start = order.parameters.astype(float)
        moved = [self._problem.movement(client, start, self._local_steps) for client in clients.tolist()]
        self._rows = np.array(moved, dtype=np.float32).reshape(self._rows.shape)
        return super()._answers(order, clients)


class Trail(Observer):
    """The models of a run, one a round."""

    def started(self, server: Server, rounds: int, done: int) -> None:
        self.server, self.models = server, []

    def round_ended(self, record: RoundRecord, ledger: Ledger) -> None:
        self.models.append(self.server.parameters)


@dataclass
class Asynchronous:
    """A quadratic federation through the real server, with clients of different speed."""

    problem: Quadratic
    speeds: tuple[float, ...] = (10.0, 3.0, 1.0)
    trail: Trail = field(default_factory=Trail)

    @property
    def centre(self) -> np.ndarray:
        """Where the last run has been in its last rounds, on average: individual answers push it about."""
        return np.mean(self.trail.models[-150:], axis=0)

    def run(
        self,
        aggregator: Aggregator,
        rounds: int,
        *,
        pacing: Pacing | None = None,
        per_round: int = 1,
        steps: int = 1,
    ) -> Result:
        """By default all clients are always at work, and every answer is used at once."""
        clients = len(self.problem.centres)
        fast = np.full(clients, 1e15)
        server = Server(
            RandomSelection(clients_per_round=per_round),
            aggregator,
            QuadraticEngine(self.problem, steps),
            devices=Devices(np.array(self.speeds), fast, fast),
            pacing=pacing or Buffered(in_flight=clients, k=1),
            evaluate_every=10_000,
            observers=[self.trail],
        )
        return server.run(rounds)

    def weighted_optimum(self, shares: np.ndarray) -> np.ndarray:
        """Where the sum of the losses is smallest if clients count by shares."""
        curved = shares * self.problem.curvatures
        return curved @ self.problem.centres / curved.sum()

    @staticmethod
    def arrivals(result: Result) -> tuple[np.ndarray, np.ndarray]:
        """Who answered, and the staleness of each answer, in the order of arrival."""
        flown = [training.flown for record in result.records for training in record.trainings]
        return (
            np.concatenate([f.clients for f in flown]).astype(int),
            np.concatenate([f.staleness for f in flown]).astype(int),
        )


@pytest.fixture
def asynchronous(quadratic) -> Asynchronous:
    """The three clients of `quadratic`, one ten times and one three times as fast as the slowest; small steps."""
    return Asynchronous(replace(quadratic, lr=0.05))


@pytest.fixture
def agreed(quadratic) -> Asynchronous:
    """The same clients, all with the same minimum: whoever answers how often, there is one optimum."""
    return Asynchronous(replace(quadratic, centres=np.repeat([[3.0, -2.0]], 3, axis=0)))
