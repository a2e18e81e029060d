"""Trace files in FedScale's layout: a JSON list with one object per device.

`ms_per_sample` and `kbps` are the device's speed; `active` and `inactive` the seconds at which its sessions begin
and end, which repeat every `finish` seconds. A file is checked as a whole before any of it is used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from muster.core.arrays import Floats, Ints
from muster.core.errors import DataError
from muster.core.randomness import generator
from muster.data.locate import places

DAY = 86_400
LAYOUT = "a JSON list with one object per device (docs/devices.md)"


@dataclass(frozen=True)
class Sessions:
    """The sessions of many devices, in compressed rows: device d has rows `starts[d] : starts[d + 1]`."""

    starts: Ints
    begin: Floats
    end: Floats
    #: After this many seconds a device's sessions repeat.
    period: Floats

    def __len__(self) -> int:
        return len(self.period)

    def of(self, device: int) -> tuple[Floats, Floats]:
        rows = slice(self.starts[device], self.starts[device + 1])
        return self.begin[rows], self.end[rows]


def locate(file: str) -> Path:
    """The file at this path, or of this name in a folder `devices` of the data."""
    given = Path(file).expanduser()
    candidates = [given] if given.is_absolute() else [given, *(p.folder / given for p in places("devices"))]
    for path in candidates:
        if path.is_file():
            return path
    raise DataError(
        f"there is no trace file '{file}' (looked at: {', '.join(map(str, candidates))})",
        expected=LAYOUT,
        fix="give its path, or set MUSTER_DATA to a folder that contains 'devices/'",
    )


def entries(file: str) -> tuple[Mapping[str, Any], ...]:
    """The devices of a file."""
    return _entries(*_version(file))


def _version(file: str) -> tuple[Path, int, int]:
    """A file as it is now: what was read from it is valid as long as this stays the same."""
    path = locate(file)
    found = path.stat()
    return path, found.st_mtime_ns, found.st_size


@lru_cache(maxsize=4)
def _entries(path: Path, changed: int, size: int) -> tuple[Mapping[str, Any], ...]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # no JSON, no text, numbers too long, lists too deep
        problem = "is empty" if not size else f"is not JSON: {error}"
        raise DataError(f"the trace file {path} {problem}", expected=LAYOUT) from error
    if not isinstance(found, list) or not all(isinstance(entry, dict) for entry in found):
        raise DataError(f"the trace file {path} has another layout", expected=LAYOUT)
    if not found:
        raise DataError(f"the trace file {path} has no devices", expected=LAYOUT)
    return tuple(found)


def speeds(file: str) -> tuple[Floats, Floats]:
    """(milliseconds of a sample, kbit/s) of every device."""
    found = entries(file)
    columns = []
    for key in ("ms_per_sample", "kbps"):
        values = [_number(file, entry, key) for entry in found]
        for entry, value in zip(found, values, strict=True):
            if not value > 0:
                raise _wrong(file, entry, f"'{key}' is {value}", "a positive number")
        columns.append(np.array(values))
    return columns[0], columns[1]


def sessions(file: str) -> Sessions:
    """The sessions of every device: in order, apart from each other, none empty."""
    return _sessions(*_version(file))


@lru_cache(maxsize=4)
def _sessions(path: Path, changed: int, size: int) -> Sessions:
    file, found = str(path), _entries(path, changed, size)
    rows = [_sessions_of(file, entry) for entry in found]
    starts = np.concatenate([[0], np.cumsum([len(begin) for begin, _ in rows])]).astype(np.int64)
    if not starts[-1]:
        raise DataError(f"in the trace file '{file}' no device is ever online", expected="at least one session")
    return Sessions(
        starts,
        np.concatenate([begin for begin, _ in rows]),
        np.concatenate([end for _, end in rows]),
        np.array([_number(file, entry, "finish") for entry in found]),
    )


def _sessions_of(file: str, entry: Mapping[str, Any]) -> tuple[Floats, Floats]:
    begin, end = (_numbers(file, entry, key) for key in ("active", "inactive"))
    finish = _number(file, entry, "finish")
    if not finish > 0:
        raise _wrong(file, entry, f"'finish' is {finish}", "a positive number of seconds")
    if len(begin) != len(end):
        raise _wrong(
            file, entry, f"{len(begin)} sessions begin and {len(end)} end", "as many 'inactive' as 'active' times"
        )
    if (begin < 0).any() or (end < 0).any():
        raise _wrong(file, entry, "a session has a negative time", "seconds from 0 to 'finish'")
    if (end < begin).any():
        worst = int(np.argmax(begin - end))
        raise _wrong(
            file,
            entry,
            f"a session ends at {end[worst]:g}, before it begins at {begin[worst]:g}",
            "active ≤ inactive",
        )
    if (begin[1:] < end[:-1]).any():
        first = int(np.argmax(begin[1:] < end[:-1]))
        raise _wrong(
            file,
            entry,
            f"sessions overlap: one lasts until {end[first]:g}, the next begins at {begin[first + 1]:g}",
            "sessions in ascending order that do not overlap",
        )
    if len(end) and end[-1] > finish:
        raise _wrong(
            file, entry, f"a session ends at {end[-1]:g}, after 'finish' ({finish:g})", "inactive ≤ finish"
        )
    # A session without duration contains no moment, and two that touch are one.
    lasting = end > begin
    begin, end = begin[lasting], end[lasting]
    apart = begin[1:] > end[:-1]
    return begin[np.r_[True, apart][: len(begin)]], end[np.r_[apart, True][: len(end)]]


def _number(file: str, entry: Mapping[str, Any], key: str) -> float:
    return float(_numbers(file, {**entry, key: [entry.get(key)]}, key)[0])


def _numbers(file: str, entry: Mapping[str, Any], key: str) -> Floats:
    values = entry.get(key)
    sound = isinstance(values, list) and all(
        isinstance(value, int | float) and not isinstance(value, bool) for value in values
    )
    if not sound:
        raise _wrong(file, entry, f"'{key}' is missing or is not made of numbers", LAYOUT)
    numbers = np.array(values, dtype=np.float64)
    if not np.isfinite(numbers).all():
        raise _wrong(file, entry, f"'{key}' is not finite", "finite numbers")
    return numbers


def _wrong(file: str, entry: Mapping[str, Any], problem: str, expected: str) -> DataError:
    return DataError(f"device {entry.get('id', '?')} of the trace file '{file}': {problem}", expected=expected)


def devices_of(clients: Ints, devices: int, seed: int) -> tuple[npt.NDArray[np.unsignedinteger[Any]], Ints]:
    """Each client's device of a trace, and how many clients have had that device before.

    The devices are dealt out repeatedly in an order drawn from the seed: every device is used equally often, and
    speeds and sessions of one file go to the same client.
    """
    order = generator(seed, "trace").permutation(devices).astype(np.min_scalar_type(devices))
    return order[clients % devices], clients // devices
