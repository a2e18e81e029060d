"""Reading a store while others write it: connections that cannot change anything, and what to say when that fails.

The page outlives every trouble: a store that is missing, locked, damaged or newer is a message, and the next look
may find it well again.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from muster.core.errors import OutputError, StoreError
from muster.results.store import DATABASE
from muster.results.store.claims import Claims
from muster.results.store.codec import readable
from muster.results.store.schema import open_to_read
from muster.results.store.store import CLAIMS

#: A reader of a WAL file waits only while the file is being recovered or held by another program.
PATIENCE_SECONDS = 2.0


@contextmanager
def reading(folder: Path) -> Iterator[sqlite3.Connection]:
    """A read-only connection to a workspace's store, for one request; every trouble is a `StoreError`.

    All that a request reads is of one moment: a round that ends meanwhile is in all of its answers or in none.
    """
    path = folder / DATABASE
    if not path.is_file():
        raise StoreError(f"there is no store in {folder} yet", fix="run something there; it appears by itself")
    try:
        connection = open_to_read(path, PATIENCE_SECONDS)
        try:
            connection.execute("BEGIN")
            with readable():
                yield connection
        finally:
            connection.close()
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter: names in a damaged file are no text
        raise _explained(path, error) from error


def _explained(path: Path, error: Exception) -> StoreError:
    text = str(error)
    if "locked" in text:
        return StoreError(
            f"the store {path} is locked by another program", fix="the page tries again; look for who holds it"
        )
    if "malformed" in text or "not a database" in text or "disk I/O" in text:
        return StoreError(f"the store {path} is damaged ({text})", fix="restore it from a backup")
    if "unable to open" in text:
        return StoreError(f"the store {path} cannot be opened", fix="see that the folder may be read")
    return StoreError(f"the store {path} cannot be read: {text}")


def identity(folder: Path) -> tuple[int, int] | None:
    """Which file the store is: another one, when it was deleted and made anew. None: there is none."""
    try:
        facts = os.stat(folder / DATABASE)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino


def being_run(folder: Path, runs: list[int]) -> set[int]:
    """Those of the runs whose process is alive. No claim is kept, so none can get in the way.

    Where claims cannot be asked for, as in a workspace that may only be read, the store's word counts: they run.
    """
    path = folder / CLAIMS
    try:
        if not runs or not path.exists():
            return set()
        claims = Claims(path)
        try:
            return {run for run in runs if claims.taken(run)}
        finally:
            claims.close()
    except (OSError, OutputError):
        return set(runs)
