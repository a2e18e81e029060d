"""What a run leaves behind, round by round, in plain types that can be stored anywhere."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from muster.core.arrays import Ints, State, Vector

#: Signals with more numbers per client than this are not kept in records: they would outweigh everything else.
WIDEST_KEPT = 16


#: What became of a client's training: its update is in the model; the selector left it out; a filter refused it;
#: the client failed, left before it had answered, was given up on, or answered to a model that was too old.
Outcome: TypeAlias = Literal["used", "left out", "refused", "failed", "left", "late", "stale"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


@dataclass
class Flown:
    """Trainings that ended while the server waited, in the order in which they did: when, and how."""

    clients: list[int] = field(default_factory=list)
    #: Seconds at which each was told to train, and at which it answered, left or was given up on.
    started: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    #: How many aggregations came between.
    staleness: list[int] = field(default_factory=list)
    outcome: list[Outcome] = field(default_factory=list)


@dataclass
class TrainingRecord:
    """One training: which updates were used with which weight, which clients were refused, which failed."""

    #: Clients whose updates were aggregated, ascending.
    clients: list[int]
    #: Their normalised weights.
    weights: list[float]
    #: Client → why its update was refused.
    rejected: dict[int, str] = field(default_factory=dict)
    #: Client → why it did not answer.
    failed: dict[int, str] = field(default_factory=dict)
    #: Clients whose valid updates the selector left out.
    left_out: list[int] = field(default_factory=list)
    #: Filter → how many updates it saw, changed and refused; only filters that changed or refused some.
    filtered: dict[str, dict[str, int]] = field(default_factory=dict)
    #: Which clients worked from when to when; empty where no time passes.
    flown: Flown = field(default_factory=Flown)


@dataclass
class Observed:
    """What happened in a round on a real federation and does not follow from its description, for a replay."""

    #: Seconds at which the server looked at its clock, in order: when the round began, when orders were sent, when
    #: questions were answered. Everything else follows from when trainings ended (`Flown`).
    moments: list[float] = field(default_factory=list)
    #: Clients that were not there, ascending.
    absent: list[int] = field(default_factory=list)
    #: For each question, the clients that did not answer, ascending.
    silent: list[list[int]] = field(default_factory=list)


class GroupAccuracy(NamedTuple):
    """How well the global model does on the test samples of one class with one attribute value."""

    label: int
    attribute: int
    accuracy: float
    samples: int


@dataclass(frozen=True)
class Report:
    """What clients reported in one exchange: row i of every signal is from `clients[i]`."""

    #: Number of the exchange in its round, from 0.
    exchange: int
    #: Reported with a training; False: asked without one.
    trained: bool
    clients: Ints
    #: Signal → (clients,) or (clients, width) numbers, rounded to float32; very wide signals are left out.
    values: dict[str, Vector]


@dataclass
class RoundRecord:
    """One round. Round numbers are 1-based here."""

    round: int
    trainings: list[TrainingRecord] = field(default_factory=list)
    #: Questions that were asked: (signal names, how many clients were asked, how many answered).
    asks: list[tuple[list[str], int, int]] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    #: One row for each group of the test set, where the data has attributes and the round was evaluated.
    groups: list[GroupAccuracy] = field(default_factory=list)
    #: What the selector wanted to be remembered, by name, e.g. {"clusters": [label of each client]}.
    notes: dict[str, Any] = field(default_factory=dict)
    #: What else happened, in words: a client joined, an answer came too late.
    events: list[str] = field(default_factory=list)
    #: What clients reported. Kept in the store, not in the plain files.
    reports: list[Report] = field(default_factory=list, compare=False, repr=False)
    #: Accuracy on each client's own test data, NaN for clients without; None: not evaluated in this round.
    client_accuracy: Vector | None = field(default=None, compare=False, repr=False)
    #: Seconds at which the round began and ended: virtual ones, or real ones where `observed` is there.
    began: float = 0.0
    ended: float = 0.0
    #: None: time was virtual.
    observed: Observed | None = None

    @property
    def failed(self) -> bool:
        """No training of the round had a valid update: the model stayed as it was."""
        return not any(training.clients for training in self.trainings)

    @property
    def only_waited(self) -> bool:
        """The server waited, and no training ended meanwhile."""
        ended = any(t.clients or t.failed or t.rejected or t.left_out for t in self.trainings)
        return bool(self.trainings) and not ended

    @property
    def last_trained(self) -> list[int]:
        """The clients of the round's last training that changed the model, ascending."""
        return next((training.clients for training in reversed(self.trainings) if training.clients), [])

    def state_dict(self) -> State:
        """Everything in plain types except what individual clients reported (`reports`, `client_accuracy`)."""
        values = asdict(replace(self, reports=[], client_accuracy=None))
        del values["reports"], values["client_accuracy"]
        if self.observed is None:
            del values["observed"]
        return values

    @classmethod
    def from_state(cls, values: dict[str, Any]) -> RoundRecord:
        trainings = [
            TrainingRecord(**{**row, "flown": Flown(**row.get("flown", {}))}) for row in values["trainings"]
        ]
        for training in trainings:  # JSON has only strings as keys
            training.rejected = {int(client): why for client, why in training.rejected.items()}
            training.failed = {int(client): why for client, why in training.failed.items()}
        asks = [(list(names), asked, answered) for names, asked, answered in values["asks"]]
        groups = [GroupAccuracy(*row) for row in values.get("groups", [])]
        return cls(
            values["round"],
            trainings,
            asks,
            dict(values["metrics"]),
            groups,
            notes=dict(values.get("notes", {})),
            events=list(values.get("events", [])),
            began=values.get("began", 0.0),
            ended=values.get("ended", 0.0),
            observed=None if values.get("observed") is None else Observed(**values["observed"]),
        )
