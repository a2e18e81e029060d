"""Decoded arrays on disk: written once as .npy, memory-mapped from then on.

An entry is keyed by the data set's name, the decoding options, the identity (path, size, modification time) of the
files that it was decoded from and Muster's version, so changed files or decoders never get stale arrays. Entries
appear whole or not at all.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from muster._version import __version__
from muster.core.errors import OutputError

log = logging.getLogger(__name__)

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]
#: Makes an array to fill, from its name, shape and dtype.
NewArray: TypeAlias = Callable[[str, tuple[int, ...], npt.DTypeLike], npt.NDArray[Any]]

#: Incremented when the layout of entries changes, so that older ones are not read.
_FORMAT = 1
_MANIFEST = "manifest.json"
_SPOTS, _SPOT_BYTES = 64, 4096


class DamagedEntryError(Exception):
    """A cache entry is not what its manifest says."""


def cache_dir() -> Path:
    """Where Muster keeps what it can recreate: `MUSTER_CACHE`, or the platform's cache folder."""
    chosen = os.environ.get("MUSTER_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "muster"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local")) / "muster" / "Cache"
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "muster"


def cached(
    name: str,
    files: Sequence[Path],
    decode: Callable[[NewArray], Mapping[str, npt.NDArray[Any]]],
    **options: object,
) -> Arrays:
    """The arrays that `decode` makes from `files`, memory-mapped, read-only; decoded only when not cached yet.

    `decode` may write large arrays straight to disk: `new(key, shape, dtype)` gives an array to fill and return.
    `options` are what the decoding depends on besides the files.
    """
    entry = cache_dir() / "decoded" / f"{name}-{_digest(name, files, options)}"
    if entry.exists():
        try:
            return _read(entry)
        except DamagedEntryError as damage:
            log.warning("cache entry %s is damaged (%s): decoding the data again", entry, damage)
            shutil.rmtree(entry, ignore_errors=True)
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{entry.name}-", dir=entry.parent))
    except OSError as problem:
        log.warning("cannot keep decoded arrays in %s (%s): they stay in memory", entry.parent, problem)
        return dict(decode(lambda key, shape, dtype: np.empty(shape, dtype)))
    log.info("decoding %s; the next time it comes from %s", name, entry)
    try:
        _fill(scratch, decode)
        _place(scratch, entry)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return _read(entry)


def _digest(name: str, files: Sequence[Path], options: Mapping[str, object]) -> str:
    identities = []
    for file in sorted(files):
        status = file.stat()
        identities.append((str(file.resolve()), status.st_size, status.st_mtime_ns))
    text = json.dumps([_FORMAT, __version__, name, options, identities], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def _fill(scratch: Path, decode: Callable[[NewArray], Mapping[str, npt.NDArray[Any]]]) -> None:
    def new(key: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        # Writing to a map on a full disk would kill the process without a message.
        _check_space(scratch, math.prod(shape) * np.dtype(dtype).itemsize)
        return np.lib.format.open_memmap(scratch / f"{key}.npy", "w+", np.dtype(dtype), shape)

    manifest = {}
    for key, array in decode(new).items():
        file = scratch / f"{key}.npy"
        if isinstance(array, np.memmap) and file.exists():
            array.flush()
        else:
            _check_space(scratch, array.nbytes)
            np.save(file, array, allow_pickle=False)
        manifest[key] = {"bytes": file.stat().st_size, "checksum": _spot_checksum(file)}
    (scratch / _MANIFEST).write_text(json.dumps(manifest))


def _check_space(folder: Path, wanted: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < wanted:
        raise OutputError(
            f"the decoded data needs {wanted / 1e6:,.0f} MB, but {folder.parent} has {free / 1e6:,.0f} MB left",
            fix="free some space, or set the environment variable MUSTER_CACHE to a folder on another disk",
        )


def _place(scratch: Path, entry: Path) -> None:
    try:
        scratch.rename(entry)
    except OSError:
        # If another process has placed the same entry meanwhile, its arrays are as good as these.
        if not entry.exists():
            raise


def _read(entry: Path) -> Arrays:
    try:
        manifest = json.loads((entry / _MANIFEST).read_text())
        arrays: Arrays = {}
        for key, expected in manifest.items():
            file = entry / f"{key}.npy"
            if file.stat().st_size != expected["bytes"]:
                raise DamagedEntryError(f"{file.name} has {file.stat().st_size} bytes, not {expected['bytes']}")
            if _spot_checksum(file) != expected["checksum"]:
                raise DamagedEntryError(f"the checksum of {file.name} is wrong")
            # A plain array over the map: np.memmap's own type would stick to everything computed from it.
            arrays[key] = np.asarray(np.load(file, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise DamagedEntryError(str(problem)) from problem
    return arrays


def _spot_checksum(file: Path) -> int:
    """A checksum over blocks spread evenly over the file: reading all of it would undo the memory map's point."""
    size = file.stat().st_size
    checksum = zlib.crc32(str(size).encode())
    with file.open("rb") as stream:
        for position in sorted({int(p) for p in np.linspace(0, max(0, size - _SPOT_BYTES), _SPOTS)}):
            stream.seek(position)
            checksum = zlib.crc32(stream.read(_SPOT_BYTES), checksum)
    return checksum
