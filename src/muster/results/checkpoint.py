"""Checkpoints: one file that holds everything a run needs to continue, replaced atomically at round ends.

Random state is not in it, because there is none: every draw is derived from seed and place (see `randomness`).
The file is a zip archive of plain arrays and one JSON document: nothing in it is unpickled, and every member has a
checksum.
"""

from __future__ import annotations

import io
import json
import math
import os
import zipfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import IO, Any

import numpy as np

from muster.core.arrays import State
from muster.core.errors import UNREADABLE, CheckpointError, OutputError

FORMAT = 2
#: Format 1 had every array in a separate member, even in small files.
READABLE = (1, FORMAT)
#: Bytes of arrays up to which a file is put together in memory.
SMALL = 4 * 2**20
_ARRAY = "__array__"
#: Most of a tree are these: asking for them first is quicker than matching.
_SCALARS = (str, int, float, bool)
_TREE, _ALL_ARRAYS = "tree.json", "arrays.bin"
#: What reading a damaged archive raises; the last two for headers that name encryption or an unknown method.
_DAMAGE = (zipfile.BadZipFile, *UNREADABLE, EOFError, OSError, NotImplementedError, RuntimeError)


def save(path: Path, experiment: str, values: State, durable: bool = True) -> None:
    """Write a checkpoint of the experiment with this fingerprint. A crash leaves the old one or the new one.

    A `durable` one also survives a power cut; that means waiting for the disk.
    """
    arrays: list[np.ndarray[Any, Any]] = []
    tree = {"format": FORMAT, "experiment": experiment, "values": _pack(values, arrays)}
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with _opened(temporary) as file:
            plain = all(array.dtype.kind in "biufc" for array in arrays)
            if plain and sum(array.nbytes for array in arrays) < SMALL:
                file.write(_small_archive(tree, arrays))
            else:
                _write_archive(tree, arrays, file)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        temporary.replace(path)
        if durable:
            sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise OutputError(
            f"cannot write the checkpoint {path}: {error.strerror or error}",
            fix="free some space or choose another --out, then continue with --resume; earlier rounds are safe",
        ) from error


def _opened(path: Path) -> IO[bytes]:
    try:
        return path.open("wb")
    except FileNotFoundError:  # only the first time: asking before every round would take longer
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("wb")


def _write_archive(tree: object, arrays: list[np.ndarray[Any, Any]], file: IO[bytes]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_TREE, json.dumps(tree))
        for number, array in enumerate(arrays):
            with archive.open(f"{number}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _small_archive(tree: dict[str, Any], arrays: list[np.ndarray[Any, Any]]) -> memoryview:
    """Built in memory, with all arrays in one member: members and small steps are what takes time."""
    content = io.BytesIO()
    layout = [[array.dtype.str, array.shape] for array in arrays]
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_TREE, json.dumps(tree | {"layout": layout}))
        archive.writestr(_ALL_ARRAYS, b"".join(array.tobytes() for array in arrays))
    return content.getbuffer()


def _reader(archive: zipfile.ZipFile, layout: list[tuple[str, list[int]]] | None) -> Callable[[int], Any]:
    """Returns the arrays of an archive by their numbers."""
    if layout is None:
        return lambda number: np.lib.format.read_array(
            io.BytesIO(archive.read(f"{number}.npy")), allow_pickle=False
        )
    content, arrays, at = archive.read(_ALL_ARRAYS), [], 0
    for kind, shape in layout:
        count = math.prod(shape)
        # A copy: what is read may be changed.
        arrays.append(np.frombuffer(content, kind, count, at).reshape(shape).copy())
        at += arrays[-1].nbytes
    return arrays.__getitem__


def load(path: Path, experiment: str, keys: Collection[str] | None = None) -> State:
    """Read a checkpoint, or say why it cannot be used. With `keys`, only these values are read."""
    try:
        file = path.open("rb")
    except OSError as error:
        raise CheckpointError(
            f"cannot read the checkpoint {path}: {error.strerror or error}",
            fix="restore it from a backup, or delete the run (`muster runs delete`) and start it again",
        ) from error
    with file:
        try:
            archive = zipfile.ZipFile(file)
            if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
                raise ValueError("it is compressed")  # and could be of any size
            tree = json.loads(archive.read(_TREE))
            found = tree.get("format"), tree["experiment"]
        except _DAMAGE as error:
            raise _damaged(path, error) from error
        _check_header(path, *found, experiment)

        try:
            read_array = _reader(archive, tree.get("layout"))
            ((_, pairs),) = tree["values"].items()
            return {key: _unpack(value, read_array) for key, value in pairs if keys is None or key in keys}
        except _DAMAGE as error:
            raise _damaged(path, error) from error


def _check_header(path: Path, format: object, of: object, experiment: str) -> None:
    if format not in READABLE:
        raise CheckpointError(
            f"the checkpoint {path} has format {format}",
            expected=f"format {FORMAT}",
            fix="continue it with the version of Muster that wrote it",
        )
    if of != experiment:
        raise CheckpointError(
            f"the checkpoint {path} belongs to another experiment (its config, seed or number of rounds differs)",
            fix="resume with the config that started it, or use another --out for the new experiment",
        )


def _damaged(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"the checkpoint {path} is damaged ({error})",
        expected="a file as Muster wrote it",
        fix="restore it from a backup, or delete it and start the run again",
    )


def _pack(value: Any, arrays: list[np.ndarray[Any, Any]]) -> Any:
    if value is None or type(value) in _SCALARS:
        return value
    match value:
        case np.ndarray():
            arrays.append(value)
            return {_ARRAY: len(arrays) - 1}
        case np.generic():
            return value.item()
        case dict():
            # Keys may be ids: a list of pairs keeps their type, which a JSON object would not.
            return {"__dict__": [[_pack(k, arrays), _pack(v, arrays)] for k, v in value.items()]}
        case tuple():
            return {"__tuple__": [_pack(item, arrays) for item in value]}
        case set() | frozenset():
            return {"__set__": [_pack(item, arrays) for item in sorted(value)]}
        case list():
            return [_pack(item, arrays) for item in value]
        case None | bool() | int() | float() | str():
            return value
    raise TypeError(f"a checkpoint cannot hold a {type(value).__name__}")


def _unpack(value: Any, read_array: Any) -> Any:
    if isinstance(value, list):
        return [_unpack(item, read_array) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "__array__":
            return read_array(content)
        case "__dict__":
            return {_unpack(k, read_array): _unpack(v, read_array) for k, v in content}
        case "__tuple__":
            return tuple(_unpack(item, read_array) for item in content)
        case "__set__":
            return {_unpack(item, read_array) for item in content}
    raise ValueError(f"unknown kind {kind}")


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
