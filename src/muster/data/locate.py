"""Where data sets lie: an option, an environment variable, system packages, the cache, in this order."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from muster.data.cache import cache_dir
from muster.errors import DataError

F = TypeVar("F")

#: Folders of system packages, by data set.
SYSTEM_FOLDERS = {"fashion-mnist": Path("/usr/share/datasets/fashion-mnist")}


def fetched_dir() -> Path:
    """Where `muster data fetch` places data sets when no other folder is named."""
    return cache_dir() / "data"


def candidates(name: str, data_dir: str | Path | None = None) -> list[Path]:
    """The folders in which data set `name` is looked for, best first, whether they exist or not."""
    folders = []
    if data_dir is not None:
        chosen = Path(data_dir).expanduser()
        if not chosen.is_dir():
            raise DataError(
                f"'data.data_dir' is {chosen}, which is not a folder",
                expected=f"the folder of {name}, or one that contains '{name}/'",
            )
        folders += [chosen / name, chosen]
    if os.environ.get("MUSTER_DATA"):
        folders.append(Path(os.environ["MUSTER_DATA"]).expanduser() / name)
    if name in SYSTEM_FOLDERS:
        folders.append(SYSTEM_FOLDERS[name])
    folders.append(fetched_dir() / name)
    return folders


def locate(
    name: str,
    find: Callable[[Path], F | None],
    *,
    needs: str,
    data_dir: str | Path | None = None,
    folder_name: str | None = None,
) -> F:
    """What `find` finds in the first folder that has it; `needs` tells a user what would have been found."""
    folder_name = folder_name or name
    folders = candidates(folder_name, data_dir)
    for folder in folders:
        found = find(folder) if folder.is_dir() else None
        if found is not None:
            return found
    looked = ", ".join(str(folder) for folder in folders)
    raise DataError(
        f"the data set '{name}' is not here (looked in: {looked})",
        expected=needs,
        fix=f"run `muster data fetch {folder_name}`, or set the environment variable MUSTER_DATA to a folder "
        f"that contains '{folder_name}/', or set 'data.data_dir'",
    )
