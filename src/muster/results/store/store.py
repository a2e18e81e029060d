"""The store itself: finding, reading, starting and deleting runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import sqlite3
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from muster.config.experiment import Experiment, checkpoint_options
from muster.core.errors import UNREADABLE, CheckpointError, ConfigError, OutputError, StoreError
from muster.core.parameters import ParameterSpec
from muster.results import checkpoint
from muster.results.store.claims import Claims
from muster.results.store.codec import RecordReader, readable
from muster.results.store.environment import code_version, environment
from muster.results.store.recorder import ROUND_TABLES, Recorder
from muster.results.store.runs import Event, Run, Status, fits, run_from
from muster.results.store.schema import open_database, transaction, translated
from muster.results.store.watch import FileWatch
from muster.selection.history import History
from muster.server.ledger import Ledger
from muster.server.result import Result

DATABASE = "muster.db"
CLAIMS = "muster.claims"
CHECKPOINTS = "checkpoints"
WORKSPACE_VARIABLE = "MUSTER_WORKSPACE"

#: What separates folders or is refused in names of files, and how many bytes of such a name are for a title.
_NO_PART_OF_A_NAME = re.compile(r"[/\\\x00-\x1f]")
_LONGEST_NAME = 200

#: Comes after every other character.
_LAST = "\U0010ffff"


def workspace(folder: Path | str | None = None) -> Path:
    """The workspace: as given, or from MUSTER_WORKSPACE, or `runs`."""
    return Path(folder or os.environ.get(WORKSPACE_VARIABLE) or "runs")


def plain_folder(folder: Path, experiment: Experiment) -> Path:
    """Where the plain files of an experiment go in a workspace; its name is a label, and never leads out of it."""
    name = _NO_PART_OF_A_NAME.sub("-", experiment.title)
    short = name.encode(errors="replace")[:_LONGEST_NAME].decode(errors="ignore")
    return folder / f"{short}-{experiment.fingerprint[:8]}"


class Store:
    """A workspace's runs. Cheap to open; use one for each thread and process."""

    def __init__(self, folder: Path | str, *, create: bool = True) -> None:
        self.folder = Path(folder)
        self.path = self.folder / DATABASE
        if not create and not self.path.exists():
            raise StoreError(
                f"there is no store in {self.folder}",
                expected=f"a folder with {DATABASE}",
                fix="run something first, or name the folder with --workspace or MUSTER_WORKSPACE",
            )
        self.connection = open_database(self.path)
        self.claims = Claims(self.folder / CLAIMS)
        self._watch = FileWatch(self.path)

    def check_present(self) -> None:
        """Refuse to continue if the database was deleted or overwritten: SQLite would write into nothing."""
        if not self._watch.sound():
            raise StoreError(
                f"the store {self.path} was deleted, replaced or overwritten while it was written to",
                fix="restore it from a backup and continue with --resume, or run the experiment again",
            )

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.connection.close()
        self._watch.close()
        self.claims.close()

    def checkpoint_folder(self, fingerprint: str) -> Path:
        return self.folder / CHECKPOINTS / fingerprint

    # --- reading -----------------------------------------------------------------------------------------

    def runs(
        self,
        *,
        sweep: str | None = None,
        name: str | None = None,
        method: str | None = None,
        seed: int | None = None,
        fingerprint: str | None = None,
        status: Status | Collection[Status] | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> list[Run]:
        """The runs that fit everything that is given, oldest first.

        `fingerprint` may be its beginning; `where` maps dotted config keys to values ({"training.lr": 0.1}), which
        a run may also have by default. In a sweep runs have the names that the sweep gives them.
        """
        wanted = {status} if isinstance(status, str) else set(status or ())
        return [
            run
            for run in self._all_runs(sweep, fingerprint)
            if (name is None or run.name == name)
            and (method is None or run.method == method)
            and (seed is None or run.seed == seed)
            and (not wanted or run.status in wanted)
            and fits(run.config, where or {})
        ]

    def run(self, fingerprint: str) -> Run:
        """The one run whose fingerprint begins like this."""
        found = self.runs(fingerprint=fingerprint) if fingerprint else []
        if len(found) != 1:
            problem = f"no run begins with '{fingerprint}'" if not found else f"'{fingerprint}' is ambiguous"
            known = ", ".join(f"{run.fingerprint[:8]} ({run.name})" for run in (found or self.runs())[:10])
            raise ConfigError(f"{problem} in {self.path}", expected=known or "a run; there is none")
        return found[0]

    def other_lengths(self, experiment: Experiment) -> list[Run]:
        """The runs of the same experiment with another number of rounds, shortest first."""
        lengths = [row[0] for row in self._rows("SELECT DISTINCT rounds FROM experiments ORDER BY rounds")]
        others = [replace(experiment, rounds=length) for length in lengths if length != experiment.rounds]
        return [run for other in others for run in self.runs(fingerprint=other.fingerprint)]

    def results(
        self,
        *,
        status: Status | Collection[Status] | None = "complete",
        parameters: bool = True,
        **filters: Any,
    ) -> list[Result]:
        """The results of the runs that `runs(...)` finds; only complete ones unless `status` says otherwise.

        Runs that have no round yet are left out. Without `parameters` the models are not read, which is quicker.
        """
        return [self.result(run, parameters) for run in self.runs(status=status, **filters) if run.done]

    def result(self, run: Run | str, parameters: bool = True) -> Result:
        """Everything that a run has left; without `parameters` that vector is empty."""
        run = self.run(run) if isinstance(run, str) else run
        while True:
            try:
                return self._result(run, parameters)
            except CheckpointError:
                now = self._rows("SELECT done, status FROM experiments WHERE id = ?", (run.id,))
                if not now or now[0]["done"] == run.done:
                    raise
                # It is running: the round that we knew of is no longer the last.
                run = replace(run, done=now[0]["done"], status=now[0]["status"])

    def _result(self, run: Run, parameters: bool) -> Result:
        keys = ("parameters", "spec", "history", "privacy") if parameters else ("spec", "history", "privacy")
        state = checkpoint.load(
            self.checkpoint_folder(run.fingerprint) / f"{run.done}.muster", run.fingerprint, keys
        )
        rows = self.rows_of_run(run.id, run.done)
        history, ledger = History(0), Ledger(rows.costs(), rows.disclosed())
        try:
            history.load_state_dict(state["history"])
            ledger.privacy.load_state_dict(state["privacy"])
            spec = ParameterSpec.from_state(state["spec"])
        except UNREADABLE as error:
            raise CheckpointError(
                f"the last checkpoint of run {run.fingerprint[:8]} holds something else than a run ({error!r})",
                fix="restore it from a backup, or delete the run (`muster runs delete`) and start it again",
            ) from error
        return Result(
            parameters=state.get("parameters", np.empty(0, dtype=np.float32)),
            records=rows.records(),
            ledger=ledger,
            history=history,
            spec=spec,
            complete=run.status == "complete",
            name=run.name,
            config=run.config,
            provenance=run.provenance,
        )

    def events(self, run: Run) -> list[Event]:
        """What happened to a run, in order."""
        rows = self._rows("SELECT * FROM events WHERE experiment = ? ORDER BY id", (run.id,))
        names = ("time", "round", "kind", "training", "client", "detail")
        return [Event(*(row[name] for name in names)) for row in rows]

    def metric_names(self, run: Run) -> list[str]:
        """The metrics that a run has, in their order."""
        statement = "SELECT name FROM metrics WHERE experiment = ? GROUP BY name ORDER BY min(position)"
        return [row[0] for row in self._rows(statement, (run.id,))]

    def sweep_names(self) -> list[str]:
        return [row[0] for row in self._rows("SELECT DISTINCT sweep FROM sweeps ORDER BY sweep")]

    def rows_of_run(self, run: int, done: int) -> RecordReader:
        """The first `done` rounds of a run."""
        with translated(self.path):
            self.connection.execute("BEGIN")
            try:
                rows = {
                    table: self._rows(
                        f"SELECT * FROM {table} WHERE experiment = ? AND round <= ? ORDER BY {order}", (run, done)
                    )
                    for table, order in ROUND_TABLES.items()
                }
            finally:
                self.connection.execute("COMMIT")
        with readable():
            for table in ("rounds", "ledger"):
                if [row["round"] for row in rows[table]] != list(range(1, done + 1)):
                    raise ValueError(f"{len(rows[table])} of {done} rounds are in the table '{table}'")
        return RecordReader(rows)

    # --- writing -----------------------------------------------------------------------------------------

    def plan(self, experiments: Iterable[Experiment], sweep: str | None = None) -> list[Run]:
        """Record what is going to be run; known runs join the sweep as they are."""
        planned = {experiment.fingerprint: experiment for experiment in experiments}
        with translated(self.path), transaction(self.connection):
            for fingerprint, experiment in planned.items():
                row = self._ensure(fingerprint, _described(experiment))
                if sweep is not None:
                    self.connection.execute(
                        "INSERT INTO sweeps VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET name = excluded.name",
                        (sweep, row["id"], experiment.title),
                    )
        return [run for run in self.runs(sweep=sweep) if run.fingerprint in planned]

    def recorder(self, experiment: Experiment, resume: bool = False) -> Recorder:
        """Claim an experiment's run to write it; one that has begun is refused unless `resume` is set."""
        habits = checkpoint_options(experiment)
        return self.claim(
            experiment.fingerprint,
            _described(experiment),
            every=habits.every,
            keep_state=habits.final == "state",
            resume=resume,
        )

    def claim(
        self,
        fingerprint: str,
        description: Mapping[str, Any],
        *,
        every: int = 1,
        keep_state: bool = True,
        resume: bool = False,
    ) -> Recorder:
        """As `recorder`, for a run that has no `Experiment`: `description` has name, seed, rounds and config."""
        with translated(self.path), transaction(self.connection):
            row = self._ensure(fingerprint, description)
            if not self.claims.take(row["id"]):
                # Asked first: a run that is under way is neither to be continued nor to be begun anew.
                raise OutputError(
                    f"the run {fingerprint[:8]} is being run by another process ({row['pid']} on {row['host']})",
                    fix="wait for it, or stop it",
                )
            try:
                if row["done"] and not resume:
                    complete = row["done"] == row["rounds"]
                    raise OutputError(
                        f"{self.folder} already holds {'this run' if complete else 'a part of this run'}: "
                        f"{fingerprint[:8]}, {row['done']} of {row['rounds']} rounds",
                        fix="see its result with --resume, or extend it with more --rounds"
                        if complete
                        else "continue it with --resume, or choose another output folder",
                    )
                self._begin(row, description)
            except BaseException:
                self.claims.release(row["id"])
                raise
        return Recorder(self, row["id"], fingerprint, every, keep_state=keep_state)

    def delete(self, run: Run) -> None:
        """Remove a run, its rounds and its checkpoint; plain result files stay where they are."""
        if not self.claims.take(run.id):
            raise OutputError(f"the run {run.fingerprint[:8]} is being run right now", fix="stop it first")
        try:
            with translated(self.path):
                with transaction(self.connection):
                    self.connection.execute("DELETE FROM experiments WHERE id = ?", (run.id,))
                    # Before another process can start the same experiment again, in the same folder.
                    shutil.rmtree(self.checkpoint_folder(run.fingerprint), ignore_errors=True)
                self.connection.execute("PRAGMA incremental_vacuum").fetchall()
        finally:
            self.claims.release(run.id)

    # --- rows --------------------------------------------------------------------------------------------

    def _all_runs(self, sweep: str | None, fingerprint: str | None) -> list[Run]:
        # A range of fingerprints, because their index finds it: a sweep looks for each of its runs among all.
        begin = fingerprint or ""
        chosen, values = "SELECT id FROM experiments WHERE fingerprint BETWEEN ? AND ?", [begin, begin + _LAST]
        if sweep is not None:
            chosen += " AND id IN (SELECT experiment FROM sweeps WHERE sweep = ?)"
            values.append(sweep)
        rows = self._rows(
            "SELECT *, coalesce((SELECT sum(seconds) FROM ledger WHERE experiment = id), 0) AS seconds "
            f"FROM experiments WHERE id IN ({chosen}) ORDER BY id",
            tuple(values),
        )
        members = f"SELECT sweep, experiment, name FROM sweeps WHERE experiment IN ({chosen}) ORDER BY sweep"
        names: dict[int, dict[str, str]] = {row["id"]: {} for row in rows}
        for member in self._rows(members, tuple(values)):
            names.setdefault(member["experiment"], {})[member["sweep"]] = member["name"]
        found = []
        for row in rows:
            alive = row["status"] == "running" and self.claims.taken(row["id"])
            sweeps = names[row["id"]]
            with readable():
                found.append(run_from(row, alive, list(sweeps), sweeps.get(sweep or "")))
        return found

    def _ensure(self, fingerprint: str, description: Mapping[str, Any]) -> sqlite3.Row:
        self.connection.execute(
            "INSERT INTO experiments (fingerprint, name, seed, config, rounds, status, code_version, environment, "
            "created, started, pid, host) VALUES (?, ?, ?, ?, ?, 'planned', '', '{}', ?, 0, 0, '') "
            "ON CONFLICT DO NOTHING",
            (
                fingerprint,
                description["name"],
                description["seed"],
                json.dumps(description["config"]),
                description["rounds"],
                time.time(),
            ),
        )
        row: sqlite3.Row = self.connection.execute(
            "SELECT * FROM experiments WHERE fingerprint = ?", (fingerprint,)
        ).fetchone()
        return row

    def _begin(self, row: sqlite3.Row, description: Mapping[str, Any]) -> None:
        if row["status"] == "complete":
            return
        now = time.time()
        self.connection.execute(
            "UPDATE experiments SET name = ?, status = 'running', error = '', code_version = ?, environment = ?, "
            "started = ?, ended = NULL, pid = ?, host = ? WHERE id = ?",
            (
                description["name"],
                code_version(),
                json.dumps(environment()),
                now,
                os.getpid(),
                socket.gethostname(),
                row["id"],
            ),
        )
        kind = "started" if row["status"] == "planned" else "resumed"
        detail = "its process had ended without a word" if row["status"] == "running" else ""
        self.connection.execute(
            "INSERT INTO events (experiment, time, round, kind, detail) VALUES (?, ?, ?, ?, ?)",
            (row["id"], now, row["done"], kind, detail),
        )

    def _rows(self, statement: str, values: tuple[Any, ...] = ()) -> list[Any]:
        with translated(self.path):
            return self.connection.execute(statement, values).fetchall()


def _described(experiment: Experiment) -> dict[str, Any]:
    config = experiment.described()
    return {"name": experiment.title, "seed": config["seed"], "rounds": config["rounds"], "config": config}
