"""The database behind a store: its tables, how it is opened, and how older files are brought up to date.

Everything about a run refers to its row in `experiments`, so deleting that row deletes the run. Times are seconds
since 1970. Client ids, weights and reports are blobs (see `codec`): one row per client would be ten times larger.
Tables without blobs have no row ids, which saves an index; blobs would spill out of the pages of such tables.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from muster.core.errors import MusterError, OutputError, StoreError

#: Tells our files from other SQLite files ("MSTR").
APPLICATION = 0x4D535452
#: How long a writer waits for another process's transaction, which takes milliseconds.
BUSY_SECONDS = 60.0

#: What brings a file from version i to version i + 1. Only ever append.
MIGRATIONS: list[tuple[str, ...]] = [
    (
        """CREATE TABLE experiments (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            fingerprint TEXT NOT NULL UNIQUE,
            name TEXT NOT NULL,
            seed INTEGER NOT NULL,
            config TEXT NOT NULL,             -- JSON
            rounds INTEGER NOT NULL,          -- planned
            done INTEGER NOT NULL DEFAULT 0,  -- rounds in this file; the checkpoint is of the last of them
            status TEXT NOT NULL,             -- running, stopped, complete, failed
            error TEXT NOT NULL DEFAULT '',
            code_version TEXT NOT NULL,
            environment TEXT NOT NULL,        -- JSON
            created REAL NOT NULL,
            started REAL NOT NULL,            -- by the process that had it last
            ended REAL,
            pid INTEGER NOT NULL,
            host TEXT NOT NULL,
            durable INTEGER NOT NULL DEFAULT 0  -- the last round that a power cut cannot take away
        )""",
        """CREATE TABLE sweeps (
            sweep TEXT NOT NULL,
            experiment INTEGER NOT NULL REFERENCES experiments ON DELETE CASCADE,
            name TEXT NOT NULL,               -- what this sweep calls the run
            PRIMARY KEY (sweep, experiment)
        ) WITHOUT ROWID""",
        "CREATE INDEX sweeps_of_experiment ON sweeps (experiment)",
        """CREATE TABLE rounds (
            experiment INTEGER NOT NULL REFERENCES experiments ON DELETE CASCADE,
            round INTEGER NOT NULL,           -- from 1
            ended REAL NOT NULL,
            asks TEXT,                        -- JSON: [signals, clients asked, clients that answered]
            groups TEXT,                      -- JSON: [class, attribute, accuracy, samples]
            notes TEXT,                       -- JSON: what the selector left
            client_accuracy BLOB,
            PRIMARY KEY (experiment, round)
        )""",
        """CREATE TABLE metrics (
            experiment INTEGER NOT NULL REFERENCES experiments ON DELETE CASCADE,
            round INTEGER NOT NULL,
            position INTEGER NOT NULL,        -- in the row of metrics
            name TEXT NOT NULL,
            value REAL,                       -- NULL: not measured
            PRIMARY KEY (experiment, round, position)
        ) WITHOUT ROWID""",
        """CREATE TABLE selections (
            experiment INTEGER NOT NULL REFERENCES experiments ON DELETE CASCADE,
            round INTEGER NOT NULL,
            training INTEGER NOT NULL,        -- of the round, from 0
            clients BLOB NOT NULL,
            weights BLOB NOT NULL,
            left_out BLOB,
            PRIMARY KEY (experiment, round, training)
        )""",
        """CREATE TABLE reports (
            experiment INTEGER NOT NULL REFERENCES experiments ON DELETE CASCADE,
            round INTEGER NOT NULL,
            exchange INTEGER NOT NULL,        -- of the round, from 0
            signal TEXT NOT NULL,
            trained INTEGER NOT NULL,         -- 1: reported with a training; 0: asked without one
            clients BLOB NOT NULL,
            "values" BLOB NOT NULL,
            PRIMARY KEY (experiment, round, exchange, signal)
        )""",
        """CREATE TABLE ledger (
            experiment INTEGER NOT NULL REFERENCES experiments ON DELETE CASCADE,
            round INTEGER NOT NULL,
            client_trainings INTEGER NOT NULL,
            local_steps INTEGER NOT NULL,
            samples INTEGER NOT NULL,
            probe_samples INTEGER NOT NULL,
            bytes_down INTEGER NOT NULL,
            bytes_up INTEGER NOT NULL,
            server_seconds REAL NOT NULL,
            virtual_seconds REAL NOT NULL,
            seconds REAL NOT NULL,
            disclosed TEXT NOT NULL,          -- JSON: kind of information → times
            PRIMARY KEY (experiment, round)
        ) WITHOUT ROWID""",
        """CREATE TABLE events (
            id INTEGER PRIMARY KEY,
            experiment INTEGER NOT NULL REFERENCES experiments ON DELETE CASCADE,
            time REAL NOT NULL,
            round INTEGER NOT NULL,           -- 0: before the first
            kind TEXT NOT NULL,               -- started, resumed, stopped, complete, failed, rejected, …
            training INTEGER,
            client INTEGER,
            detail TEXT NOT NULL DEFAULT ''
        )""",
        "CREATE INDEX events_of_experiment ON events (experiment, round)",
    ),
    # JSON: update filter → how many updates it saw, changed and refused
    ("ALTER TABLE selections ADD COLUMN filtered TEXT",),
    # Virtual time: when rounds began and ended, which clients worked from when to when, and what was wasted
    (
        "ALTER TABLE rounds ADD COLUMN virtual_began REAL NOT NULL DEFAULT 0",
        "ALTER TABLE rounds ADD COLUMN virtual_ended REAL NOT NULL DEFAULT 0",
        "ALTER TABLE ledger ADD COLUMN wasted_trainings INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE ledger ADD COLUMN wasted_bytes INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE ledger ADD COLUMN wasted_seconds REAL NOT NULL DEFAULT 0",
        """CREATE TABLE flights (
            experiment INTEGER NOT NULL REFERENCES experiments ON DELETE CASCADE,
            round INTEGER NOT NULL,           -- in which the training ended
            training INTEGER NOT NULL,        -- of the round, from 0
            clients BLOB NOT NULL,            -- in the order in which their trainings ended
            started BLOB NOT NULL,
            ended BLOB NOT NULL,
            staleness BLOB NOT NULL,
            outcomes BLOB NOT NULL,           -- a byte each: position in OUTCOMES
            PRIMARY KEY (experiment, round, training)
        )""",
    ),
    # JSON: what a real federation did that a replay needs; NULL: time was virtual
    ("ALTER TABLE rounds ADD COLUMN observed TEXT",),
]


def open_database(path: Path) -> sqlite3.Connection:
    """Open a store's database, making or updating it if need be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None)
    except (OSError, sqlite3.Error) as error:
        raise OutputError(f"cannot open the store {path}: {error}", fix="choose another workspace") from error
    try:
        connection.row_factory = sqlite3.Row
        _prepare(connection, path)
    except BaseException:
        connection.close()
        raise
    return connection


def open_to_read(path: Path, patience: float = BUSY_SECONDS) -> sqlite3.Connection:
    """Open an existing database for reading only: nothing that is done with it can change the file.

    Errors of the database itself are left to the caller. `patience`: seconds to wait for a lock.
    """
    connection = sqlite3.connect(
        f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=patience, isolation_level=None
    )
    try:
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA query_only = ON")
        version = _version(connection, path)
        if version < len(MIGRATIONS):
            raise StoreError(
                f"{path} was written by an older version of Muster (schema {version})",
                expected=f"schema {len(MIGRATIONS)}",
                fix="`muster runs` brings it up to date",
            )
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    with translated(path):
        _version(connection, path)  # before anything changes a file that is not ours
        connection.execute("PRAGMA foreign_keys = ON")
        if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
            # Only counts before the first table; lets deleted runs give back their space.
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        _patiently(connection, "PRAGMA journal_mode = WAL")
        # A killed process loses nothing that was committed; see `Recorder` for power cuts.
        connection.execute("PRAGMA synchronous = NORMAL")
        _migrate(connection, path)


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    if _version(connection, path) == len(MIGRATIONS):
        return
    with transaction(connection):
        # Checked again: another process may have done it while we waited.
        for step in MIGRATIONS[_version(connection, path) :]:
            for statement in step:
                connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")


def _version(connection: sqlite3.Connection, path: Path) -> int:
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if application != APPLICATION and (tables or version):
        raise StoreError(f"{path} is a database of another program", fix="choose another workspace")
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{path} was written by a newer version of Muster (schema {version})",
            expected=f"schema {len(MIGRATIONS)} or older",
            fix="update Muster, or choose another workspace",
        )
    return version


def _patiently(connection: sqlite3.Connection, statement: str) -> None:
    """Switching to WAL does not wait for other processes by itself."""
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute(statement)
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All or nothing. Takes the write lock first: a transaction that began by reading could not wait for it."""
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """The database's own errors as ones that a user can act on."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter: names in a damaged file are no text
        raise _explained(path, error) from error


def _explained(path: Path, error: Exception) -> MusterError:
    text = str(error)
    if "full" in text:
        return OutputError(
            f"cannot write to the store {path}: No space left on device",
            fix="free some space, then continue with --resume; earlier rounds are safe",
        )
    if "locked" in text:
        return OutputError(
            f"the store {path} was locked for {BUSY_SECONDS:.0f} seconds",
            fix="look for a process that holds it; a workspace must be on a local disk",
        )
    if "readonly" in text or "unable to open" in text:
        return OutputError(f"cannot write to the store {path}: {text}", fix="choose another workspace")
    if "malformed" in text or "not a database" in text or isinstance(error, UnicodeDecodeError):
        return StoreError(
            f"the store {path} is damaged ({text})", fix="restore it from a backup, or start a new one"
        )
    return StoreError(f"the store {path} cannot be used: {text}")
