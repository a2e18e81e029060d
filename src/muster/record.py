"""What a run leaves behind, round by round, in plain types that can be stored anywhere."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from muster.arrays import State


@dataclass
class TrainingRecord:
    """One training: who was used with which weight, who was refused, who failed."""

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


class GroupAccuracy(NamedTuple):
    """How well the global model does on the test samples of one class with one attribute value."""

    label: int
    attribute: int
    accuracy: float
    samples: int


@dataclass
class RoundRecord:
    """One round. Round numbers are 1-based here, as people count."""

    round: int
    trainings: list[TrainingRecord] = field(default_factory=list)
    #: Questions that were asked: (signal names, how many clients were asked, how many answered).
    asks: list[tuple[list[str], int, int]] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    #: One row for each group of the test set, where the data has attributes and the round was evaluated.
    groups: list[GroupAccuracy] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        """No training of the round had a valid update: the model stayed as it was."""
        return not any(training.clients for training in self.trainings)

    def state_dict(self) -> State:
        return asdict(self)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> RoundRecord:
        return cls.from_state(json.loads(text))

    @classmethod
    def from_state(cls, values: dict[str, Any]) -> RoundRecord:
        trainings = [TrainingRecord(**row) for row in values["trainings"]]
        for training in trainings:  # JSON has only strings as keys
            training.rejected = {int(client): why for client, why in training.rejected.items()}
            training.failed = {int(client): why for client, why in training.failed.items()}
        asks = [(list(names), asked, answered) for names, asked, answered in values["asks"]]
        groups = [GroupAccuracy(*row) for row in values.get("groups", [])]
        return cls(values["round"], trainings, asks, dict(values["metrics"]), groups)
