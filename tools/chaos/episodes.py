"""Episodes: one piece of work, disturbed at random until it is complete, and compared with the undisturbed one."""

from __future__ import annotations

import json
import random
import signal
import sqlite3
import time
import urllib.error
import urllib.request
from collections import Counter
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from machine import FULL, Command, Counts, Disk, address_of, demand, small_disk, wait_for_progress

import muster
from muster.config.toml import to_toml
from muster.experiment import from_dict
from muster.results.store import Store

#: Disturbances of one episode.
FAULTS = 6
ROUNDS = 30
#: Seconds after which a stopped worker counts as hanging: many times what a task takes on a busy machine.
DEADLINE = 8.0

BASE: dict[str, Any] = {
    "rounds": ROUNDS,
    "data": {"source": "digits"},
    "partition": {"scheme": "dirichlet", "clients": 12, "alpha": 0.5},
    "model": {"name": "mlp", "hidden": [16]},
    "training": {"lr": 0.1, "batch_size": 4, "epochs": 2},
    "engine": {"kind": "processes", "task_deadline": DEADLINE},
}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"selection": {"method": "random", "clients_per_round": 6}},
    "several trainings a round": {
        "selection": {"method": "terraform", "clients_per_round": 6},
        "aggregation": {"method": "fedavgm"},
    },
    "clients that remember": {
        "selection": {"method": "oort", "clients_per_round": 5},
        "algorithm": {"method": "scaffold"},
        "aggregation": {"method": "scaffold"},
    },
    "answers under way": {
        "selection": {"method": "random", "clients_per_round": 4},
        "devices": {"method": "phones", "flops_per_sample": 5e9, "jitter": 0.2},
        "pacing": {"method": "buffered", "in_flight": 8, "k": 2, "max_staleness": 12},
    },
}
SWEEP: dict[str, Any] = {
    "name": "chaos",
    "seeds": [0, 1],
    "base": {key: value for key, value in BASE.items() if key != "engine"} | {"rounds": 12},
    "grid": {"selection.method": ["random", "terraform", "oort"]},
}
SWEEP["base"] |= {"selection": {"clients_per_round": 6}}


# --- runs ----------------------------------------------------------------------------------------------------


@cache
def undisturbed(kind: str) -> muster.Result:
    return muster.run(from_dict(BASE | KINDS[kind]), workers=0)


def run_episode(rng: random.Random, folder: Path, counts: Counts) -> None:
    kind = rng.choice(sorted(KINDS))
    config = folder / "experiment.toml"
    config.write_text(to_toml(BASE | KINDS[kind]), encoding="utf-8")
    with small_disk(folder / "disk") as disk:
        out = disk.folder / "out"

        def start(*options: str) -> Command:
            counts.starts += 1
            workers = str(rng.choice((0, 1, 2)))  # another number each time: the bits are the same
            return Command(folder / "log", "run", str(config), "--out", str(out), "--workers", workers, *options)

        command, done = start(), 0
        for _ in range(FAULTS):
            done = wait_for_progress(command, out, done)
            if command.alive:
                time.sleep(rng.uniform(0, 0.3))
                _disturb(rng, command, disk, counts)
            if not command.alive:
                command.check_manners()
                if command.code == 0:
                    break
                command = start("--resume")
        demand(command.wait() == 0, f"the run did not complete: {command.said()[-1500:]}")
        counts.rounds += ROUNDS
        _check_run(out, undisturbed(kind))


def _disturb(rng: random.Random, command: Command, disk: Disk, counts: Counts) -> None:
    """One fault. Afterwards the process goes on, or has ended."""
    kinds = _faults(disk)
    if command.children():
        kinds += ["kill a worker", "stop a worker"]
    fault = rng.choice(kinds)
    if fault in {"kill a worker", "stop a worker"}:
        with suppress(Exception):  # it may have ended by itself meanwhile
            rng.choice(command.children()).send_signal(
                signal.SIGKILL if fault == "kill a worker" else signal.SIGSTOP
            )
        counts.faults[fault] += 1
    else:
        _hit(rng, command, disk, counts, fault)


def _faults(disk: Disk) -> list[str]:
    """What can happen to any command."""
    return ["kill the group", "kill the process", "stop and continue", *["fill the disk"] * (2 * disk.small)]


def _hit(rng: random.Random, command: Command, disk: Disk, counts: Counts, fault: str) -> None:
    """Do that to a command, and count it."""
    match fault:
        case "kill the group":
            command.kill()
        case "kill the process":
            command.signal(signal.SIGKILL)
            command.wait(60)
        case "stop and continue":
            command.signal(signal.SIGSTOP)
            time.sleep(rng.uniform(0.1, 1.5))
            command.signal(signal.SIGCONT)
        case "fill the disk":
            disk.fill()
            code = command.wait()
            disk.make_space()
            demand(code == 0 or code in FULL, f"exit code {code} on a full disk: {command.said()[-1500:]}")
            if code == 0:
                return  # it had nothing more to write
    counts.faults[fault] += 1


def _check_run(out: Path, whole: muster.Result) -> None:
    """Bit-identical, nothing lost, nothing counted twice."""
    demand(np.array_equal(np.load(out / "parameters.npy"), whole.parameters), "other parameters")
    with Store(out) as store:
        demand(store.connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok", "a damaged database")
        (run,) = store.runs()
        result, events = store.result(run), store.events(run)
    _check_same(result, whole)
    demand([event.kind for event in events].count("complete") == 1, "a run that was completed twice")
    written = json.loads((out / "selections.json").read_text())
    demand([row["round"] for row in written] == list(range(1, len(whole.records) + 1)), "rounds in the files")


def _check_same(result: muster.Result, whole: muster.Result) -> None:
    demand(result.complete, "a run that is not complete")
    demand(np.array_equal(result.parameters, whole.parameters), "other parameters in the store")
    demand([r.round for r in result.records] == [r.round for r in whole.records], "rounds lost or doubled")
    demand([r.trainings for r in result.records] == [r.trainings for r in whole.records], "other trainings")
    demand(repr(result.metrics) == repr(whole.metrics), "other metrics or work")  # as text: NaN equals NaN
    demand(result.ledger.disclosed == whole.ledger.disclosed, "other disclosures")
    demand(np.array_equal(result.history.trainings, whole.history.trainings), "another history")


# --- sweeps, with a page on them -----------------------------------------------------------------------------


@cache
def undisturbed_sweep(path: Path) -> dict[str, muster.Result]:
    from muster.experiment.sweep import load_sweep

    return {each.fingerprint: muster.run(each, workers=0) for each in load_sweep(path).experiments()}


def sweep_episode(rng: random.Random, folder: Path, counts: Counts) -> None:
    sweep = folder.parent / "sweep.toml"
    sweep.write_text(to_toml(SWEEP), encoding="utf-8")
    with small_disk(folder / "disk") as disk:
        workspace = disk.folder / "workspace"

        def start() -> Command:
            counts.starts += 1
            command = ("sweep", str(sweep), "--workspace", str(workspace), "--jobs", "2")
            return Command(folder / "log", *command)

        command, done = start(), 0
        page = _Page(folder, workspace, counts)
        try:
            for _ in range(FAULTS):
                done = wait_for_progress(command, workspace, done)
                page.disturb(rng)
                if command.alive:
                    time.sleep(rng.uniform(0, 0.5))
                    _disturb_sweep(rng, command, disk, counts)
                if not command.alive:
                    command.check_manners()
                    if command.code == 0:
                        break
                    command = start()
                page.ask()
            while command.wait() == 9:  # a run of it failed: the same command tries it again
                command = start()
            demand(command.code == 0, f"the sweep did not complete: {command.said()[-1500:]}")
            page.ask()
        finally:
            command.kill()
            page.close()
        _check_sweep(workspace, undisturbed_sweep(sweep), counts)


def _disturb_sweep(rng: random.Random, command: Command, disk: Disk, counts: Counts) -> None:
    if rng.random() < 0.25 and (runs := [p for each in command.children() for p in each.children()]):
        with suppress(Exception):  # it may have ended by itself meanwhile
            rng.choice(runs).kill()
        counts.faults["kill a run of a sweep"] += 1
        return
    _hit(rng, command, disk, counts, rng.choice(_faults(disk)))


def _check_sweep(workspace: Path, whole: dict[str, muster.Result], counts: Counts) -> None:
    with Store(workspace) as store:
        demand(store.connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok", "a damaged database")
        runs = {run.fingerprint: run for run in store.runs(sweep="chaos")}
        demand(runs.keys() == whole.keys(), "runs of a sweep lost or in excess")
        for fingerprint, run in runs.items():
            _check_same(store.result(run), whole[fingerprint])
            kinds = Counter(event.kind for event in store.events(run))
            demand(kinds["complete"] == 1, "a run that was completed twice")
            counts.rounds += run.rounds
    with sqlite3.connect(workspace / "muster.db") as database:
        (doubled,) = database.execute(
            "SELECT count(*) FROM (SELECT 1 FROM rounds GROUP BY experiment, round HAVING count(*) > 1)"
        ).fetchone()
    database.close()
    demand(doubled == 0, "a round twice")


class _Page:
    """`muster ui` on a workspace that others write."""

    def __init__(self, folder: Path, workspace: Path, counts: Counts) -> None:
        self._folder, self._workspace, self._counts = folder, workspace, counts
        self._workspace.mkdir(parents=True, exist_ok=True)
        self._start()

    def _start(self) -> None:
        self._counts.starts += 1
        self._command = Command(self._folder / "page.log", "ui", "--workspace", str(self._workspace))
        self._address = address_of(self._command)

    def ask(self) -> None:
        """It answers, whatever has happened to the runs."""
        base, token = self._address.split("#")[0].split("?")[0].rstrip("/"), self._address.split("token=")[1]
        request = urllib.request.Request(f"{base}/api/runs", headers={"Authorization": f"Bearer {token.strip()}"})
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                json.loads(answer.read())
        except urllib.error.HTTPError as error:
            demand(error.code == 503, f"the page says {error.code}: {error.read()[:300]!r}")  # no store yet
        self._counts.answers += 1
        self._command.check_manners()

    def disturb(self, rng: random.Random) -> None:
        match rng.randrange(4):
            case 0:
                self._command.kill()
                self._counts.faults["kill the page"] += 1
                self._start()
            case 1:
                self._command.signal(signal.SIGSTOP)
                time.sleep(rng.uniform(0.05, 0.5))
                self._command.signal(signal.SIGCONT)
                self._counts.faults["stop the page"] += 1

    def close(self) -> None:
        self._command.kill()
