"""Where data sets are: an option, an environment variable, system packages, the cache, in this order."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from muster.core.errors import DataError
from muster.data.cache import Arrays, cache_dir, cached
from muster.data.packages import Package

#: The files of a data set in a folder (or the folders that hold its many files); empty when it is not there.
Find: TypeAlias = Callable[[Path], Sequence[Path]]
#: Arrays from what was found: `read(files, new, **options)`.
Read: TypeAlias = Callable[..., Arrays]

#: Folders of system packages, by data set.
SYSTEM_FOLDERS = {"fashion-mnist": Path("/usr/share/datasets/fashion-mnist")}


@dataclass(frozen=True)
class FileLayout:
    """One way in which a data set's files are laid out: how to recognise it and how to read it."""

    find: Find
    read: Read


@dataclass(frozen=True)
class Found:
    """A data set on disk."""

    folder: Path
    layout: str
    files: tuple[Path, ...]


@dataclass(frozen=True)
class Location:
    """A folder in which a data set may be, and why it is searched."""

    folder: Path
    why: str


@dataclass(frozen=True)
class DataFiles:
    """A data set that comes as files: its folder's name, what that must hold, and the layouts that can be read."""

    name: str
    #: What would have been found, for the message to a user who lacks it.
    needs: str
    layouts: Mapping[str, FileLayout]
    #: The data set on the Hugging Face hub whose Parquet files can be read, `owner/name` or `owner/name@revision`.
    hub: str | None = None
    #: The package that carries it.
    package: Package | None = None
    #: Where people get it by hand.
    home: str = ""

    def __post_init__(self) -> None:
        known[self.name] = self

    def find(self, data_dir: str | Path | None = None) -> Found | None:
        """The data set in the first place that has it."""
        for place in places(self.name, data_dir):
            if not place.folder.is_dir():
                continue
            for name, layout in self.layouts.items():
                files = tuple(layout.find(place.folder))
                if files:
                    return Found(place.folder, name, files)
        return None

    def arrays(self, data_dir: str | Path | None = None, **options: object) -> tuple[Arrays, Path]:
        """The decoded arrays, memory-mapped, and the folder that they came from.

        `options` go to the layout's reader and into the cache's key.
        """
        found = self.find(data_dir)
        if found is None:
            raise self.missing(data_dir)
        read = self.layouts[found.layout].read
        name = f"{self.name}-{found.layout}"
        arrays = cached(name, found.files, lambda new: read(found.files, new, **options), **options)
        return arrays, found.folder

    def missing(self, data_dir: str | Path | None = None) -> DataError:
        """The error for a missing data set: where it was looked for, and how to get it."""
        looked = ", ".join(str(place.folder) for place in places(self.name, data_dir))
        return DataError(
            f"the data set '{self.name}' is not here (looked in: {looked})",
            expected=self.needs,
            fix=f"{self.how_to_get()}. If it is elsewhere on disk, set the environment variable MUSTER_DATA "
            f"to the folder that contains '{self.name}/', or set 'data.data_dir'",
        )

    def how_to_get(self) -> str:
        """All ways to get the data set, in one sentence."""
        ways = [f"the Hugging Face hub's {self.hub.partition('@')[0]} (extra `hub`)"] if self.hub else []
        ways += [f"`{self.package.command}`"] if self.package else []
        automatic = [f"`muster data fetch {self.name}` takes it from {' or '.join(ways)}"] if ways else []
        by_hand = [f"by hand: {self.home}, into a folder '{self.name}/'"] if self.home else []
        return "; ".join(automatic + by_hand)


#: Every data set that comes as files, by name; filled when the sources are imported.
known: dict[str, DataFiles] = {}


def fetched_dir() -> Path:
    """Where `muster data fetch` places data sets when no other folder is named."""
    return cache_dir() / "data"


def places(name: str, data_dir: str | Path | None = None) -> list[Location]:
    """Where data set `name` is looked for, best first, whether the folders exist or not."""
    found = []
    if data_dir is not None:
        chosen = Path(data_dir).expanduser()
        if not chosen.is_dir():
            raise DataError(
                f"'data.data_dir' is {chosen}, which is not a folder",
                expected=f"the folder of {name}, or one that contains '{name}/'",
            )
        found += [Location(chosen / name, "data_dir"), Location(chosen, "data_dir")]
    if os.environ.get("MUSTER_DATA"):
        found.append(Location(Path(os.environ["MUSTER_DATA"]).expanduser() / name, "MUSTER_DATA"))
    if name in SYSTEM_FOLDERS:
        found.append(Location(SYSTEM_FOLDERS[name], "system package"))
    found.append(Location(fetched_dir() / name, "fetched"))
    return found
