"""How a run outlives its process: what the server hands over after every round, and gets back to continue."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from muster.core.arrays import State
from muster.server.ledger import Costs
from muster.server.record import RoundRecord

#: What a run is after a round.
Stage: TypeAlias = Literal["running", "stopped", "complete"]


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """What rounds have left."""

    records: list[RoundRecord] = field(default_factory=list)
    costs: list[Costs] = field(default_factory=list)
    #: For each round: kind of information → number of times that a client sent it.
    disclosed: list[dict[str, int]] = field(default_factory=list)


@dataclass(frozen=True)
class Saved(Rounds):
    """The rounds that are done, and the state that the next one starts from."""

    state: State


class Persistence(ABC):
    """Keeps rounds and checkpoints somewhere: `muster.results.store` in a database."""

    @abstractmethod
    def load(self) -> Saved | None:
        """What an earlier process left of this run; None: start from the beginning."""

    @abstractmethod
    def round_ended(
        self,
        record: RoundRecord,
        costs: Costs,
        disclosed: dict[str, int],
        state: Callable[[], State],
        stage: Stage,
    ) -> None:
        """A round is done. `state()` makes what a checkpoint must hold; it is costly, so call it only when due."""

    @property
    def kept(self) -> int:
        """How many rounds, from the first, it can give back: the server need not remember those."""
        return 0

    def first(self, count: int) -> Rounds:
        """The first `count` rounds, at most `kept`."""
        raise NotImplementedError
