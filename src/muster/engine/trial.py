"""The trial engine: clients that exist only as numbers, for running the real loop without any training."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from muster.core.arrays import Floats, Ints, Vector
from muster.core.component import Population
from muster.core.parameters import ParameterSpec, SpecEntry
from muster.core.randomness import generator
from muster.engine.base import AskOrder, Engine, Evaluation, Failed, TrainOrder, narrowed, schedule
from muster.engine.task import Place
from muster.signals.base import Replies, Signal
from muster.training.base import LocalAlgorithm, LocalTraining, Plain
from muster.updates.table import ANSWER_FIELDS, Updates

#: Numbers for a signal: one row per client of the whole population, or a function (clients, round) → rows.
Script = npt.ArrayLike | Callable[[Ints, int], npt.ArrayLike]

#: What every client states about its training.
_STEPS = 5
#: Clients whose movements are made at once, where not all are kept.
_PART = 256


class TrialEngine(Engine):
    """Clients that answer immediately, with made-up numbers: the same in every run with the same seed.

    >>> from muster.aggregation.fedavg import FedAvg
    >>> from muster.selection.high_loss import HighLoss
    >>> from muster.server import Server
    >>> engine = TrialEngine(4, script={"loss": [0.3, 0.9, 0.1, 0.5]})
    >>> Server(HighLoss(clients_per_round=2), FedAvg(), engine).run(1).selections
    [[[1, 3]]]
    """

    def __init__(
        self,
        clients: int = 10,
        *,
        sizes: npt.ArrayLike | None = None,
        classes: int = 4,
        attributes: int | None = 2,
        spec: ParameterSpec | None = None,
        seed: int = 0,
        script: Mapping[str, Script] | None = None,
        movements: Script | None = None,
        training: LocalTraining | None = None,
        algorithm: LocalAlgorithm | None = None,
    ) -> None:
        """`script` has the numbers of signals by name, `movements` those of updates; the rest is made up."""
        drawn = generator(seed, "fake sizes").integers(20, 200, clients)
        self._population = Population(
            drawn if sizes is None else np.asarray(sizes, dtype=np.int64),
            classes,
            small_spec(classes) if spec is None else spec,
            rounds=0,
            attributes=attributes,
            has_devices=True,
            timed_availability=True,
        )
        self._seed, self._script, self._movements = seed, dict(script or {}), movements
        self._training, self._algorithm = training or LocalTraining(), algorithm or Plain()
        self._started: list[TrainOrder] = []
        self._cohort: Ints = np.empty(0, dtype=np.int64)
        self._rows: Vector = np.empty((0, 0), dtype=np.float32)

    @property
    def population(self) -> Population:
        return self._population

    @property
    def training(self) -> LocalTraining:
        return self._training

    @property
    def algorithm(self) -> LocalAlgorithm:
        return self._algorithm

    @property
    def trains_as_told(self) -> bool:
        return False

    def describe(self) -> str:
        return f"trial engine: {self.population.clients} clients with made-up numbers"

    def initial_parameters(self) -> Vector:
        return np.zeros(self.population.spec.size, dtype=np.float32)

    def ask(self, order: AskOrder) -> tuple[Replies, list[Failed]]:
        clients = np.sort(order.clients)
        columns = {s.name: narrowed(self._values(s, clients, order.place.round)) for s in order.signals}
        return Replies(clients, columns), []

    def start(self, order: TrainOrder) -> None:
        self._started.append(order)

    def collect(self) -> Iterator[Updates | Failed]:
        while self._started:
            order = self._started.pop(0)
            self._cohort = schedule(order.clients, self.population.sizes)
            part = max(1, len(self._cohort)) if order.keep_all else _PART
            for start in range(0, len(self._cohort), part):
                clients = self._cohort[start : start + part]
                self._rows = self._moved(clients, order.place.round)
                yield self._answers(order, clients)

    def _answers(self, order: TrainOrder, clients: Ints) -> Updates:
        sizes = self.population.sizes[clients]
        stated = {name: np.zeros(len(clients), dtype=f.dtype) for name, f in ANSWER_FIELDS.items()}
        return Updates(
            clients,
            sizes,
            self._rows,
            stated | {"steps": stated["steps"] + _STEPS, "samples": sizes},
            reports={s.name: self._values(s, clients, order.place.round) for s in order.report},
            extra={name: self._rows.copy() for name in self.algorithm.extra},
        )

    def matrix(self, clients: Ints) -> Vector:
        ranks = np.argsort(self._cohort)
        return self._rows[ranks[np.searchsorted(self._cohort, clients, sorter=ranks)]]

    def check_root(self) -> None:
        """The server has as much data as these clients: none is needed."""

    def root_movement(self, parameters: Vector, place: Place, lr: float) -> Vector:
        everybody = np.arange(self.population.clients)
        return np.asarray(self._moved(everybody, place.round).mean(axis=0))

    def settle(self, used: Ints, refused: Ints) -> None:
        """These clients remember nothing."""

    def evaluate(self, parameters: Vector) -> Evaluation:
        nothing = np.zeros(0, dtype=np.int64)
        return Evaluation(nothing.reshape(0, 0), 0.0, nothing, np.zeros(0), nothing)

    def _values(self, signal: Signal, clients: Ints, round: int) -> Floats:
        return made_up(signal, clients, round, self.population, seed=self._seed, script=self._script)

    def _moved(self, clients: Ints, round: int) -> Vector:
        width = self.population.spec.size
        if self._movements is not None:
            rows = _scripted(self._movements, clients, round, width)
        else:
            rows = _uniform(f"{self._seed} {round} movement", clients, width) - 0.5
        return rows.astype(np.float32)


def made_up(
    signal: Signal,
    clients: Ints,
    round: int,
    population: Population,
    *,
    seed: int = 0,
    script: Mapping[str, Script] | None = None,
) -> Floats:
    """clients × width: what these clients answer in a round, by the script or else made up."""
    width = signal.width(population)
    scripted = (script or {}).get(signal.name)
    if scripted is not None:
        return _scripted(scripted, clients, round, width)
    uniform = _uniform(f"{seed} {round} {signal.name}", clients, width)
    if signal.name == "label_histogram":
        counts: Floats = np.floor(10 * uniform) + (np.arange(width) == clients[:, None] % width)
        return counts
    return uniform - 0.5 if signal.in_update and width > 1 else uniform


def _scripted(script: Script, clients: Ints, round: int, width: int) -> Floats:
    rows = script(clients, round) if callable(script) else np.asarray(script, dtype=np.float64)[clients]
    return np.array(rows, dtype=np.float64).reshape(len(clients), width)


def _uniform(key: str, clients: Ints, width: int) -> Floats:
    """Numbers in [0, 1) that depend on the key, the client and the column alone."""
    columns: npt.NDArray[np.uint64] = np.arange(width, dtype=np.uint64)
    cells: npt.NDArray[np.uint64] = clients.astype(np.uint64)[:, None] * np.uint64(width) + columns
    return _scrambled(cells + (np.uint64(zlib.crc32(key.encode())) << np.uint64(32)))


def _scrambled(keys: npt.NDArray[np.uint64]) -> Floats:
    """A number in [0, 1) for every key (the finaliser of SplitMix64): the same wherever it is computed."""
    keys = (keys ^ (keys >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    keys = (keys ^ (keys >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    uniform: Floats = ((keys ^ (keys >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return uniform


def small_spec(classes: int, hidden: int = 3) -> ParameterSpec:
    """The layout of a small two-layer classifier."""
    shapes = {
        "fc1.weight": (hidden, 4),
        "fc1.bias": (hidden,),
        "fc2.weight": (classes, hidden),
        "fc2.bias": (classes,),
    }
    entries, at = [], 0
    for name, shape in shapes.items():
        size = int(np.prod(shape))
        entries.append(SpecEntry(name, shape, at, at + size))
        at += size
    return ParameterSpec(tuple(entries), final_layer_name="fc2")
