"""What selectors, aggregators and local algorithms have in common: hyper-parameters, checks, state."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from muster.core.arrays import Ints, State
from muster.core.parameters import ParameterSpec

T = TypeVar("T")

_STATE = "muster.state"


def state(factory: Callable[[], T]) -> T:
    """A dataclass field that holds state between rounds: not a constructor argument, saved in checkpoints."""
    field: T = dataclasses.field(
        init=False, repr=False, compare=False, default_factory=factory, metadata={_STATE: True}
    )
    return field


@dataclass(frozen=True)
class Population:
    """What is known about the federation before round 1, for checks and set-up."""

    sizes: Ints
    classes: int
    spec: ParameterSpec
    rounds: int
    attributes: int | None = None
    has_devices: bool = False
    #: How many clients a round has, where the selection fixes that in advance.
    cohort: int | None = None
    #: Every sample has one class; False: targets are something else (numbers, several labels, texts).
    class_labels: bool = True
    #: A loss may be negative: a user's own may be, the usual ones of the tasks are not.
    negative_losses: bool = False
    #: Clients come and go on the virtual clock, and can say for how long they will be there.
    timed_availability: bool = False
    #: Whether answers to older models may count, by the run's pacing; None where that is not known.
    late_answers: bool | None = None

    @property
    def clients(self) -> int:
        return len(self.sizes)


class Component:
    """Hyper-parameters come through the constructor, which only stores them; `check` judges them."""

    def check(self, population: Population) -> None:
        """Raise ConfigError if hyper-parameters are out of range or do not fit this population."""

    def cautions(self, population: Population) -> list[str]:
        """What reduces the method to a simpler one in this federation, one sentence each; shown before round 1.

        Such options are allowed, and a run with them is sound; but it does not show what the method can do.
        """
        return []

    def depends_on_length(self) -> str:
        """Why its decisions depend on how many rounds the run is planned for, as the end of "because …".

        Empty: they do not, so the first rounds of a longer run are those of a shorter one, which can be extended.
        A user's own method has to declare this itself; if it does not, its runs are not extended.
        """
        return ""

    def needs_classes(self) -> bool:
        """Whether it makes sense only where every sample has one class."""
        return False

    def get_params(self) -> dict[str, Any]:
        """The hyper-parameters by name."""
        if not dataclasses.is_dataclass(self):
            return {}
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.init}

    def state_dict(self) -> State:
        """Everything kept between rounds: the fields declared with `state(...)`."""
        return {name: copy.deepcopy(getattr(self, name)) for name in self._state_fields()}

    def load_state_dict(self, values: State) -> None:
        for name in self._state_fields():
            # Works for frozen dataclasses too: restoring is not a change of hyper-parameters.
            object.__setattr__(self, name, copy.deepcopy(values[name]))

    def _state_fields(self) -> list[str]:
        if not dataclasses.is_dataclass(self):
            return []
        return [f.name for f in dataclasses.fields(self) if f.metadata.get(_STATE)]


def grown(array: np.ndarray[Any, Any], clients: int, fill: float) -> np.ndarray[Any, Any]:
    """`array` with one row per client: extended with `fill` when clients have joined since it was made."""
    missing = clients - len(array)
    if missing <= 0:
        return array
    return np.concatenate([array, np.full((missing, *array.shape[1:]), fill, dtype=array.dtype)])
