"""Vectors that belong to clients between their trainings: control variates, previous models, probes.

Only clients that have taken part cost anything. Each name is one growing `rows × length` array; when all arrays
together would pass the memory limit, the one that grows moves to a memory-mapped scratch file. After a restart the
checkpoint is the truth, never the file.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from muster.core.arrays import Vector
from muster.core.errors import OutputError

_FIRST_ROWS = 4


@dataclass
class _Table:
    """The vectors of one name: row `slots[client]` of `rows`."""

    rows: Vector
    slots: dict[int, int] = field(default_factory=dict)
    path: Path | None = None

    @property
    def used(self) -> Vector:
        return self.rows[: len(self.slots)]

    @property
    def resident_bytes(self) -> int:
        return 0 if self.path else self.rows.nbytes


class ClientStore:
    """Named float32 vectors for each client that has some; beyond `memory_limit` bytes they live on disk."""

    def __init__(self, memory_limit: int = 2**30, directory: Path | str | None = None) -> None:
        self.memory_limit = memory_limit
        self._directory = Path(directory) if directory is not None else None
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._tables: dict[str, _Table] = {}

    @property
    def empty(self) -> bool:
        """Whether no client has anything."""
        return not self._tables

    def get(self, name: str, client: int, out: Vector | None = None) -> Vector | None:
        """The client's vector, copied (into `out` if given); None when it has none."""
        table = self._tables.get(name)
        if table is None or client not in table.slots:
            return None
        result = np.empty(table.rows.shape[1], dtype=np.float32) if out is None else out
        result[:] = table.rows[table.slots[client]]
        return result

    def put(self, name: str, client: int, vector: Vector) -> None:
        """Keep a copy of the client's vector, replacing an earlier one."""
        table = self._tables.setdefault(name, _Table(np.empty((0, len(vector)), dtype=np.float32)))
        if table.rows.shape[1] != len(vector):
            raise ValueError(f"'{name}' holds vectors of length {table.rows.shape[1]}, not {len(vector)}")
        if client not in table.slots:
            if len(table.slots) == len(table.rows):
                self._resize(name, table, max(_FIRST_ROWS, 2 * len(table.rows)))
            table.slots[client] = len(table.slots)
        table.rows[table.slots[client]] = vector

    def clients(self, name: str) -> list[int]:
        """The clients that have a vector of this name, in the order in which they first got one."""
        table = self._tables.get(name)
        return list(table.slots) if table else []

    def drop(self, *names: str) -> None:
        """Forget the vectors of these names for all clients."""
        for name in names:
            table = self._tables.pop(name, None)
            if table is not None and table.path is not None:
                table.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Forget everything and remove the scratch files."""
        for name in list(self._tables):
            self.drop(name)
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    @property
    def resident_bytes(self) -> int:
        """Memory in use, scratch files not counted."""
        return sum(table.resident_bytes for table in self._tables.values())

    def state_dict(self) -> dict[str, Any]:
        """By name: ids and their vectors, not copied (a view of the scratch file where they were spilled)."""
        return {
            name: {"clients": np.fromiter(table.slots, dtype=np.int64), "vectors": table.used}
            for name, table in self._tables.items()
        }

    def load_state_dict(self, values: dict[str, Any]) -> None:
        """Replace everything by what `state_dict` returned."""
        incoming = {name: (np.array(v["clients"]), v["vectors"]) for name, v in values.items()}
        before, self._tables = self._tables, {}
        for name, (ids, vectors) in incoming.items():
            table = self._tables[name] = _Table(np.empty((0, vectors.shape[1]), dtype=np.float32))
            self._resize(name, table, max(_FIRST_ROWS, len(ids)))
            table.rows[: len(ids)] = vectors
            table.slots = {int(client): row for row, client in enumerate(ids)}
        kept = {table.path for table in self._tables.values()}
        for table in before.values():
            if table.path is not None and table.path not in kept:
                table.path.unlink(missing_ok=True)

    def _resize(self, name: str, table: _Table, rows: int) -> None:
        shape = (rows, table.rows.shape[1])
        bytes_wanted = 4 * shape[0] * shape[1]
        others = self.resident_bytes - table.resident_bytes
        if table.path is None and others + bytes_wanted <= self.memory_limit:
            larger = np.empty(shape, dtype=np.float32)
            larger[: len(table.rows)] = table.rows
            table.rows = larger
            return
        first_spill = table.path is None
        path = table.path or self._scratch_file(name)
        _allocate(path, bytes_wanted)
        mapped: Vector = np.memmap(path, dtype=np.float32, mode="r+", shape=shape)
        if first_spill:
            mapped[: len(table.rows)] = table.rows
        table.rows, table.path = mapped, path

    def _scratch_file(self, name: str) -> Path:
        directory = self._directory
        if directory is None:
            self._temporary = self._temporary or tempfile.TemporaryDirectory(prefix="muster-clients-")
            directory = Path(self._temporary.name)
        directory.mkdir(parents=True, exist_ok=True)
        handle, path = tempfile.mkstemp(prefix=f"{name}-", suffix=".f32", dir=directory)
        os.close(handle)
        return Path(path)


def _allocate(path: Path, size: int) -> None:
    """Reserve the blocks now: a full disk is an error here, but a crash when a mapped page is first written."""
    try:
        with path.open("r+b") as file:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:  # macOS and Windows cannot reserve
                file.truncate(size)
    except OSError as error:
        raise OutputError(
            f"no room for {size / 1e6:.0f} MB of client state in {path.parent}: {error.strerror}",
            fix="free some space, give another directory, or raise the memory limit",
        ) from error
