"""The interface of a tracker: begin, numbers of a round, end."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import ClassVar, Literal, TypeAlias

from muster.core.errors import ConfigError
from muster.core.registry import Registry

Outcome: TypeAlias = Literal["complete", "stopped", "failed"]


@dataclass(frozen=True)
class RunFacts:
    """What a tracker is told about a run before its first round."""

    #: The run's name.
    title: str
    #: Identifies the experiment: the same when it is resumed.
    fingerprint: str
    #: The configuration, flat: `section.key` → value as text.
    config: Mapping[str, str] = field(default_factory=dict)
    #: Rounds that an earlier process has done.
    done: int = 0

    @property
    def slug(self) -> str:
        """A name for files that is the same after a resume."""
        safe = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in self.title)
        return f"{safe}-{self.fingerprint[:8]}"


class Tracker(ABC):
    """Shows the numbers of a run somewhere. What it raises is reported once, and the run continues without it.

    >>> class Printer(Tracker):
    ...     package = "sys"
    ...
    ...     def begin(self, run):
    ...         print(run.title, "continues after round", run.done)
    ...
    ...     def log(self, round, values):
    ...         print(round, values["clients/trained"])
    ...
    ...     def end(self, outcome):
    ...         print(outcome)
    >>> import muster
    >>> from muster.tracking.observer import Tracking
    >>> with Tracking([Printer(Path("tracking"), "muster")], "mine") as tracking:
    ...     result = muster.run(muster.Experiment(rounds=1), workers=0, observers=[tracking])
    mine continues after round 0
    1 8.0
    complete
    """

    #: The package that it needs.
    package: ClassVar[str]

    def __init__(self, folder: Path, project: str) -> None:
        """`folder`: where files may go; `project`: what the run belongs to."""
        self.folder, self.project = folder, project

    def check(self) -> None:
        """Raise ConfigError if the package is not installed."""
        self._import(self.package)

    def _import(self, module: str) -> ModuleType:
        try:
            return importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(
                f"tracking with {self.package} needs the package {self.package} ({error})",
                fix=f"pip install 'muster-fl[{self.package}]', or leave the tracker out",
            ) from error

    @abstractmethod
    def begin(self, run: RunFacts) -> None:
        """A run begins, or continues after `run.done` rounds."""

    @abstractmethod
    def log(self, round: int, values: Mapping[str, float]) -> None:
        """The numbers of a (1-based) round; all are finite."""

    @abstractmethod
    def end(self, outcome: Outcome) -> None:
        """The run is over; called once after a successful `begin`."""


trackers: Registry[Tracker] = Registry("tracker", "muster.tracking", "muster.trackers")
