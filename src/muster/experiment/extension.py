"""Continuing from a run of the same experiment with another number of rounds.

Most methods do not care how many rounds a run is planned for: then the first rounds of a longer run are, to the
bit, those of a shorter one, and need not be computed again. Where something depends on it (a learning rate that
ends with the last round, credits for a share of the rounds), the run begins at round 1, and this module says why.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from muster.aggregation.base import aggregators
from muster.config.experiment import Experiment, build_filters
from muster.core.component import Component
from muster.core.errors import CheckpointError
from muster.core.registry import build
from muster.experiment.components import build_component, build_selector
from muster.pacing import pacings
from muster.results import checkpoint
from muster.results.store import Recorder, Run, Store
from muster.results.store.environment import code_version
from muster.server.beginning import NEEDED, as_beginning
from muster.server.loop import Server
from muster.server.persistence import Saved
from muster.training.base import LocalTraining, algorithms
from muster.world.availability import availabilities


@dataclass(frozen=True)
class Beginning:
    """A run whose rounds are the first ones of a longer run, or would be but for a hindrance."""

    run: Run
    store: Store
    #: Why they are not, as the end of "because …"; empty: they are.
    hindrance: str = ""

    def __str__(self) -> str:
        name = f"run {self.run.fingerprint[:8]} ({self.run.done} of {self.run.rounds} rounds)"
        if self.hindrance:
            return f"{name} cannot be extended, because {self.hindrance}"
        return f"continues after round {self.run.done} of {name}"


def find_beginning(experiment: Experiment, store: Store) -> Beginning | None:
    """The run of a store that an experiment without rounds of its own can continue from.

    It differs in the number of rounds alone and ended in good order: complete, or stopped on request. Of several
    the one with most rounds counts, and one without a hindrance before all others.
    """
    found = [
        run
        for run in store.other_lengths(experiment)
        if run.status in ("complete", "stopped") and 0 < run.done < experiment.rounds
    ]
    if not found:
        return None
    why = "; ".join(dependences_on_length(experiment))
    beginnings = [Beginning(run, store, why or _not_kept(run, store)) for run in found]
    return max(beginnings, key=lambda beginning: (not beginning.hindrance, beginning.run.done))


def dependences_on_length(experiment: Experiment) -> list[str]:
    """What in an experiment depends on how many rounds it has, in words; empty: it can be extended."""
    return [why for part in _parts(experiment.as_run()) if (why := part.depends_on_length() or _unsaid(part))]


def _unsaid(part: object) -> str:
    """Of a method that is not Muster's, at any depth: that it does not say whether it depends on the length.

    What it inherits from Muster says nothing about the code that it adds.
    """
    if not isinstance(part, Component):
        return ""
    cls = type(part)
    if not _is_musters(cls) and _is_musters(cls.depends_on_length):
        return (
            f"{cls.__name__} does not say whether it depends on the number of rounds (where it does not, give it "
            'a method depends_on_length that returns "")'
        )
    nested = (
        each for value in vars(part).values() for each in (value if isinstance(value, list | tuple) else (value,))
    )
    return next(filter(None, map(_unsaid, nested)), "")


def _is_musters(thing: Any) -> bool:
    return str(thing.__module__).partition(".")[0] == "muster"


def go_on_from(beginning: Beginning, server: Server, recorder: Recorder, rounds: int) -> None:
    """Hand over the rounds of another run, so that `server` continues after them when it loads from `recorder`."""
    server.check(rounds)  # what is misspelt must not become a run with rounds
    run, store = beginning.run, beginning.store
    rows = store.rows_of_run(run.id, run.done)
    kept = Saved(_state(run, store), records=rows.records(), costs=rows.costs(), disclosed=rows.disclosed())
    origin = f"from run {run.fingerprint} with {run.done} of {run.rounds} rounds"
    recorder.adopt(as_beginning(kept, run.rounds, server, rounds), rows.ended(), origin)


def _parts(experiment: Experiment) -> Iterator[Component | LocalTraining]:
    yield build(LocalTraining, experiment.training, "training")
    # What share of the clients takes part makes no difference here, so neither does how many there are.
    yield build_selector(experiment.selection, clients=1)
    sections: tuple[tuple[str, Any, Any], ...] = (
        ("aggregation", experiment.aggregation, aggregators),
        ("algorithm", experiment.algorithm, algorithms),
        ("pacing", experiment.pacing, pacings),
        ("availability", experiment.availability, availabilities),
    )
    for title, section, registry in sections:
        if section:
            yield build_component(section, "method", title, registry)
    yield from build_filters(experiment.filters)


def _not_kept(run: Run, store: Store) -> str:
    """Why the run itself cannot be continued."""
    if run.code_version != code_version():
        return f"another version of Muster made it ({run.code_version})"
    try:
        kept = _state(run, store, NEEDED)
    except CheckpointError as error:
        return error.problem
    if missing := [key for key in NEEDED if key not in kept]:
        return f"its last checkpoint has no {missing[0]} (checkpoint.final = 'model' keeps the model alone)"
    return ""


def _state(run: Run, store: Store, keys: tuple[str, ...] | None = None) -> dict[str, Any]:
    path = store.checkpoint_folder(run.fingerprint) / f"{run.done}.muster"
    return checkpoint.load(path, run.fingerprint, keys)
