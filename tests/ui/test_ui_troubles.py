"""The page outlives its store: missing, locked, deleted, newer, older, damaged, foreign; and well again."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time

import pytest

from muster.core.errors import OutputError, StoreError
from muster.results.store import Store
from muster.results.store.store import CLAIMS
from muster.ui import changes, database
from muster.ui.catalogue import Catalogue
from muster.ui.changes import Watcher


@pytest.fixture
def copy(workspace, tmp_path):
    """A workspace that may be broken."""
    with Store(workspace) as store:
        store.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    folder = tmp_path / "copy"
    shutil.copytree(workspace, folder)
    return folder


def test_no_store_yet_and_then_one(visit, tmp_path, workspace):
    page = visit(tmp_path / "new")
    assert "no store" in page.ask("runs", status=503)["problem"]
    shutil.copytree(workspace, tmp_path / "new")
    assert len(page.ask("runs")["columns"]["name"]) == 4


def test_deleted_and_made_anew(visit, copy, make_experiment):
    page = visit(copy)
    assert len(page.ask("runs")["columns"]["name"]) == 4
    shutil.rmtree(copy)
    assert "no store" in page.ask("runs", status=503)["problem"]
    with Store(copy) as store:
        store.plan([make_experiment(name="only this")])
        assert page.ask("runs")["columns"]["name"] == ["only this"]


def test_newer_and_older(visit, copy):
    for version, words in ((99, "newer version"), (1, "older version")):
        connection = sqlite3.connect(copy / "muster.db")
        connection.execute(f"PRAGMA user_version = {version}")
        connection.close()
        assert words in visit(copy).ask("runs", status=503)["problem"]


def test_damaged(visit, copy):
    page = visit(copy)
    page.ask("runs")
    with (copy / "muster.db").open("r+b") as file:
        file.seek(100)
        file.write(os.urandom(60_000))
    answer = page.ask("runs", status=503)
    assert "damaged" in answer["problem"] or "cannot be read" in answer["problem"]
    (copy / "muster.db").write_bytes(b"no database at all" * 500)
    assert "damaged" in page.ask("runs", status=503)["problem"]


def test_a_row_that_cannot_be_read(visit, copy):
    with Store(copy) as store:
        store.connection.execute("UPDATE selections SET clients = x'07ff' WHERE experiment = 1")
        store.connection.execute("UPDATE ledger SET disclosed = '[' WHERE experiment = 1")
    page = visit(copy)
    key = page.ask("runs")["columns"]["fingerprint"][0]
    for part in ("map", "clients", "client/1", "costs"):
        assert "a row that cannot be read" in page.ask(f"run/{key}/{part}", status=503)["problem"]
    assert page.ask(f"run/{key}/events")["events"], "what can be read is shown"


def test_of_another_program(visit, tmp_path):
    connection = sqlite3.connect(tmp_path / "muster.db")
    connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    assert "another program" in visit(tmp_path).ask("runs", status=503)["problem"]


def test_locked_and_free_again(visit, copy, monkeypatch):
    monkeypatch.setattr(database, "PATIENCE_SECONDS", 0.05)
    holder = sqlite3.connect(copy / "muster.db", isolation_level=None)
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    page = visit(copy)
    assert "locked" in page.ask("runs", status=503)["problem"]
    holder.execute("COMMIT")
    holder.close()
    assert len(page.ask("runs")["columns"]["name"]) == 4


# --- what has changed ------------------------------------------------------------------------------------


def test_a_watcher_hears_of_new_rounds_new_runs_and_troubles(copy, make_experiment):
    watcher = Watcher(copy)
    assert watcher.look()["reload"]
    assert watcher.look() is None, "nothing has happened"
    with Store(copy) as store:
        store.plan([make_experiment(seed=99)])
        assert watcher.look()["reload"]
        store.connection.execute("UPDATE experiments SET done = 3, status = 'stopped' WHERE id = 1")
        news = watcher.look()
        assert [(run["done"], run["status"]) for run in news["runs"]] == [(3, "stopped")]
        assert not news["reload"]
    shutil.rmtree(copy)
    assert "no store" in watcher.look()["trouble"]["problem"]
    assert watcher.look() is None, "one trouble is told once"


def test_what_passes_between_rounds_counts_for_the_time_left(copy):
    catalogue, now = Catalogue(), time.time()
    with Store(copy) as store:
        write = store.connection.execute
        write("UPDATE experiments SET status = 'running', rounds = 105, started = ? WHERE id = 1", (now - 30,))
        write("UPDATE rounds SET ended = ? + 3 * (round - 5) WHERE experiment = 1", (now,))
        write("UPDATE rounds SET ended = ? WHERE experiment = 1 AND round = 1", (now - 5000,))  # before a resume
        catalogue.refresh(store.connection, set)
    left = catalogue.entries[1].seconds_left(now)
    assert left == pytest.approx(300, abs=0.1), "100 rounds of 3 seconds each, however short their trainings were"


def test_a_round_that_ends_while_the_page_reads_is_counted_once(copy):
    catalogue = Catalogue()
    totals = {}
    with Store(copy) as store:
        write = store.connection.execute

        def a_round_ends(_):
            write("BEGIN IMMEDIATE")
            write("INSERT INTO ledger SELECT * FROM later")
            write("UPDATE experiments SET done = 5 WHERE id = 1")
            write("COMMIT")
            return set()

        for name in ("client_trainings", "seconds"):
            totals[name] = write(f"SELECT sum({name}) FROM ledger WHERE experiment = 1").fetchone()[0]
        write("CREATE TEMP TABLE later AS SELECT * FROM ledger WHERE experiment = 1 AND round = 5")
        write("DELETE FROM ledger WHERE experiment = 1 AND round = 5")
        write("UPDATE experiments SET done = 4 WHERE id = 1")
        with database.reading(copy) as connection:
            catalogue.refresh(connection, a_round_ends)
        assert catalogue.entries[1].totals["client_trainings"] < totals["client_trainings"]
        with database.reading(copy) as connection:
            catalogue.refresh(connection, lambda _: set())
    assert {name: catalogue.entries[1].totals[name] for name in totals} == pytest.approx(totals)


def test_a_workspace_that_may_only_be_read_still_shows_its_runs(copy, monkeypatch):
    def refused(path):
        raise OutputError(f"cannot open {path}: Permission denied")

    with Store(copy) as store:
        store.connection.execute("UPDATE experiments SET status = 'running' WHERE id = 1")
    (copy / CLAIMS).touch()
    assert database.being_run(copy, [1]) == set(), "nobody runs it"
    monkeypatch.setattr(database, "Claims", refused)
    watcher = Watcher(copy)
    watcher.look()
    assert watcher.catalogue.entries[1].status == "running", "nothing speaks against what the store says"


def test_a_file_system_without_locks(copy, monkeypatch):
    def without_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    (copy / CLAIMS).touch()
    monkeypatch.setattr("muster.results.store.claims.fcntl.lockf", without_locks)
    assert database.being_run(copy, [1, 3]) == {1, 3}


def heard(watcher, messages, seconds=20.0):
    """The first messages that a page gets while the watcher watches."""

    async def listen():
        found, end = [], time.monotonic() + seconds
        watching = asyncio.create_task(watcher.watch())
        async for text in watcher.stream(lambda: time.monotonic() > end):
            found.append(text)
            if len(found) == messages:
                break
        watching.cancel()
        return found

    return asyncio.run(listen())


def test_a_look_that_fails_is_logged_once_and_the_next_one_is_told(copy, monkeypatch, caplog):
    watcher, looks = Watcher(copy), []
    refresh = Catalogue.refresh

    def shaky(self, connection, alive):
        looks.append(refresh(self, connection, alive))
        if len(looks) < 4:
            raise RuntimeError("unforeseen")
        return looks[-1]

    monkeypatch.setattr(changes, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(Catalogue, "refresh", shaky)
    hello, change = heard(watcher, 2)
    assert "hello" in hello
    assert '"reload":true' in change.replace(" ", "")
    assert len(watcher.catalogue.entries) == 4
    assert [record.message.startswith("the page could not look at") for record in caplog.records] == [True]


def test_a_page_that_takes_nothing_is_told_to_load_anew(copy):
    watcher, queue = Watcher(copy), asyncio.Queue(3)
    for number in range(5):
        watcher._put(queue, str(number))
    waiting = [queue.get_nowait() for _ in range(queue.qsize())]
    assert json.loads(waiting[0]) == {"runs": [], "reload": True, "trouble": None}
    assert waiting[1:] == ["4"]


def test_the_list_is_written_once_until_something_changes(copy):
    watcher = Watcher(copy)
    first = watcher.listed()
    assert watcher.listed() is first
    with Store(copy) as store:
        store.connection.execute("UPDATE experiments SET name = 'renamed' WHERE id = 1")
        assert json.loads(watcher.listed())["columns"]["name"][0] == "renamed"
    shutil.rmtree(copy)
    with pytest.raises(StoreError, match="no store"):
        watcher.listed()


def test_a_page_that_connects_is_told_of_a_trouble(tmp_path):
    watcher = Watcher(tmp_path)
    watcher.look()
    (hello,) = heard(watcher, 1)
    assert "there is no store" in json.loads(hello.partition("data: ")[2])["trouble"]["problem"]


RUN = """
import sys, time
from muster.experiment import from_dict
from muster.experiment.runner import run
from muster.server.loop import Observer
class Slow(Observer):
    def round_ended(self, record, ledger):
        print(record.round, flush=True)
        time.sleep(0.05)
values = {"rounds": 2000, "data": {"source": "digits"}, "partition": {"scheme": "iid", "clients": 6},
          "model": {"name": "mlp", "hidden": [4]}, "training": {"lr": 0.1}, "evaluation": {"every": 2},
          "selection": {"method": "random", "clients_per_round": 2}}
run(from_dict(values), 0, store=sys.argv[1], resume=True, observers=[Slow()])
"""


@pytest.fixture
def running(tmp_path):
    """A run in a process of its own."""
    folder = tmp_path / "live"
    process = subprocess.Popen([sys.executable, "-c", RUN, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline().strip() == "1"
    yield folder, process
    process.kill()
    process.wait()


def until(condition, seconds=60.0):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.05)
    return found


@pytest.mark.slow
def test_a_run_is_watched_stopped_and_goes_on(running, visit):
    folder, process = running
    page = visit(folder, control=True)
    columns = page.ask("runs")["columns"]
    assert columns["status"] == ["running"]
    first = columns["done"][0]
    until(lambda: page.ask("runs")["columns"]["done"][0] > first + 2)
    assert page.ask("runs")["columns"]["left"][0] > 0
    key = columns["fingerprint"][0]
    assert not page.ask(f"run/{key}")["stopping"]
    assert page.tell(f"run/{key}/stop") == {"stopping": True}
    assert process.wait(60) == 0
    facts = page.ask(f"run/{key}")
    assert facts["status"] == "stopped"
    assert 3 < facts["done"] < 2000
    with Store(folder) as store:
        assert len(store.result(key).records) == facts["done"]
    again = subprocess.Popen([sys.executable, "-c", RUN, str(folder)], stdout=subprocess.PIPE, text=True)
    try:
        assert int(again.stdout.readline()) == facts["done"] + 1, "it goes on where it was stopped"
        assert until(lambda: page.ask("runs")["columns"]["status"] == ["running"])
    finally:
        again.kill()
        again.wait()


@pytest.mark.slow
def test_a_killed_run_is_interrupted_and_its_rounds_stay(running, visit):
    folder, process = running
    page = visit(folder)
    page.ask("runs")
    process.kill()
    process.wait()
    watcher = Watcher(folder)
    watcher.look()
    assert [entry.status for entry in watcher.catalogue.entries.values()] == ["interrupted"]
    time.sleep(2.1)  # how long a page may believe that a process lives
    assert page.ask("runs")["columns"]["status"] == ["interrupted"]


@pytest.mark.slow
def test_a_killed_page_harms_no_run(running, tmp_path):
    folder, process = running
    command = [sys.executable, "-m", "muster.cli.main", "ui", "--workspace", str(folder)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    address = server.stdout.readline()
    assert "/?token=" in address
    server.kill()
    server.wait()
    before = int(process.stdout.readline())
    assert until(lambda: int(process.stdout.readline()) > before + 3)
    assert process.poll() is None
