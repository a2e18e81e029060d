"""The ledger: what every round cost, and what kinds of information left the clients.

Rounds are not a fair measure: some methods train several times in a round, others make candidates download the
model. So every run accounts for its work, and comparisons can be made per unit of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import NamedTuple

import numpy as np

from muster.core.arrays import Ints, State
from muster.core.component import Population
from muster.privacy.account import PrivacyAccount
from muster.privacy.noise import Private
from muster.signals.base import Signal
from muster.training.base import LocalAlgorithm, LocalTraining
from muster.updates.filters import Filter
from muster.updates.update_noise import UpdateNoise

#: Numbers travel as float32.
BYTES_PER_NUMBER = 4
MODEL_UPDATE = "model update"
RAW_DATA = "training data"


@dataclass
class Costs:
    """The work of one round, or of a whole run."""

    client_trainings: int = 0
    local_steps: int = 0
    #: Samples that clients trained on.
    samples: int = 0
    #: Samples that clients ran through the model to answer questions.
    probe_samples: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    #: Time that the server spent on selection and aggregation (measured; differs between runs).
    server_seconds: float = 0.0
    #: Time that passed on the virtual clock; 0 without a model of devices.
    virtual_seconds: float = 0.0
    #: Time that the round took on this machine, evaluation included (measured; differs between runs).
    seconds: float = 0.0
    #: Wasted trainings: the client left, was late, or its answer was too stale to be used.
    wasted_trainings: int = 0
    #: Bytes that travelled for them, in both directions; they are counted in `bytes_down` and `bytes_up` too.
    wasted_bytes: int = 0
    #: Virtual seconds that clients spent on them.
    wasted_seconds: float = 0.0

    def __add__(self, other: Costs) -> Costs:
        return Costs(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Costs)))


@dataclass
class Ledger:
    """Costs and disclosures, round by round."""

    rounds: list[Costs] = field(default_factory=list)
    #: For each round: kind of information → number of times that a client sent it.
    disclosed: list[dict[str, int]] = field(default_factory=list)
    #: What was disclosed with noise, and the guarantee that is left.
    privacy: PrivacyAccount = field(default_factory=PrivacyAccount)
    #: The sums of the rounds that are not in the lists any more.
    _before: Costs = field(default_factory=Costs)
    _disclosed_before: dict[str, int] = field(default_factory=dict)

    def open_round(self) -> None:
        self.rounds.append(Costs())
        self.disclosed.append({})

    @property
    def current(self) -> Costs:
        return self.rounds[-1]

    def total(self) -> Costs:
        return sum(self.rounds, self._before)

    def total_disclosed(self) -> dict[str, int]:
        return _summed([self._disclosed_before, *self.disclosed])

    def forget(self, count: int) -> None:
        """Keep only the sums of the first `count` rounds: the rounds themselves are kept elsewhere."""
        self._before = sum(self.rounds[:count], self._before)
        self._disclosed_before = _summed([self._disclosed_before, *self.disclosed[:count]])
        del self.rounds[:count], self.disclosed[:count]

    def disclose(self, kind: str, times: int) -> None:
        if times:
            row = self.disclosed[-1]
            row[kind] = row.get(kind, 0) + times

    def state_dict(self) -> State:
        return {
            "rounds": [asdict(costs) for costs in self.rounds],
            "disclosed": self.disclosed,
            "privacy": self.privacy.state_dict(),
        }

    def load_state_dict(self, values: State) -> None:
        self.rounds = [Costs(**row) for row in values["rounds"]]
        self.disclosed = [dict(row) for row in values["disclosed"]]
        self.privacy.load_state_dict(values.get("privacy", {}))


def _summed(rows: Sequence[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for row in rows:
        for kind, times in row.items():
            total[kind] = total.get(kind, 0) + times
    return total


class Load(NamedTuple):
    """Bytes that each client of a training receives and sends."""

    down: int
    up: int


@dataclass(frozen=True)
class Bookkeeper:
    """Turns exchanges into entries of the ledger."""

    ledger: Ledger
    population: Population
    training: LocalTraining

    def question(self, signals: tuple[Signal, ...]) -> Load:
        """What a question costs each client that answers it."""
        down = self.population.spec.bytes if any(signal.uses_model for signal in signals) else 0
        return Load(down, BYTES_PER_NUMBER * sum(signal.width(self.population) for signal in signals))

    def asked(self, clients: Ints, answered: Ints, signals: tuple[Signal, ...]) -> None:
        costs, load = self.ledger.current, self.question(signals)
        costs.bytes_down += load.down * len(clients)
        costs.bytes_up += load.up * len(answered)
        costs.probe_samples += int(self.passes(answered, signals).sum())
        for signal in signals:
            self.ledger.disclose(signal.discloses, len(answered))

    def update(
        self, report: tuple[Signal, ...], vectors_down: int, vectors_up: int, filters: Sequence[Filter] = ()
    ) -> Load:
        """What a training costs each client.

        `vectors_*`: flat vectors of the model's size that it receives and sends; the first of those that it sends
        is the movement, after the `filters` of the client's side.
        """
        if self.training.centralised:  # no model travels, because the data did before
            return Load(0, 0)
        model = self.population.spec.bytes
        extra = BYTES_PER_NUMBER * sum(s.width(self.population) for s in report if not s.in_update)
        movement = model
        for step in filters:
            movement = step.sent_bytes(movement, self.population.spec)
        return Load(model * vectors_down, movement + model * (vectors_up - 1) + extra)

    def dispatched(self, clients: Ints, load: Load) -> None:
        """Clients were sent what they train on."""
        self.ledger.current.bytes_down += load.down * len(clients)

    def arrived(
        self,
        answered: Ints,
        load: Load,
        *,
        samples: int,
        steps: int,
        report: tuple[Signal, ...],
        filters: Sequence[Filter] = (),
    ) -> None:
        """Clients have answered a training, whether or not their updates are used."""
        costs = self.ledger.current
        costs.client_trainings += len(answered)
        costs.local_steps += steps
        costs.samples += samples
        costs.probe_samples += int(self.passes(answered, tuple(s for s in report if not s.in_update)).sum())
        costs.bytes_up += load.up * len(answered)
        self.told(len(answered), report, filters)

    def told(self, answers: int, report: tuple[Signal, ...], filters: Sequence[Filter] = ()) -> None:
        """This many answers to a training have made their disclosures."""
        self.ledger.disclose(RAW_DATA if self.training.centralised else MODEL_UPDATE, answers)
        for step in filters:
            if step.discloses:
                self.ledger.disclose(step.discloses, answers)
        for signal in report:
            if not signal.in_update:
                self.ledger.disclose(signal.discloses, answers)

    def wasted(self, trainings: int, load: Load, seconds: float, *, answered: bool) -> None:
        """Trainings were wasted; `answered`: the answers still came, and were discarded."""
        costs = self.ledger.current
        costs.wasted_trainings += trainings
        costs.wasted_seconds += seconds
        costs.wasted_bytes += trainings * (load.down + (load.up if answered else 0))
        costs.bytes_up += trainings * load.up if answered else 0

    def too_late(
        self, client: int, load: Load, report: tuple[Signal, ...], filters: Sequence[Filter] = ()
    ) -> None:
        """An answer came after the server had stopped waiting; its training has been booked."""
        self.ledger.current.bytes_up += load.up
        self.ledger.current.wasted_bytes += load.up
        self.told(1, report, filters)
        self.released(np.array([client]), report, filters)

    def released(self, clients: Ints, signals: tuple[Signal, ...], filters: Sequence[Filter] = ()) -> None:
        """What clients have disclosed with noise counts, whether or not the server could use their answer.

        `filters`: those of the client's side, where an update came with the signals.
        """
        for sent in (*signals, *filters):
            if isinstance(sent, Private | UpdateNoise):
                self.ledger.privacy.released(sent, clients, self.population.clients)

    def passes(self, clients: Ints, signals: tuple[Signal, ...]) -> Ints:
        """Samples that each client runs through the model to measure the signals; evaluations share a pass."""
        if not signals:
            return np.zeros(len(clients), dtype=np.int64)
        batch = self.training.batch_size
        shared = [signal for signal in signals if signal.evaluates]
        alone = [signal for signal in signals if not signal.evaluates]
        return self._by_size(
            clients,
            lambda size: (
                max((signal.samples(size, batch) for signal in shared), default=0)
                + sum(signal.samples(size, batch) for signal in alone)
            ),
        )

    def spared(self, clients: Ints, signals: tuple[Signal, ...]) -> Ints:
        """Samples that each client need not train on, because measuring the signals has done so."""
        return self._by_size(clients, lambda size: sum(signal.spares(size, self.training) for signal in signals))

    def planned(self, clients: Ints, algorithm: LocalAlgorithm) -> Ints:
        """Samples that each client will train on."""
        training = self.training
        return self._by_size(clients, lambda size: training.samples_for(size) + algorithm.extra_samples(size))

    def _by_size(self, clients: Ints, count: Callable[[int], int]) -> Ints:
        distinct, which = np.unique(self.population.sizes[clients], return_inverse=True)
        return np.array([count(size) for size in distinct.tolist()], dtype=np.int64)[which]
