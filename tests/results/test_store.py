"""The store gives back what went in, one transaction a round, for several processes, across versions."""

from __future__ import annotations

import multiprocessing as mp
import os
import sqlite3
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import muster
from muster.core.errors import CheckpointError, ConfigError, OutputError, StoreError, TrainingError
from muster.results.store import Store, recorder, schema
from muster.results.store import store as store_module
from muster.server.ledger import Costs
from muster.server.loop import Observer
from muster.server.persistence import Saved
from muster.server.record import GroupAccuracy, Report, RoundRecord, TrainingRecord

DESCRIPTION = {"name": "made up", "seed": 3, "rounds": 100, "config": {"training": {"lr": 0.1}, "rounds": 100}}


class StopAfter(Observer):
    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def wants_stop(self) -> bool:
        self.rounds -= 1
        return self.rounds < 1


class FailAfter(Observer):
    def __init__(self, rounds: int, error: BaseException) -> None:
        self.rounds, self.error = rounds, error

    def wants_stop(self) -> bool:
        self.rounds -= 1
        if self.rounds < 0:
            raise self.error
        return False


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "ws") as opened:
        yield opened


def a_record(number: int) -> RoundRecord:
    """One with something in every field."""
    return RoundRecord(
        number,
        [
            TrainingRecord([1, 5, 400_000], [0.1, 1 / 3, 0.3], {7: "not finite"}, {9: "timed out"}, [2]),
            TrainingRecord([], []),
        ],
        [(["loss", "size"], 10, 9)],
        {"accuracy": 0.1 + number, "loss": float("nan"), "bound": float("inf")},
        [GroupAccuracy(0, 1, 0.25, 40)],
        {"clusters": [0, 1, 1], "threshold": 0.5},
        ["client 3 joined"],
        [
            Report(0, False, np.array([4, 8]), {"loss": np.array([0.5, np.nan], dtype=np.float32)}),
            Report(1, True, np.array([1]), {"triplet": np.array([[1, 2, 3]], dtype=np.float32)}),
        ],
        np.array([0.5, np.nan, 1.0], dtype=np.float32),
    )


def state() -> dict:
    from muster.core.parameters import ParameterSpec
    from muster.selection.history import History

    return {
        "parameters": np.arange(4, dtype=np.float32),
        "spec": ParameterSpec(()).state_dict(),
        "history": History(3).state_dict(),
        "privacy": {},
    }


def write(store: Store, rounds: int, fingerprint: str = "abcdef", **options) -> None:
    with store.claim(fingerprint, DESCRIPTION, resume=True, **options) as open_recorder:
        saved = open_recorder.load()
        first = 1 if saved is None else len(saved.records) + 1
        for number in range(first, first + rounds):
            costs = Costs(number, 2, 3, 4, 5, 6, 0.5, 0.25, 0.125)
            open_recorder.round_ended(a_record(number), costs, {"loss": number}, state, "running")


# --- what goes in comes out ------------------------------------------------------------------------------


def test_everything_in_a_record_comes_back(store):
    write(store, 2)
    (run,) = store.runs()
    result = store.result(run)
    assert str(result.records[1].metrics) == str(a_record(2).metrics)  # NaN is not equal to itself
    for record, expected in zip(result.records, [a_record(1), a_record(2)], strict=True):
        assert replace(record, metrics={}) == replace(expected, metrics={})
        np.testing.assert_array_equal(record.client_accuracy, expected.client_accuracy)
        for report, wanted in zip(record.reports, expected.reports, strict=True):
            assert (report.exchange, report.trained) == (wanted.exchange, wanted.trained)
            np.testing.assert_array_equal(report.clients, wanted.clients)
            for name, values in wanted.values.items():
                np.testing.assert_array_equal(report.values[name], values)
    assert result.ledger.rounds == [Costs(n, 2, 3, 4, 5, 6, 0.5, 0.25, 0.125) for n in (1, 2)]
    assert result.ledger.disclosed == [{"loss": 1}, {"loss": 2}]
    assert (run.done, run.seconds, run.seed) == (2, 0.25, 3)


def test_a_result_from_the_store_is_the_one_that_the_run_gave(tiny, tmp_path):
    experiment = tiny(selection={"method": "power-of-choice", "clients_per_round": 5})
    direct = muster.run(experiment, workers=0, store=tmp_path)
    with Store(tmp_path) as store:
        (stored,) = store.results()
        (light,) = store.results(parameters=False)
    assert np.array_equal(direct.parameters, stored.parameters)
    assert stored.records == direct.records
    assert stored.metrics == direct.metrics
    assert stored.ledger.rounds == direct.ledger.rounds
    assert stored.history.trainings.tolist() == direct.history.trainings.tolist()
    assert (stored.spec, stored.name, stored.config) == (direct.spec, direct.name, direct.config)
    assert stored.complete
    assert len(light.parameters) == 0
    asked = stored.records[0].reports[0]
    assert (asked.trained, list(asked.values)) == (False, ["loss"])


# --- one transaction a round -----------------------------------------------------------------------------


def test_a_run_that_fails_keeps_its_rounds_and_goes_on(tiny, tmp_path):
    whole = muster.run(tiny(), workers=0)
    with pytest.raises(TrainingError):
        muster.run(tiny(), workers=0, store=tmp_path, observers=[FailAfter(1, TrainingError("enough"))])
    with Store(tmp_path) as store:
        (run,) = store.runs(status="failed")
        assert (run.done, run.error) == (1, "enough")
        assert not store.results()
        (part,) = store.results(status="failed")
        assert not part.complete
        rest = muster.run(tiny(), workers=0, store=store, resume=True)
        assert [event.kind for event in store.events(run)] == ["started", "failed", "resumed", "complete"]
    assert np.array_equal(whole.parameters, rest.parameters)
    assert whole.metrics == rest.metrics


def test_rounds_wait_for_their_checkpoint(tiny, tmp_path):
    experiment = tiny(rounds=5, checkpoint={"every": 2})
    with pytest.raises(RuntimeError):
        muster.run(experiment, workers=0, store=tmp_path, observers=[FailAfter(3, RuntimeError("bug"))])
    with Store(tmp_path) as store:
        (run,) = store.runs()
        assert (run.done, run.status, run.error) == (2, "failed", "bug")
        again = muster.run(experiment, workers=0, store=store, resume=True)
    assert np.array_equal(again.parameters, muster.run(experiment, workers=0).parameters)


def test_there_is_one_checkpoint_and_it_is_small_when_nobody_needs_more(tiny, tmp_path):
    scaffold = {"algorithm": {"method": "scaffold"}, "aggregation": {"method": "scaffold"}}
    experiment = tiny(**scaffold, checkpoint={"final": "model"})
    muster.run(experiment, workers=0, store=tmp_path, observers=[StopAfter(2)])
    (halfway,) = Path(tmp_path / "checkpoints" / experiment.fingerprint).iterdir()
    size = halfway.stat().st_size
    muster.run(experiment, workers=0, store=tmp_path, resume=True)
    (final,) = Path(tmp_path / "checkpoints" / experiment.fingerprint).iterdir()
    assert (halfway.name, final.name) == ("2.muster", "3.muster")
    assert final.stat().st_size < size / 2


def test_a_transaction_that_fails_leaves_the_round_before(store, monkeypatch):
    write(store, 1)

    def refuse(*_):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(recorder, "rows_of", refuse)
    with (
        pytest.raises(OutputError, match="No space left"),
        store.claim("abcdef", DESCRIPTION, resume=True) as writer,
    ):
        writer.round_ended(a_record(2), Costs(), {}, state, "running")
    assert [path.name for path in store.checkpoint_folder("abcdef").iterdir()] == ["1.muster"]
    monkeypatch.undo()
    assert len(store.result("abcdef").records) == 1


def test_an_error_after_the_last_round_leaves_the_run_complete(tiny, tmp_path):
    class Clumsy(Observer):
        def round_ended(self, record, ledger):
            if record.round == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        muster.run(tiny(rounds=2), workers=0, store=tmp_path, observers=[Clumsy()])
    with Store(tmp_path) as store:
        assert [(run.status, run.done) for run in store.runs()] == [("complete", 2)]
    assert muster.run(tiny(rounds=2), workers=0, store=tmp_path, resume=True).complete


def test_a_run_whose_last_rounds_all_failed_says_so_again(tiny, tmp_path):
    made = tiny(rounds=2, guard={"max_norm": 1e-9, "max_failed_rounds": 2})
    for resume in (False, True):
        with pytest.raises(TrainingError, match="2 rounds in a row"):
            muster.run(made, workers=0, store=tmp_path, resume=resume)
        with Store(tmp_path) as store:
            assert [(run.status, run.done) for run in store.runs()] == [("failed", 2)]


def test_an_interrupt_right_after_the_transaction_keeps_the_checkpoint(store, monkeypatch):
    write(store, 1)
    with monkeypatch.context() as patch:
        patch.setattr(recorder, "transaction", _interrupted_after(recorder.transaction))  # type: ignore[attr-defined]
        with pytest.raises(KeyboardInterrupt), store.claim("abcdef", DESCRIPTION, resume=True) as writer:
            writer.round_ended(a_record(2), Costs(), {}, state, "running")
    with store.claim("abcdef", DESCRIPTION, resume=True) as writer:
        assert len(writer.load().records) == 2


def _interrupted_after(transaction):
    """As Ctrl-C while the commit waits for the disk: Python raises it when the commit is through. Only once."""
    pending = [KeyboardInterrupt()]

    @contextmanager
    def wrapped(connection):
        with transaction(connection):
            yield
        if pending:
            raise pending.pop()

    return wrapped


def test_a_run_can_be_read_while_it_is_being_run(store):
    write(store, 2)
    known = store.run("abcdef")
    with store.claim("abcdef", DESCRIPTION, resume=True) as writer:
        writer.load()
        for number in (3, 4, 5):
            writer.round_ended(a_record(number), Costs(), {}, state, "running")
    assert len(store.result(replace(known, done=4)).records) == 5
    assert len(store.rows_of_run(known.id, 4).records()) == 4


def test_what_a_killed_process_left_half_done_is_swept_away(store):
    write(store, 2)
    (store.checkpoint_folder("abcdef") / "3.muster").write_bytes(b"torn")
    (store.checkpoint_folder("abcdef") / ".3.muster.77.tmp").write_bytes(b"torn")
    write(store, 1)
    assert sorted(path.name for path in store.checkpoint_folder("abcdef").iterdir()) == ["3.muster"]


def test_after_a_power_cut_the_run_goes_on_from_the_durable_round(store):
    write(store, 4)  # the first round is durable, the others follow within seconds
    names = sorted(path.name for path in store.checkpoint_folder("abcdef").iterdir())
    assert names == ["1.muster", "4.muster"]
    (store.checkpoint_folder("abcdef") / "4.muster").write_bytes(b"torn")
    with store.claim("abcdef", DESCRIPTION, resume=True) as writer:
        saved = writer.load()
    assert isinstance(saved, Saved)
    assert [record.round for record in saved.records] == [1]
    (run,) = store.runs()
    assert run.done == 1
    assert "rolled back" in [event.kind for event in store.events(run)]
    write(store, 1)
    assert len(store.result("abcdef").records) == 2


def test_a_checkpoint_that_cannot_be_replaced_is_an_error(store):
    write(store, 1)
    (store.checkpoint_folder("abcdef") / "1.muster").write_bytes(b"torn")
    with (
        pytest.raises(CheckpointError, match="damaged"),
        store.claim("abcdef", DESCRIPTION, resume=True) as writer,
    ):
        writer.load()


# --- choosing --------------------------------------------------------------------------------------------


def test_filters(tiny, store):
    experiments = [tiny(seed=seed, training={"lr": lr}) for seed in (0, 1) for lr in (0.1, 0.2)]
    store.plan(experiments, "mine")
    store.plan([replace(experiments[0], name="renamed"), tiny(seed=9)], "other")
    assert len(store.runs()) == 5
    assert len(store.runs(sweep="mine", seed=1)) == 2
    assert [run.seed for run in store.runs(sweep="other")] == [0, 9]
    assert len(store.runs(where={"training.lr": 0.2})) == 2
    assert not store.runs(where={"training.nothing": 0.2})
    assert len(store.runs(method="random", status="planned")) == 5
    assert not store.runs(status=("complete", "failed"))
    assert store.run(experiments[1].fingerprint[:10]).fingerprint == experiments[1].fingerprint
    # A run has the name that a sweep gives it when the sweep is asked.
    assert store.runs(sweep="other", name="renamed")
    assert store.runs(sweep="mine", name="random", seed=0)
    assert store.sweep_names() == ["mine", "other"]
    with pytest.raises(ConfigError, match="no run begins"):
        store.run("")
    store.plan([tiny(seed=seed) for seed in range(100, 117)], "many")
    first = [run.fingerprint[0] for run in store.runs(sweep="many")]  # of sixteen digits one comes twice
    with pytest.raises(ConfigError, match="ambiguous"):
        store.run(max(first, key=first.count))
    with pytest.raises(ConfigError, match="no run begins"):
        store.run("nothing")


def test_deleting_takes_everything_with_it(store, tmp_path):
    write(store, 3)
    write(store, 1, "fedcba")
    store.delete(store.run("abc"))
    assert [run.fingerprint for run in store.runs()] == ["fedcba"]
    assert not store.checkpoint_folder("abcdef").exists()
    for table in (*recorder.ROUND_TABLES, "sweeps"):
        owners = store.connection.execute(f"SELECT DISTINCT experiment FROM {table}").fetchall()
        assert [row[0] for row in owners] in ([], [2])


def test_a_misspelt_config_is_no_run(tiny, tmp_path):
    with pytest.raises(ConfigError):
        muster.run(tiny(selection={"method": "randm"}), workers=0, store=tmp_path)
    with Store(tmp_path) as store:
        assert store.runs() == []


# --- several processes -----------------------------------------------------------------------------------


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_under_way_is_called_that_also_when_it_has_rounds(tiny, tmp_path, resume):
    experiment = tiny()
    muster.run(experiment, workers=0, store=tmp_path)
    with (
        Store(tmp_path) as first,
        first.recorder(experiment, resume=True),
        Store(tmp_path) as second,
        pytest.raises(OutputError, match="being run by another process"),
    ):
        second.recorder(experiment, resume=resume)
    with Store(tmp_path) as store:
        with pytest.raises(OutputError, match="already holds this run"):
            store.recorder(experiment)
        store.recorder(experiment, resume=True).__exit__(None, None, None)  # the refusal has left no claim behind


def test_a_run_has_one_writer(store):
    with (
        store.claim("abcdef", DESCRIPTION),
        Store(store.folder) as second,
        pytest.raises(OutputError, match="being run by another process"),
    ):
        second.claim("abcdef", DESCRIPTION, resume=True)
    with store.claim("abcdef", DESCRIPTION, resume=True):
        assert store.run("abc").status == "running"
        with pytest.raises(OutputError, match="right now"):
            store.delete(store.run("abc"))


def _write_and_wait(folder, ready, go):
    with Store(folder) as store, store.claim("abcdef", DESCRIPTION, resume=True) as writer:
        writer.round_ended(a_record(1), Costs(), {}, state, "running")
        ready.set()
        go.wait(30)
        time.sleep(60)


def test_a_dead_process_leaves_no_claim(store):
    context = mp.get_context("spawn")
    ready, go = context.Event(), context.Event()
    process = context.Process(target=_write_and_wait, args=(store.folder, ready, go))
    process.start()
    assert ready.wait(60)
    assert store.run("abc").status == "running"
    with pytest.raises(OutputError, match=str(process.pid)):
        store.claim("abcdef", DESCRIPTION, resume=True)
    process.kill()
    process.join()
    assert store.run("abc").status == "interrupted"
    write(store, 1)
    kinds = [(event.kind, event.detail) for event in store.events(store.run("abc"))]
    assert ("resumed", "its process had ended without a word") in kinds


def _write_many(folder, fingerprint):
    with Store(folder) as store:
        write(store, 30, fingerprint)


def test_processes_that_write_at_once_do_not_get_into_each_others_way(tmp_path):
    """Also when none of them finds a database: they make it together."""
    context = mp.get_context("spawn")
    names = ["aaaaaa", "bbbbbb", "cccccc"]
    processes = [context.Process(target=_write_many, args=(tmp_path, name)) for name in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0, 0]
    with Store(tmp_path) as store:
        assert sorted((run.fingerprint, run.done) for run in store.runs()) == [(name, 30) for name in names]
        assert store.connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


def _write_around_a_visit(folder, visit, visited):
    with Store(folder) as store, store.claim("abcdef", DESCRIPTION) as recorder:
        for number in range(1, 6):
            costs = Costs(number, 2, 3, 4, 5, 6, 0.5, 0.25, 0.125)
            recorder.round_ended(a_record(number), costs, {}, state, "running")
            if number == 2:
                visit.set()
                assert visited.wait(100)
        os._exit(0)  # as a killed process ends: it closes nothing


def test_rounds_are_not_lost_when_others_open_and_close_the_store_meanwhile(tmp_path):
    """The last one to close a database deletes its log: nobody may take itself for it while another one writes."""
    context = mp.get_context("spawn")
    visit, visited = context.Event(), context.Event()
    writer = context.Process(target=_write_around_a_visit, args=(tmp_path, visit, visited))
    writer.start()
    assert visit.wait(100)
    with Store(tmp_path) as store:
        assert store.run("abcdef").done == 2
    visited.set()
    writer.join(100)
    assert writer.exitcode == 0
    with Store(tmp_path) as store:
        assert store.run("abcdef").done == 5
        assert [record.round for record in store.result("abcdef").records] == [1, 2, 3, 4, 5]


# --- versions and damage ---------------------------------------------------------------------------------


def test_a_newer_file_says_so(store, monkeypatch):
    write(store, 1)
    monkeypatch.setattr(schema, "MIGRATIONS", [])
    with pytest.raises(StoreError, match="newer version of Muster"):
        Store(store.folder)


def test_an_older_file_is_brought_up_to_date(store, monkeypatch):
    write(store, 1)
    before = len(schema.MIGRATIONS)
    step = ("ALTER TABLE experiments ADD COLUMN comment TEXT NOT NULL DEFAULT 'none'",)
    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, step])
    with Store(store.folder) as migrated:
        row = migrated.connection.execute("SELECT comment FROM experiments").fetchone()
        assert row["comment"] == "none"
        assert migrated.connection.execute("PRAGMA user_version").fetchone()[0] == before + 1
    with Store(store.folder):
        pass  # once is enough


def test_a_migration_that_fails_changes_nothing(store, monkeypatch):
    write(store, 1)
    step = ("ALTER TABLE experiments ADD COLUMN comment TEXT", "nonsense")
    monkeypatch.setattr(schema, "MIGRATIONS", [*schema.MIGRATIONS, step])
    with pytest.raises(StoreError):
        Store(store.folder)
    monkeypatch.undo()
    with Store(store.folder) as same:
        assert len(same.runs()) == 1


def test_files_that_are_no_store(tmp_path):
    (tmp_path / "muster.db").write_bytes(b"this is text" * 1000)
    with pytest.raises(StoreError, match="damaged"):
        Store(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    connection = sqlite3.connect(other / "muster.db")
    connection.execute("CREATE TABLE t (a)")
    connection.close()
    with pytest.raises(StoreError, match="another program"):
        Store(other)
    with pytest.raises(StoreError, match="there is no store"):
        Store(tmp_path / "missing", create=False)


def test_claims_that_cannot_be_opened_are_an_error(tmp_path):
    (tmp_path / store_module.CLAIMS).mkdir()
    with pytest.raises(OutputError, match="cannot open"):
        Store(tmp_path)


def test_the_workspace_comes_from_the_environment(monkeypatch):
    monkeypatch.delenv("MUSTER_WORKSPACE", raising=False)
    assert store_module.workspace() == Path("runs")
    monkeypatch.setenv("MUSTER_WORKSPACE", "/elsewhere")
    assert store_module.workspace() == Path("/elsewhere")
    assert store_module.workspace("here") == Path("here")
