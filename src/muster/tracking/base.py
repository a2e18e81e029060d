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

    #: How the run is called.
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
    """Shows the numbers of a run somewhere. What it raises is reported once, and the run goes on without it."""

    #: The package that it needs.
    package: ClassVar[str]

    def __init__(self, folder: Path, project: str) -> None:
        """`folder`: where files may go; `project`: what the run belongs to."""
        self.folder, self.project = folder, project

    def check(self) -> None:
        """A ConfigError when the package is not installed."""
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
        """A run begins, or goes on after `run.done` rounds."""

    @abstractmethod
    def log(self, round: int, values: Mapping[str, float]) -> None:
        """The numbers of a (1-based) round; all are finite."""

    @abstractmethod
    def end(self, outcome: Outcome) -> None:
        """The run is over; called once after a successful `begin`."""


trackers: Registry[Tracker] = Registry("tracker", "muster.tracking", "muster.trackers")
