"""The Engine protocol: `ask`, `train` and `settle`, `evaluate`, whoever the clients are and wherever they run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from muster.core.arrays import Bools, Floats, Ints, State, Vector, read_only
from muster.core.component import Population
from muster.signals.base import Replies, Signal
from muster.training.base import LocalAlgorithm, LocalTraining

if TYPE_CHECKING:
    from muster.aggregation.base import Aggregator
    from muster.selection.base import Selector
    from muster.updates.guard import Guard


@dataclass(frozen=True)
class Place:
    """Where in the run an exchange happens. Random draws on clients are derived from it."""

    round: int
    #: How many trainings came before in this round.
    iteration: int
    #: How many exchanges (asks and trainings) came before in this round.
    exchange: int
    #: How many rounds the run has, where that is known here.
    rounds: int = 0


@dataclass(frozen=True)
class Trained:
    """One client's answer to a training request, before the guard has looked at it."""

    client: int
    #: w_k − w^t; a view that is valid until the next answer is drawn (unless the whole matrix was asked for).
    movement: Vector
    #: Local steps and samples of this training; what a probe did before is not counted again.
    steps: int
    samples: int
    reports: Mapping[str, Floats]
    #: Steps that a probe had done: the movement holds them too.
    credited_steps: int = 0
    extra: Mapping[str, Vector] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainedSlice:
    """The answers of several clients at once, row by row. Vectors are valid until the next slice is drawn."""

    clients: Ints
    #: clients × parameters.
    movements: Vector
    steps: Ints
    samples: Ints
    credited_steps: Ints
    #: clients × width, by signal.
    reports: Mapping[str, Floats]
    #: clients × parameters, by name.
    extra: Mapping[str, Vector]

    @classmethod
    def of(cls, answer: Trained) -> TrainedSlice:
        return cls(
            clients=np.array([answer.client]),
            movements=answer.movement[None],
            steps=np.array([answer.steps]),
            samples=np.array([answer.samples]),
            credited_steps=np.array([answer.credited_steps]),
            reports={name: values[None] for name, values in answer.reports.items()},
            extra={name: vector[None] for name, vector in answer.extra.items()},
        )

    def __iter__(self) -> Iterator[Trained]:
        numbers = zip(
            self.clients.tolist(),
            self.steps.tolist(),
            self.samples.tolist(),
            self.credited_steps.tolist(),
            strict=True,
        )
        for row, (client, steps, samples, credited) in enumerate(numbers):
            yield Trained(
                client=client,
                movement=self.movements[row],
                steps=steps,
                samples=samples,
                reports={name: rows[row] for name, rows in self.reports.items()},
                credited_steps=credited,
                extra={name: rows[row] for name, rows in self.extra.items()},
            )

    def some(self, rows: Ints | Bools) -> TrainedSlice:
        """Only these rows; vectors are copied."""
        return TrainedSlice(
            clients=self.clients[rows],
            movements=self.movements[rows],
            steps=self.steps[rows],
            samples=self.samples[rows],
            credited_steps=self.credited_steps[rows],
            reports={name: values[rows] for name, values in self.reports.items()},
            extra={name: vectors[rows] for name, vectors in self.extra.items()},
        )

    def without_vectors(self) -> TrainedSlice:
        """Only the numbers: movements and extra vectors will be overwritten."""
        nothing: Vector = np.empty((len(self.clients), 0), dtype=np.float32)
        return replace(self, movements=nothing, extra={})


@dataclass(frozen=True)
class Failed:
    """A client that did not answer, and why."""

    client: int
    reason: str


@dataclass(frozen=True)
class TrainOrder:
    """Everything that a training request needs to be carried out."""

    clients: Ints
    parameters: Vector
    place: Place
    lr: float
    report: tuple[Signal, ...] = ()
    broadcast: Vector | None = None
    #: Keep every movement valid until the next exchange, instead of reusing a few buffers.
    keep_all: bool = False
    #: Aligned with `clients`: factors of the learning rate and of the algorithm's proximal strength; None: 1.
    lr_factors: Floats | None = None
    pull_factors: Floats | None = None

    def rates(self, clients: Ints) -> Floats:
        """The learning rate of each of these clients."""
        return self.lr * self._aligned(self.lr_factors, clients)

    def pulls(self, clients: Ints) -> Floats:
        """The factor of the proximal strength of each of these clients."""
        return self._aligned(self.pull_factors, clients)

    def _aligned(self, factors: Floats | None, clients: Ints) -> Floats:
        if factors is None:
            return np.ones(len(clients))
        ranks = np.argsort(self.clients)
        return np.asarray(factors, dtype=np.float64)[ranks[np.searchsorted(self.clients, clients, sorter=ranks)]]


@dataclass(frozen=True)
class AskOrder:
    """Everything that a question to clients needs."""

    clients: Ints
    parameters: Vector
    place: Place
    lr: float
    signals: tuple[Signal, ...]


@dataclass(frozen=True)
class HeldBack:
    """Sums over the samples that are kept back for validation."""

    correct: int
    loss_sum: float
    count: int


@dataclass(frozen=True)
class Evaluation:
    """Sums from which every metric follows. Per-client arrays are empty where clients have no test data."""

    #: classes × classes, rows are true labels.
    confusion: Ints
    loss_sum: float
    client_correct: Ints
    client_loss_sum: Floats
    client_count: Ints
    #: classes × attribute values, where the test data has attributes.
    group_correct: Ints | None = None
    group_count: Ints | None = None
    #: Metrics that somebody else computed, where there are no such sums (a Flower app of the user's own).
    measured: Mapping[str, float] | None = None
    #: Where training samples are kept back for validation.
    validation: HeldBack | None = None


class Engine(ABC):
    """Runs clients. Answers come back in an order that does not depend on timing (see `schedule`)."""

    @property
    @abstractmethod
    def population(self) -> Population:
        """What is known about the clients now; it may grow between rounds."""

    @property
    @abstractmethod
    def training(self) -> LocalTraining:
        """How clients train: the server takes the learning rate of each round from it."""

    @property
    @abstractmethod
    def algorithm(self) -> LocalAlgorithm:
        """What clients do differently from plain optimisation."""

    def check_methods(self, selector: Selector, aggregator: Aggregator, guard: Guard) -> None:
        """Raise ConfigError where methods need what these clients cannot or must not give."""
        return

    @abstractmethod
    def describe(self) -> str:
        """One line for people: which engine, how many workers, why."""

    @abstractmethod
    def initial_parameters(self) -> Vector:
        """The parameters of the model as it was built."""

    def reachable(self, round: int) -> Ints:
        """Ids of the clients that can be reached in a round, ascending."""
        return _everybody(self.population.clients)

    @abstractmethod
    def ask(self, order: AskOrder) -> tuple[Replies, list[Failed]]:
        """Measure signals on clients."""

    @abstractmethod
    def train(self, order: TrainOrder) -> Iterator[Trained | Failed]:
        """Train clients; one answer for each, in the order of `schedule`.

        What clients remember of it is provisional until `settle`: the next training forgets what was not settled.
        """

    def train_slices(self, order: TrainOrder) -> Iterator[TrainedSlice | Failed]:
        """The same; an engine that has the answers of several clients together hands them over together."""
        for answer in self.train(order):
            yield answer if isinstance(answer, Failed) else TrainedSlice.of(answer)

    @abstractmethod
    def matrix(self, clients: Ints) -> Vector:
        """After a training with `keep_all`: the movements of `clients` (ascending) as rows of one matrix.

        Rows of other clients may be overwritten to make room, so this is called once.
        """

    @abstractmethod
    def settle(self, used: Ints, refused: Ints) -> None:
        """After a training: whose updates are part of the global model now, and whose are not, both ascending.

        The server's and the clients' halves of an algorithm must tell the same story. So what a client keeps
        between trainings (a control variate, its last model) goes on only with an update that was used; otherwise
        it stays as it was before the training.
        """

    @abstractmethod
    def evaluate(self, parameters: Vector) -> Evaluation:
        """Evaluate the global model."""

    def begin_round(self, round: int) -> None:
        """Look who is there: afterwards `population` and `reachable` hold for the whole round."""
        return

    def end_round(self) -> None:
        """Forget what only lives for a round."""
        return

    def take_events(self) -> list[str]:
        """What happened since the last call beside answers, in words: somebody joined, an answer came too late."""
        return []

    def state_dict(self) -> State:
        """What clients keep between rounds, where the engine holds it for them."""
        return {}

    def load_state_dict(self, values: State) -> None:
        """Restore it."""
        return

    def close(self) -> None:
        """Give back processes and memory."""
        return

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@lru_cache(maxsize=2)
def _everybody(clients: int) -> Ints:
    # The same array in every round: for a million clients, making it takes as long as some trainings.
    return read_only(np.arange(clients))


def schedule(clients: Ints, sizes: Ints) -> Ints:
    """The order in which clients are served and answers are handed over: longest task first, ties by id.

    Starting long tasks first keeps workers from waiting for a straggler at the end; and because the order is a
    function of the request alone, sums over answers do not depend on who finished first.
    """
    clients = np.sort(clients)
    return clients[np.argsort(-sizes[clients], kind="stable")]


def collect_replies(
    values: dict[int, dict[str, Floats]], signals: tuple[Signal, ...], population: Population
) -> Replies:
    """Answers by client, as aligned arrays; signals of one number become one-dimensional."""
    clients = np.array(sorted(values), dtype=np.int64)
    columns = {}
    for signal in signals:
        rows = [values[int(client)][signal.name] for client in clients]
        stacked = np.stack(rows) if rows else np.empty((0, signal.width(population)))
        columns[signal.name] = narrowed(stacked)
    return Replies(clients, columns)


def narrowed(rows: Floats) -> Floats:
    """clients × width as replies hold it: one-dimensional for signals of one number."""
    return rows[:, 0] if rows.shape[1] == 1 else rows
