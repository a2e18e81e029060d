"""The Engine protocol: `ask`, `start`, `collect`, `evaluate`, whatever the clients are and wherever they run.

Training is `start` and then `collect` of all that were started; afterwards `settle` says whose updates were used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from muster.core.arrays import Floats, Ints, State, Vector, read_only
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.engine.live import Live
from muster.engine.task import ClientTask, Place
from muster.signals.base import Replies, Signal
from muster.training.base import LocalAlgorithm, LocalTraining
from muster.training.objectives import Classification, Objective
from muster.updates.filters import Filter
from muster.updates.table import Updates


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

    def task(self, clients: Ints) -> ClientTask:
        """What these clients are told to do."""
        return ClientTask(
            verb="train",
            clients=clients,
            place=self.place,
            signals=self.report,
            rates=self.rates(clients),
            pull_factors=self.pulls(clients),
            with_broadcast=self.broadcast is not None,
        )

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

    def task(self, clients: Ints) -> ClientTask:
        """What these clients are told to do."""
        rates = np.full(len(clients), self.lr)
        return ClientTask("ask", clients, self.place, self.signals, rates, np.ones(len(clients)))


@dataclass(frozen=True)
class HeldBack:
    """Sums over the samples that are held out for validation."""

    correct: int
    loss_sum: float
    count: int
    #: Of the objective's rows, where there are any.
    total: Floats | None = None


@dataclass(frozen=True)
class RowSums:
    """Sums of an objective's rows (`Objective.rows`), from which its metrics follow."""

    objective: Objective
    total: Floats
    #: clients × numbers; no rows where clients have no test data.
    clients: Floats
    #: attribute values × numbers, where the test data has attributes.
    groups: Floats | None = None


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
    #: Metrics that were computed elsewhere, where there are no such sums (a user's own Flower app).
    measured: Mapping[str, float] | None = None
    #: Where training samples are held out for validation.
    validation: HeldBack | None = None
    #: What is measured besides predicted classes; where samples have no classes, that is all there is.
    row_sums: RowSums | None = None


def no_root_data() -> ConfigError:
    """The error for a method that compares clients with data that the server does not have."""
    return ConfigError(
        "the aggregation compares clients with a training on the server's own data, but the server has none",
        fix="hold out some samples, for example validation = 100 in the section [data]",
    )


class Engine(ABC):
    """Runs clients. Answers come back in an order that does not depend on timing (see `schedule`).

    An experiment's parts have one; `muster.Server(selector, aggregator, engine)` takes any.

    >>> import muster
    >>> from muster.experiment import build_parts
    >>> experiment = muster.Experiment(partition={"scheme": "iid", "clients": 6})
    >>> with build_parts(experiment, workers=0).engine as engine:
    ...     engine.reachable(round=0).tolist(), len(engine.initial_parameters()) == engine.population.spec.size
    ([0, 1, 2, 3, 4, 5], True)
    """

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

    @property
    def objective(self) -> Objective:
        """What clients learn."""
        return Classification()

    @property
    def filters(self) -> tuple[Filter, ...]:
        """What clients do to their updates before they send them, in this order."""
        return ()

    @property
    def trains_as_told(self) -> bool:
        """Whether clients train as `training` and `algorithm` say, so that the work they state can be computed."""
        return True

    @property
    def sums_only(self) -> bool:
        """Whether individual updates are hidden from the server (secure aggregation): many methods need them."""
        return False

    @property
    def live(self) -> Live | None:
        """Clients that work in real time; None: time is virtual, and clients train when they are collected."""
        return None

    def check_signal(self, signal: Signal) -> None:
        """Refuse a signal that these clients cannot measure, for reasons other than the population."""
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
    def start(self, order: TrainOrder) -> None:
        """Start clients on a training. Nothing is handed over before `collect`."""

    @abstractmethod
    def collect(self) -> Iterator[Updates | Failed]:
        """The answers of all that were started, in the order of `schedule`, in parts of any size.

        A part's vectors are valid until the next part is drawn, unless the order says `keep_all`. What clients
        remember of the training is provisional until `settle`: the next training forgets what was not settled.
        """

    def train(self, order: TrainOrder) -> Iterator[Updates | Failed]:
        """Start, and collect everything."""
        self.start(order)
        return self.collect()

    @abstractmethod
    def matrix(self, clients: Ints) -> Vector:
        """After a training with `keep_all`: the movements of `clients` (ascending) as rows of one matrix.

        Rows of other clients may be overwritten to make room, so this is called once.
        """

    def check_root(self) -> None:
        """Refuse methods that need the server's own data, where it has none."""
        raise no_root_data()

    def root_movement(self, parameters: Vector, place: Place, lr: float) -> Vector:
        """How far the model moves in one local training on the server's own data."""
        raise no_root_data()

    @abstractmethod
    def settle(self, used: Ints, refused: Ints) -> None:
        """After a training: whose updates are part of the global model now, and whose are not, both ascending.

        The server's and the clients' halves of an algorithm must agree. So what a client keeps
        between trainings (a control variate, its last model) changes only with an update that was used; otherwise
        it stays as it was before the training.
        """

    @abstractmethod
    def evaluate(self, parameters: Vector) -> Evaluation:
        """Evaluate the global model."""

    def begin_round(self, round: int) -> None:
        """See which clients are there: afterwards `population` and `reachable` hold for the whole round."""
        return

    def end_round(self) -> None:
        """Forget what only lasts for a round."""
        return

    def take_events(self) -> list[str]:
        """What else happened since the last call, in words: a client joined, an answer came too late."""
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
) -> tuple[Replies, list[Failed]]:
    """Answers by client, as aligned arrays, and which clients sent a wrong number of values.

    Signals of one number become one-dimensional.
    """
    widths = {signal.name: signal.width(population) for signal in signals}
    failures = {
        client: Failed(client, f"its '{name}' has the shape {answers[name].shape}, expected ({width},)")
        for client, answers in sorted(values.items())
        for name, width in widths.items()
        if answers[name].shape != (width,)
    }
    clients = np.array(sorted(values.keys() - failures.keys()), dtype=np.int64)
    columns = {}
    for name, width in widths.items():
        rows = [values[client][name] for client in clients.tolist()]
        columns[name] = narrowed(np.stack(rows) if rows else np.empty((0, width)))
    return Replies(clients, columns), list(failures.values())


def narrowed(rows: Floats) -> Floats:
    """clients × width as replies hold it: one-dimensional for signals of one number."""
    return rows[:, 0] if rows.shape[1] == 1 else rows
