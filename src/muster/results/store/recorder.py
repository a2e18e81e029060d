"""Writes one run into a store: a round is one transaction, together with its checkpoint.

The checkpoint is a separate file, so that large models do not go through the database's log. It is written
first, under the name of its round; the transaction that holds the round then makes this checkpoint valid, and
the one before is deleted. So a process may be killed at any moment: the database and the checkpoint that it names
always match, and a file that is not named is removed when the run continues.

Waiting for the disk after every round would often cost more than the round. So only every few seconds, and when
the run ends, a round is written durably, and its checkpoint kept until the next durable one. A killed process
loses only the round it was working on; a power cut may cost the last seconds, and the run continues from the
durable round.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.core.arrays import State
from muster.core.errors import CheckpointError, ConfigError, MusterError
from muster.results import checkpoint
from muster.results.store.codec import events_of, readable, rows_of
from muster.results.store.schema import transaction, translated
from muster.server.ledger import Costs
from muster.server.persistence import Persistence, Rounds, Saved, Stage
from muster.server.record import RoundRecord

if TYPE_CHECKING:
    from muster.results.store.store import Store
    from muster.server.result import Result

log = logging.getLogger("muster")

#: The longest time that a power cut can take away, and the rounds under way then.
DURABLE_SECONDS = 5.0
#: Tables with one or more rows per round, and the order of their rows.
ROUND_TABLES = {
    "rounds": "round",
    "metrics": "round, position",
    "selections": "round, training",
    "reports": "round, exchange, signal",
    "ledger": "round",
    "flights": "round, training",
    "events": "id",
}
#: What is left of a finished run's state where it is not to be extended.
_FINAL = ("parameters", "spec", "history", "privacy")
#: A misspelt config is not a run, unless a sweep has to report it.
_DELETE_UNLESS_BEGUN_OR_PLANNED = (
    "DELETE FROM experiments WHERE id = ? AND done = 0 AND id NOT IN (SELECT experiment FROM sweeps)"
)


class Recorder(Persistence):
    """Keeps one run in a store, and holds the claim on it until it is left."""

    def __init__(
        self, store: Store, run: int, fingerprint: str, every: int = 1, *, keep_state: bool = True
    ) -> None:
        self._store, self._connection = store, store.connection
        self.run, self._fingerprint, self._every, self._keep_state = run, fingerprint, every, keep_state
        self._folder = store.checkpoint_folder(fingerprint)
        self._waiting: list[tuple[RoundRecord, Costs, dict[str, int], float]] = []
        self._durable_at = float("-inf")
        with readable():
            self._durable = int(self._row()["durable"])
        #: Rounds that are in the database.
        self._kept = 0

    def load(self) -> Saved | None:
        row = self._row()
        if not row["done"]:
            return None
        done, state = self._newest_state(row["done"], row["durable"])
        if done < row["done"]:
            self._forget_after(done)
        self._tidy(keep={done})
        self._kept = done
        return Saved(state, **vars(self.first(done)))

    @property
    def kept(self) -> int:
        return self._kept

    def first(self, count: int) -> Rounds:
        rows = self._store.rows_of_run(self.run, count)
        return Rounds(records=rows.records(), costs=rows.costs(), disclosed=rows.disclosed())

    def round_ended(
        self,
        record: RoundRecord,
        costs: Costs,
        disclosed: dict[str, int],
        state: Callable[[], State],
        stage: Stage,
    ) -> None:
        self._waiting.append((record, costs, disclosed, time.time()))
        if stage != "running" or record.round % self._every == 0:
            values = state()
            if stage == "complete" and not self._keep_state:
                values = {key: values[key] for key in _FINAL}
            self._commit(record.round, values, stage)

    def adopt(self, beginning: Saved, ended: Sequence[float], origin: str) -> None:
        """Begin with rounds that another run has done, each of which `ended` then; the run must not have begun."""
        rounds = zip(beginning.records, beginning.costs, beginning.disclosed, ended, strict=True)
        self._waiting = list(rounds)
        self._commit(len(beginning.records), beginning.state, "running")
        with translated(self._store.path), transaction(self._connection):
            self._event(len(beginning.records), "extended", origin)

    def complete_result(self) -> Result | None:
        """The result, if the run is already complete."""
        row = self._store.run(self._fingerprint)
        return self._store.result(row) if row.status == "complete" else None

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        """Note how the run ended, where no round has, and release the claim."""
        try:
            if error is not None:
                self._end(error)
        finally:
            self._store.claims.release(self.run)

    # --- writing -----------------------------------------------------------------------------------------

    def _commit(self, done: int, state: State, stage: Stage) -> None:
        durable = stage != "running" or time.monotonic() - self._durable_at > DURABLE_SECONDS
        path = self._path(done)
        self._store.check_present()
        checkpoint.save(path, self._fingerprint, state, durable)
        try:
            with translated(self._store.path), self._synchronous(durable), transaction(self._connection):
                self._write(done, stage, durable)
        except MusterError:
            # Not after an interrupt, which may come after the transaction has been committed: then this checkpoint
            # counts.
            path.unlink(missing_ok=True)
            raise
        self._waiting.clear()
        self._kept = done
        if durable:
            self._durable_at, self._durable = time.monotonic(), done
        self._tidy(keep={done, self._durable})

    def _write(self, done: int, stage: Stage, durable: bool) -> None:
        for record, costs, disclosed, ended in self._waiting:
            for table, rows in rows_of(record, costs, disclosed, ended).items():
                self._insert(table, rows)
            for kind, training, client, detail in events_of(record):
                self._event(record.round, kind, detail, training, client)
        self._connection.execute(
            "UPDATE experiments SET done = ?, status = ?, durable = iif(?, ?, durable), ended = ? WHERE id = ?",
            (done, stage, durable, done, time.time() if stage != "running" else None, self.run),
        )
        if stage != "running":
            self._event(done, stage)

    def _insert(self, table: str, rows: list[Any]) -> None:
        if rows:
            places = ", ".join("?" * (1 + len(rows[0])))
            self._connection.executemany(
                f"INSERT INTO {table} VALUES ({places})", [(self.run, *row) for row in rows]
            )

    def _event(
        self, round: int, kind: str, detail: str = "", training: int | None = None, client: int | None = None
    ) -> None:
        self._connection.execute(
            "INSERT INTO events VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)",
            (self.run, time.time(), round, kind, training, client, detail),
        )

    def _end(self, error: BaseException) -> None:
        # Nobody reads on (`muster run … | head`): what writes the progress leaves the program.
        status = "stopped" if isinstance(error, KeyboardInterrupt | SystemExit) else "failed"
        text = "" if status == "stopped" else str(error) or type(error).__name__
        # Whatever the store says now, the first error is the one to report.
        with suppress(MusterError), translated(self._store.path), transaction(self._connection):
            changed = self._connection.execute(
                "UPDATE experiments SET status = ?, error = ?, ended = ? WHERE id = ? AND status != 'complete'",
                (status, text, time.time(), self.run),
            )
            if not changed.rowcount:  # what went wrong came after the last round
                return
            self._event(self._row()["done"], status, text)
            if isinstance(error, ConfigError):
                self._connection.execute(_DELETE_UNLESS_BEGUN_OR_PLANNED, (self.run,))

    @contextmanager
    def _synchronous(self, durable: bool) -> Iterator[None]:
        """Within, a commit waits for the disk if it is to be durable."""
        if durable:
            self._connection.execute("PRAGMA synchronous = FULL")
        try:
            yield
        finally:
            if durable:
                self._connection.execute("PRAGMA synchronous = NORMAL")

    # --- resuming ----------------------------------------------------------------------------------------

    def _newest_state(self, done: int, durable: int) -> tuple[int, State]:
        try:
            return done, checkpoint.load(self._path(done), self._fingerprint)
        except CheckpointError:
            # After a power cut the last checkpoint may be missing or torn; the durable one is not.
            if durable in (0, done) or not self._path(durable).exists():
                raise
        return durable, checkpoint.load(self._path(durable), self._fingerprint)

    def _forget_after(self, done: int) -> None:
        log.warning("the last checkpoint cannot be read; going on after round %d", done)
        with translated(self._store.path), transaction(self._connection):
            lost = self._row()["done"]
            for table in ROUND_TABLES:
                self._connection.execute(
                    f"DELETE FROM {table} WHERE experiment = ? AND round > ?", (self.run, done)
                )
            self._connection.execute("UPDATE experiments SET done = ? WHERE id = ?", (done, self.run))
            self._event(done, "rolled back", f"the checkpoint of round {lost} could not be read")

    def _row(self) -> sqlite3.Row:
        with translated(self._store.path):
            row: sqlite3.Row = self._connection.execute(
                "SELECT done, durable FROM experiments WHERE id = ?", (self.run,)
            ).fetchone()
        return row

    def _path(self, round: int) -> Path:
        return self._folder / f"{round}.muster"

    def _tidy(self, keep: set[int]) -> None:
        names = {self._path(round).name for round in keep}
        for name in set(os.listdir(self._folder)) - names:
            (self._folder / name).unlink(missing_ok=True)
