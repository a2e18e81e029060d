"""An engine around another one, for what is to happen between the server and any kind of clients."""

from __future__ import annotations

from collections.abc import Iterator

from muster.core.arrays import Ints, State, Vector
from muster.core.component import Population
from muster.engine.base import AskOrder, Engine, Evaluation, Failed, TrainOrder
from muster.engine.live import Live
from muster.engine.task import Place
from muster.signals.base import Replies, Signal
from muster.training.base import LocalAlgorithm, LocalTraining
from muster.training.objectives import Objective
from muster.updates.filters import Filter
from muster.updates.table import Updates


class WrappedEngine(Engine):
    """Passes everything on to another engine. A subclass overrides what it changes: delays, losses, tampering.

    >>> class Forgetful(WrappedEngine):
    ...     def collect(self):
    ...         for answers in super().collect():
    ...             yield Failed(int(answers.clients[0]), "lost") if len(answers) == 1 else answers
    """

    def __init__(self, inner: Engine) -> None:
        self.inner = inner

    @property
    def population(self) -> Population:
        return self.inner.population

    @property
    def training(self) -> LocalTraining:
        return self.inner.training

    @property
    def algorithm(self) -> LocalAlgorithm:
        return self.inner.algorithm

    @property
    def objective(self) -> Objective:
        return self.inner.objective

    @property
    def filters(self) -> tuple[Filter, ...]:
        return self.inner.filters

    @property
    def trains_as_told(self) -> bool:
        return self.inner.trains_as_told

    @property
    def sums_only(self) -> bool:
        return self.inner.sums_only

    @property
    def live(self) -> Live | None:
        return self.inner.live

    def check_signal(self, signal: Signal) -> None:
        self.inner.check_signal(signal)

    def describe(self) -> str:
        return self.inner.describe()

    def initial_parameters(self) -> Vector:
        return self.inner.initial_parameters()

    def reachable(self, round: int) -> Ints:
        return self.inner.reachable(round)

    def ask(self, order: AskOrder) -> tuple[Replies, list[Failed]]:
        return self.inner.ask(order)

    def start(self, order: TrainOrder) -> None:
        self.inner.start(order)

    def collect(self) -> Iterator[Updates | Failed]:
        return self.inner.collect()

    def matrix(self, clients: Ints) -> Vector:
        return self.inner.matrix(clients)

    def check_root(self) -> None:
        self.inner.check_root()

    def root_movement(self, parameters: Vector, place: Place, lr: float) -> Vector:
        return self.inner.root_movement(parameters, place, lr)

    def settle(self, used: Ints, refused: Ints) -> None:
        self.inner.settle(used, refused)

    def evaluate(self, parameters: Vector) -> Evaluation:
        return self.inner.evaluate(parameters)

    def begin_round(self, round: int) -> None:
        self.inner.begin_round(round)

    def end_round(self) -> None:
        self.inner.end_round()

    def take_events(self) -> list[str]:
        return self.inner.take_events()

    def state_dict(self) -> State:
        return self.inner.state_dict()

    def load_state_dict(self, values: State) -> None:
        self.inner.load_state_dict(values)

    def close(self) -> None:
        self.inner.close()
