"""The live page's speed: the list of 10,000 runs, a run of 10,000 rounds × 100 clients, idling, and watching.

    python benchmarks/ui.py [--runs 10000] [--rounds 10000] [--only list,run,idle,page,watch] [--out FILE]

`list`, `run` and `idle` ask the server; processor time is told beside wall time, for a busy machine measures it as
well as a quiet one. `page` looks at the same in Chromium, until it is drawn (left out where there is none).
`watch`: one run, with a page that watches it in every second stretch of its time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import psutil

from muster.config.experiment import from_dict
from muster.core.arrays import Floats
from muster.results.store import DATABASE, Store
from muster.results.store.codec import rows_of
from muster.server.ledger import Costs
from muster.server.record import RoundRecord, TrainingRecord

METHODS = ("random", "terraform", "oort", "hics", "divfl")
METRICS = ("accuracy", "loss", "precision", "recall", "f1", "client_accuracy_mean", "client_accuracy_worst")


def described(number: int, rounds: int) -> dict[str, Any]:
    """The description of a made-up run."""
    config = from_dict(
        {
            "rounds": rounds,
            "seed": number,
            "selection": {"method": METHODS[number % 5], "clients_per_round": 100},
            "partition": {"scheme": "dirichlet", "clients": 1000, "alpha": (0.1, 0.3, 1.0)[number % 3]},
        }
    ).described()
    return {"name": f"{METHODS[number % 5]}-{number}", "seed": number, "rounds": rounds, "config": config}


def fill(folder: Path, runs: int, rounds: int, clients: int, cohort: int) -> None:
    """Complete runs with made-up numbers, written as the recorder writes them but in one transaction."""
    rng = np.random.default_rng(0)
    with Store(folder) as store:
        connection = store.connection
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("BEGIN IMMEDIATE")
        for number in range(runs):
            row = store._ensure(f"{number:016x}", described(number, rounds))
            for number_of_round in range(1, rounds + 1):
                record = _record(number_of_round, clients, cohort, rng, tested=rounds > 100)
                _write_round(connection, row["id"], record)
            connection.execute(
                "UPDATE experiments SET status = 'complete', done = ?, started = 1, ended = 2 WHERE id = ?",
                (rounds, row["id"]),
            )
        connection.execute("COMMIT")


def _record(number: int, clients: int, cohort: int, rng: np.random.Generator, *, tested: bool) -> RoundRecord:
    values = dict(zip(METRICS, rng.random(len(METRICS)).tolist(), strict=True))
    ids = np.sort(rng.choice(clients, cohort, replace=False)).tolist()
    record = RoundRecord(number, [TrainingRecord(ids, [1 / cohort] * cohort)], metrics=values)
    if tested and number % 10 == 0:
        record.client_accuracy = rng.random(clients).astype(np.float32)
    return record


def _write_round(connection: Any, run: int, record: RoundRecord) -> None:
    cohort = len(record.trainings[0].clients)
    costs = Costs(cohort, cohort * 10, cohort * 100, 0, 10**6, 10**6, 0.01, 0.0, 0.1)
    for table, rows in rows_of(record, costs, {"model update": cohort}, 0.0).items():
        if rows:
            places = ", ".join("?" * (1 + len(rows[0])))
            connection.executemany(f"INSERT INTO {table} VALUES ({places})", [(run, *row) for row in rows])


class Server:
    """A page in a process of its own, and what it spends."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "muster.cli.main", "ui", "--workspace", str(folder)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        self.address = self._process.stdout.readline().strip()
        self._base, _, self._token = self.address.partition("/?token=")
        self._facts = psutil.Process(self._process.pid)

    def open(self, path: str) -> Any:
        request = urllib.request.Request(
            f"{self._base}/api/{path}", headers={"Authorization": f"Bearer {self._token}"}
        )
        return urllib.request.urlopen(request, timeout=300)

    def spent(self) -> float:
        times = self._facts.cpu_times()
        return float(times.user + times.system)

    def measured(self, *paths: str) -> dict[str, float]:
        """Milliseconds of processor and wall, and kilobytes, of asking these one after the other."""
        before, start, size = self.spent(), time.perf_counter(), 0
        for path in paths:
            with self.open(path) as answer:
                size += len(answer.read())
        return {
            "processor_ms": round(1000 * (self.spent() - before), 1),
            "wall_ms": round(1000 * (time.perf_counter() - start), 1),
            "kilobytes": round(size / 1000, 1),
        }

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()


@contextmanager
def served(folder: Path) -> Iterator[Server]:
    server = Server(folder)
    try:
        yield server
    finally:
        server.close()


def measure_list(folder: Path, runs: int) -> dict[str, Any]:
    """The list: the first answer after the start, later ones, and what the start takes, which reads everything."""
    begun = time.perf_counter()
    with served(folder) as server:
        ready = time.perf_counter() - begun
        first = server.measured("runs")
        later = sorted((server.measured("runs") for _ in range(5)), key=lambda one: one["wall_ms"])[2]
        spent = server.spent()
    return {
        "runs": runs,
        "first": first,
        "later": later,
        "start": {"wall_ms": round(1000 * ready), "processor_ms": round(1000 * spent)},
    }


def measure_run(folder: Path, rounds: int) -> dict[str, Any]:
    """Everything that opening a run asks for, and what its other parts ask for."""
    key, found = f"run/{0:016x}", {}
    with served(folder) as server:
        server.measured("runs")
        found["open"] = server.measured(key, f"{key}/curves?metrics={','.join(METRICS)}")
        for part in ("map", "clients", "client/5", "costs", "events"):
            found[part] = server.measured(f"{key}/{part}")
        found["map, again"] = server.measured(f"{key}/map?by=trained")
    return {"rounds": rounds, **found}


def measure_idle(folder: Path, seconds: float) -> dict[str, Any]:
    """The server's share of a core while a page watches a store in which nothing happens."""
    with served(folder) as server:
        server.measured("runs")
        with server.open("changes") as stream:
            stream.readline()
            time.sleep(2.0)
            before = server.spent()
            time.sleep(seconds)
            spent = server.spent() - before
    return {"seconds": seconds, "share_of_a_core": round(spent / seconds, 5)}


#: Milliseconds until something can be seen in a browser, from now or, without a place, from the navigation.
_SEEN = """([place, sign]) => new Promise((done) => {
  const start = place === null ? 0 : performance.now();
  if (place !== null) location.hash = place;
  const look = () => document.querySelector(sign)
    ? requestAnimationFrame(() => setTimeout(() => done(performance.now() - start))) : requestAnimationFrame(look);
  look();
})"""
#: Scrolls the table by so many pixels a frame, for 300 frames, and tells how long they took.
_SCROLLED = """(step) => new Promise((done) => {
  const box = document.querySelector(".grid"), frames = [];
  box.scrollTop = 0;
  let last = performance.now();
  const next = (now) => {
    frames.push(now - last);
    last = now;
    box.scrollTop += step;
    if (frames.length < 300) requestAnimationFrame(next); else done(frames.slice(1));
  };
  requestAnimationFrame(next);
})"""


def measure_page(many: Path, long: Path, seconds: float) -> dict[str, Any]:
    """The same in a browser: until it is drawn, how smoothly it scrolls, and what the browser spends on idling."""
    from playwright.sync_api import sync_playwright

    found: dict[str, Any] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        for name, folder in (("many", many), ("long", long)):
            with served(folder) as server:
                page = browser.new_page(viewport={"width": 1280, "height": 900})
                page.goto(server.address)
                page.locator(
                    ".grid tbody a"
                ).first.wait_for()  # a browser that has just begun is not what is measured
                page.reload(wait_until="commit")
                found[f"{name}: page opened until the list is drawn"] = page.evaluate(
                    _SEEN, [None, ".grid tbody a"]
                )
                if name == "many":
                    for speed, pixels in (("wheel", 60), ("scroll bar", 1200)):
                        frames = np.array(page.evaluate(_SCROLLED, pixels))
                        found[f"scrolling by the {speed}, milliseconds a frame"] = {
                            "median": float(np.median(frames)),
                            "99 %": float(np.quantile(frames, 0.99)),
                            "longest": float(frames.max()),
                        }
                    found["idle, share of a core"] = _spent_by_browser(seconds) / seconds
                    page.goto("about:blank")
                    found["blank page, share of a core"] = _spent_by_browser(seconds) / seconds
                else:
                    place = f"#/run/{0:016x}"
                    for part, sign in (("", ".chart canvas"), ("/map", ".cells canvas[aria-label]")):
                        found[f"run{part} until it is drawn"] = page.evaluate(_SEEN, [f"{place}{part}", sign])
                page.close()
        browser.close()
    rounded: dict[str, Any] = json.loads(json.dumps(found), parse_float=lambda text: round(float(text), 4))
    return rounded


def _spent_by_browser(seconds: float) -> float:
    """Processor time of all of Chromium's processes while nothing happens."""

    def spent() -> float:
        times = [
            process.cpu_times()
            for process in psutil.Process().children(recursive=True)
            if "chrom" in process.name()
        ]
        return sum(own.user + own.system for own in times)

    # A browser goes on working after a page was loaded or scrolled: 1.15 % of a core in the first 20 s. Only after
    # about 35 s it spends what the page costs at rest: 0.05 to 0.3 %, a blank page 0.1 to 0.15 %.
    time.sleep(40.0)
    before = spent()
    time.sleep(seconds)
    return spent() - before


_RUN = """
import json, sys, time
from muster.experiment import from_dict
from muster.experiment.runner import run
from muster.server.loop import Observer

class Meter(Observer):
    def __init__(self):
        self.rows = []
    def round_ended(self, record, ledger):
        self.rows.append((time.monotonic(), time.process_time()))

values = {"rounds": int(sys.argv[2]), "partition": {"scheme": "iid", "clients": 100},
          "selection": {"method": "random", "clients_per_round": 10}}
meter = Meter()
run(from_dict(values), 0, store=sys.argv[1], observers=[meter])
print(json.dumps(meter.rows))
"""


def measure_watching(folder: Path, rounds: int, seconds: float) -> dict[str, Any]:
    """What watching adds to the processor time of a round: one run, watched in every second stretch of its time.

    Single runs of the same experiment differ by more than a tenth on a busy machine; stretches of a second that
    follow each other in one process differ much less.
    """
    command = [sys.executable, "-c", _RUN, str(folder), str(rounds)]
    with served(folder) as server:
        run = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}
        )
        # Read in a thread: the run waits for nobody when it prints.
        heard: list[str] = []
        reader = Thread(target=lambda: heard.append(run.communicate()[0]))
        reader.start()
        while run.poll() is None and not (folder / DATABASE).exists():
            time.sleep(0.1)
        switches = []
        while run.poll() is None:
            with server.open("changes") as stream:
                stream.readline()
                switches.append(time.monotonic())
                _look_at_the_run(server, until=switches[-1] + seconds)
            switches.append(time.monotonic())
            time.sleep(seconds)
        reader.join()
        spent = server.spent()
    found = watched_against_alone(np.array(json.loads(heard[0])), np.array(switches))
    return {"rounds": rounds, "stretch_seconds": seconds, "page_seconds": round(spent, 2), **found}


def _look_at_the_run(server: Server, until: float) -> None:
    """Ask for its head and its curves about twice a second, as a page that shows them does."""
    with server.open("runs") as answer:
        known = json.load(answer)["columns"]["fingerprint"]
    while time.monotonic() < until:
        for key in known:
            server.measured(f"run/{key}", f"run/{key}/curves?metrics={','.join(METRICS)}")
        time.sleep(max(0.0, min(0.5, until - time.monotonic())))


def watched_against_alone(rounds: Floats, switches: Floats) -> dict[str, Any]:
    """Rounds (when each ended, processor time by then) and the moments at which watching began, ended, began, …

    A round belongs to a stretch if it began and ended in it. Each watched stretch is compared with the mean of its
    two neighbours; the interval is of the mean, by bootstrap.
    """
    place = np.searchsorted(switches, rounds[:, 0])
    whole = place[1:] == place[:-1]
    spent, place = np.diff(rounds[:, 1])[whole], place[1:][whole]
    means = {int(number): float(spent[place == number].mean()) for number in np.unique(place) if number}
    ratios = [
        means[number] / (0.5 * (means[number - 1] + means[number + 1])) - 1
        for number in means
        if number % 2 and number - 1 in means and number + 1 in means
    ]
    rng = np.random.default_rng(0)
    drawn = rng.choice(ratios, (10_000, len(ratios))).mean(axis=1)
    return {
        "stretches": len(ratios),
        "round_ms": round(1000 * float(np.median(spent)), 2),
        "slower_by": round(float(np.mean(ratios)), 4),
        "interval_95": [round(float(end), 4) for end in np.quantile(drawn, (0.025, 0.975))],
        "median": round(float(np.median(ratios)), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--idle-seconds", type=float, default=20.0)
    parser.add_argument("--watched-rounds", type=int, default=10_000)
    parser.add_argument("--stretch-seconds", type=float, default=1.0)
    parser.add_argument("--only", default="list,run,idle,page,watch")
    parser.add_argument("--stores", type=Path, help="a folder for the made-up stores; what is there is used again")
    parser.add_argument("--out", type=Path)
    wanted = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        stores = wanted.stores or Path(name)
        many, long = stores / f"runs-{wanted.runs}", stores / f"rounds-{wanted.rounds}"
        parts = wanted.only.split(",")
        if {"list", "idle", "page"} & {*parts} and not many.exists():
            fill(many, wanted.runs, rounds=20, clients=1000, cohort=10)
        if {"run", "page"} & {*parts} and not long.exists():
            fill(long, 1, wanted.rounds, clients=1000, cohort=100)
        for part in parts:
            match part:
                case "list":
                    found[part] = measure_list(many, wanted.runs)
                case "run":
                    found[part] = measure_run(long, wanted.rounds)
                case "idle":
                    found[part] = measure_idle(many, wanted.idle_seconds)
                case "page":
                    if shutil.which("chromium") is None:
                        continue
                    found[part] = measure_page(many, long, wanted.idle_seconds)
                case "watch":
                    found[part] = measure_watching(
                        Path(name, "watched"), wanted.watched_rounds, wanted.stretch_seconds
                    )
            print(json.dumps({part: found[part]}, indent=1), flush=True)
    if wanted.out:
        wanted.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
