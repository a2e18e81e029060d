"""The observer that feeds trackers: gathers a round's numbers, and switches off a tracker that raises."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.core.registry import build
from muster.server.ledger import Costs, Ledger
from muster.server.loop import Observer, Server
from muster.server.record import RoundRecord
from muster.server.result import CUMULATED
from muster.tracking.base import Outcome, RunFacts, Tracker, trackers

if TYPE_CHECKING:
    from muster.config.experiment import Experiment

log = logging.getLogger("muster")


@dataclass(frozen=True)
class TrackingOptions:
    """The section [tracking]: which trackers follow the run. None of it changes a result."""

    #: Names of trackers: tensorboard, mlflow, wandb.
    to: tuple[str, ...] = ()
    #: The folder for trackers that write files.
    folder: str = "tracking"
    #: What they file the run under.
    project: str = "muster"


class Tracking(Observer):
    """Tells trackers about a run. A context manager: at its end, trackers are closed."""

    def __init__(
        self, used: Sequence[Tracker], title: str, fingerprint: str = "", config: Mapping[str, Any] | None = None
    ) -> None:
        self._waiting, self._used = list(used), list[Tracker]()
        self._run = RunFacts(title, fingerprint, flat(config or {}))
        self._so_far, self._rounds, self._done = Costs(), 0, 0

    def __enter__(self) -> Tracking:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        outcome: Outcome = "failed" if error else "complete" if self._done >= self._rounds else "stopped"
        self._tell(lambda tracker: tracker.end(outcome))
        self._used = []

    def started(self, server: Server, rounds: int, done: int) -> None:
        self._rounds, self._done, self._so_far = rounds, done, server.ledger.total()
        run = RunFacts(self._run.title, self._run.fingerprint, self._run.config, done)
        self._used, self._waiting = self._waiting, []
        self._tell(lambda tracker: tracker.begin(run))

    def round_ended(self, record: RoundRecord, ledger: Ledger) -> None:
        self._done, self._so_far = record.round, self._so_far + ledger.current
        values = numbers_of_round(record, self._so_far)
        self._tell(lambda tracker: tracker.log(record.round, values))

    def _tell(self, what: Callable[[Tracker], None]) -> None:
        for tracker in list(self._used):
            try:
                what(tracker)
            except Exception as error:  # whatever a tracker does, the run continues
                log.error(
                    "%s failed (%s: %s) and is switched off; the run continues",
                    type(tracker).__name__,
                    type(error).__name__,
                    error,
                )
                self._used.remove(tracker)


def tracking(experiment: Experiment) -> Tracking:
    """The trackers of the section [tracking], or a ConfigError when one of them is unknown or not installed."""
    options = build(TrackingOptions, experiment.tracking, "tracking")
    used = []
    for name in dict.fromkeys(options.to):
        tracker = trackers.get(name)(Path(options.folder), options.project)
        tracker.check()
        used.append(tracker)
    return Tracking(used, experiment.title, experiment.fingerprint, experiment.described())


def numbers_of_round(record: RoundRecord, so_far: Costs) -> dict[str, float]:
    """What is worth a curve: metrics as results call them, accuracy by group, who took part, the work so far."""
    values = dict(record.metrics)
    values |= {f"group accuracy/{row.label}-{row.attribute}": row.accuracy for row in record.groups}
    trainings = record.trainings
    values["clients/trained"] = len({client for training in trainings for client in training.clients})
    values["clients/refused"] = sum(len(training.rejected) for training in trainings)
    values["clients/failed"] = sum(len(training.failed) for training in trainings)
    values |= {f"work/{name}": float(getattr(so_far, name)) for name in CUMULATED}
    return {name: float(value) for name, value in values.items() if math.isfinite(value)}


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested sections as `section.key` → text; empty sections are left out."""
    rows: dict[str, str] = {}
    for key, value in config.items():
        rows |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": str(value)}
    return rows
