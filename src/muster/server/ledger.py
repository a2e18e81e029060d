"""The ledger: what every round cost, and what kinds of information left the clients.

Rounds are not a fair measure: some methods train several times in a round, others make candidates download the
model. So every run accounts for its work, and comparisons can be made per unit of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields

import numpy as np

from muster.core.arrays import Ints, State
from muster.core.component import Population
from muster.privacy.account import PrivacyAccount
from muster.privacy.noise import Private
from muster.signals.base import Signal
from muster.training.base import LocalTraining
from muster.updates.filters import Filter
from muster.world.devices import Devices

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
    #: Time that the round would have taken on the modelled devices; 0 without a model of devices.
    virtual_seconds: float = 0.0
    #: Time that the round took on this machine, evaluation included (measured; differs between runs).
    seconds: float = 0.0

    def __add__(self, other: Costs) -> Costs:
        return Costs(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Costs)))


@dataclass
class Ledger:
    """Costs and disclosures, round by round."""

    rounds: list[Costs] = field(default_factory=list)
    #: For each round: kind of information → number of times that a client sent it.
    disclosed: list[dict[str, int]] = field(default_factory=list)
    #: What was told with noise, and the guarantee that is left.
    privacy: PrivacyAccount = field(default_factory=PrivacyAccount)

    def open_round(self) -> None:
        self.rounds.append(Costs())
        self.disclosed.append({})

    @property
    def current(self) -> Costs:
        return self.rounds[-1]

    def total(self) -> Costs:
        return sum(self.rounds, Costs())

    def total_disclosed(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for row in self.disclosed:
            for kind, times in row.items():
                total[kind] = total.get(kind, 0) + times
        return total

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


@dataclass(frozen=True)
class Bookkeeper:
    """Turns exchanges into entries of the ledger."""

    ledger: Ledger
    population: Population
    training: LocalTraining
    devices: Devices | None = None

    def asked(self, clients: Ints, answered: Ints, signals: tuple[Signal, ...]) -> None:
        costs = self.ledger.current
        down = self.population.spec.bytes if any(signal.uses_model for signal in signals) else 0
        up = BYTES_PER_NUMBER * sum(signal.width(self.population) for signal in signals)
        probed = self._passes(answered, signals)
        costs.bytes_down += down * len(clients)
        costs.bytes_up += up * len(answered)
        costs.probe_samples += int(probed.sum())
        for signal in signals:
            self.ledger.disclose(signal.discloses, len(answered))
        self._pass_time(answered, probed, down, up)

    def trained(
        self,
        clients: Ints,
        answered: Ints,
        *,
        samples: Ints,
        steps: int,
        report: tuple[Signal, ...],
        vectors_down: int,
        vectors_up: int,
        filters: Sequence[Filter] = (),
    ) -> None:
        """`vectors_*`: flat vectors of the model's size that each client receives and sends; the first of those
        that it sends is the movement, after the `filters` of the client's side."""
        costs, model = self.ledger.current, self.population.spec.bytes
        extra = BYTES_PER_NUMBER * sum(s.width(self.population) for s in report if not s.in_update)
        movement = model
        for step in filters:
            movement = step.sent_bytes(movement, self.population.spec)
        down, up = model * vectors_down, movement + model * (vectors_up - 1) + extra
        told = MODEL_UPDATE
        if self.training.centralised:  # no model travels, because the data did before
            down, up, told = 0, 0, RAW_DATA
        costs.client_trainings += len(answered)
        costs.local_steps += steps
        costs.samples += int(samples.sum())
        costs.probe_samples += int(self._passes(answered, tuple(s for s in report if not s.in_update)).sum())
        costs.bytes_down += down * len(clients)
        costs.bytes_up += up * len(answered)
        self.ledger.disclose(told, len(answered))
        for step in filters:
            if step.discloses:
                self.ledger.disclose(step.discloses, len(answered))
        for signal in report:
            if not signal.in_update:
                self.ledger.disclose(signal.discloses, len(answered))
        self._pass_time(answered, samples, down, up)

    def released(self, clients: Ints, signals: tuple[Signal, ...]) -> None:
        """What clients have told with noise counts, whether or not the server could use their answer."""
        for signal in signals:
            if isinstance(signal, Private):
                self.ledger.privacy.released(signal, clients, self.population.clients)

    def _passes(self, clients: Ints, signals: tuple[Signal, ...]) -> Ints:
        """Samples that each client runs through the model to measure the signals; evaluations share a pass."""
        batch = self.training.batch_size
        distinct, which = np.unique(self.population.sizes[clients], return_inverse=True)
        shared = [signal for signal in signals if signal.evaluates]
        alone = [signal for signal in signals if not signal.evaluates]
        per_size = [
            max((signal.samples(size, batch) for signal in shared), default=0)
            + sum(signal.samples(size, batch) for signal in alone)
            for size in distinct.tolist()
        ]
        return np.array(per_size, dtype=np.int64)[which]

    def _pass_time(self, clients: Ints, samples: Ints, down: int, up: int) -> None:
        """An exchange lasts as long as its slowest client."""
        if self.devices is not None and len(clients):
            times = self.devices.times(clients, samples, down, up).sum(axis=1)
            self.ledger.current.virtual_seconds += float(times.max())
