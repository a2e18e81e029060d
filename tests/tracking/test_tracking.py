"""Trackers: what they are told, files of the real packages, and that they neither break nor change a run."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import muster
from muster.cli.app import app
from muster.config.experiment import Experiment, from_dict
from muster.core.errors import ConfigError, TrainingError
from muster.server.loop import Observer
from muster.tracking import RunFacts, Tracker, Tracking, trackers
from muster.tracking.observer import flat

ROUNDS = 3


def experiment(**changes) -> Experiment:
    return from_dict({"rounds": ROUNDS, "evaluation": {"every": 2}, **changes})


def tracked(folder: Path, name: str) -> Experiment:
    return experiment(tracking={"to": [name], "folder": str(folder), "project": "tests"})


class Notes(Tracker):
    """Writes down what it is told; `fails_at` names the verb that raises."""

    package = "sys"

    def __init__(self, fails_at: str = "") -> None:
        super().__init__(Path(), "")
        self.fails_at, self.told = fails_at, []

    def _note(self, verb: str, *facts) -> None:
        self.told.append((verb, *facts))
        if verb == self.fails_at:
            raise RuntimeError("no network")

    def begin(self, run: RunFacts) -> None:
        self._note("begin", run)

    def log(self, round: int, values) -> None:
        self._note("log", round, values)

    def end(self, outcome) -> None:
        self._note("end", outcome)


class StopAfter(Observer):
    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def wants_stop(self) -> bool:
        self.left -= 1
        return self.left == 0


def run_with(tracker: Tracker, *others: Observer, **options) -> muster.Result:
    config = experiment()
    with Tracking([tracker], config.title, config.fingerprint, config.described()) as tracking:
        return muster.run(config, workers=0, observers=[tracking, *others], **options)


def test_a_tracker_is_told_everything_once():
    tracker = Notes()
    result = run_with(tracker)
    verbs = [row[0] for row in tracker.told]
    assert verbs == ["begin", "log", "log", "log", "end"]
    run = tracker.told[0][1]
    assert (run.title, run.fingerprint, run.done) == ("random", experiment().fingerprint, 0)
    assert run.config["selection.method"] == "random"
    first, second = tracker.told[1][2], tracker.told[2][2]
    assert "accuracy" not in first  # not measured in round 1
    assert second["accuracy"] == result.metrics[1]["accuracy"]
    assert second["work/samples"] == result.metrics[1]["samples"]
    assert second["clients/trained"] == 8
    assert tracker.told[-1] == ("end", "complete")


def test_a_resumed_run_goes_on_counting(tmp_path):
    early, late = Notes(), Notes()
    run_with(early, StopAfter(1), out=tmp_path)
    assert early.told[-1] == ("end", "stopped")
    result = run_with(late, out=tmp_path, resume=True)
    assert late.told[0][1].done == 1
    assert [row[1] for row in late.told if row[0] == "log"] == [2, 3]
    assert late.told[-2][2]["work/samples"] == result.metrics[-1]["samples"]


@pytest.mark.parametrize("verb", ["begin", "log", "end"])
def test_a_tracker_that_raises_is_reported_once_and_switched_off(verb, caplog):
    undisturbed = muster.run(experiment(), workers=0)
    broken = Notes(fails_at=verb)
    with caplog.at_level(logging.ERROR, "muster"):
        result = run_with(broken)
    assert [row[0] for row in broken.told].count(verb) == 1
    assert broken.told[-1][0] == verb
    assert len(caplog.records) == 1
    assert "no network" in caplog.text
    np.testing.assert_array_equal(result.parameters, undisturbed.parameters)
    assert result.complete


def test_a_failing_run_is_told_as_such():
    tracker, config = Notes(), experiment(guard={"max_norm": 1e-9, "max_failed_rounds": 1})
    with pytest.raises(TrainingError), Tracking([tracker], "t") as tracking:
        muster.run(config, workers=0, observers=[tracking])
    assert tracker.told[-1] == ("end", "failed")


def test_trackers_change_neither_fingerprint_nor_description(tmp_path):
    plain, watched = experiment(), tracked(tmp_path, "wandb")
    assert plain.fingerprint == watched.fingerprint
    assert plain.described() == watched.described()


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_is_an_error_before_the_first_round(name, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"muster-fl\[{name}\]"):
        muster.run(tracked(tmp_path, name), workers=0)


def test_unknown_trackers_and_keys():
    with pytest.raises(ConfigError, match="did you mean 'tensorboard'"):
        muster.run(experiment(tracking={"to": ["tensorbord"]}), workers=0)
    with pytest.raises(ConfigError, match=r"tracking\.too"):
        muster.run(experiment(tracking={"too": ["tensorboard"]}), workers=0)
    assert list(trackers) == ["mlflow", "tensorboard", "wandb"]


def test_configs_become_flat_texts():
    assert flat({"a": 1, "b": {"c": [1, 2], "d": {}}}) == {"a": "1", "b.c": "[1, 2]"}


def scalars(folder: Path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    return events


def test_tensorboard_files(tmp_path):
    pytest.importorskip("tensorboard")
    config = tracked(tmp_path, "tensorboard")
    result = muster.run(config, workers=0)
    events = scalars(tmp_path / "tensorboard" / f"random-{config.fingerprint[:8]}")
    assert [(e.step, e.value) for e in events.Scalars("work/samples")] == [
        (row["round"], row["samples"]) for row in result.metrics
    ]
    measured = {e.step: e.value for e in events.Scalars("accuracy")}
    assert measured == {2: pytest.approx(result.metrics[1]["accuracy"]), 3: pytest.approx(result.final())}
    assert "config/text_summary" in events.Tags()["tensors"]


def test_tensorboard_after_a_resume_has_every_round_once(tmp_path):
    pytest.importorskip("tensorboard")
    config = tracked(tmp_path / "tracking", "tensorboard")
    muster.run(config, workers=0, out=tmp_path / "out", observers=[StopAfter(2)])
    muster.run(config, workers=0, out=tmp_path / "out", resume=True)
    (folder,) = (tmp_path / "tracking" / "tensorboard").iterdir()
    assert [event.step for event in scalars(folder).Scalars("work/samples")] == [1, 2, 3]


def test_mlflow_store(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    config = tracked(tmp_path / "tracking", "mlflow")
    muster.run(config, workers=0, out=tmp_path / "out", observers=[StopAfter(2)])
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'tracking' / 'mlflow.db'}")
    experiment_id = client.get_experiment_by_name("tests").experiment_id
    assert [run.info.status for run in client.search_runs([experiment_id])] == ["KILLED"]
    result = muster.run(config, workers=0, out=tmp_path / "out", resume=True)
    (run,) = client.search_runs([experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["selection.method"] == "random"
    assert run.data.metrics["accuracy"] == result.final()
    history = client.get_metric_history(run.info.run_id, "work/samples")
    assert [(m.step, m.value) for m in history] == [(row["round"], row["samples"]) for row in result.metrics]


def test_wandb_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    config = tracked(tmp_path, "wandb")
    muster.run(config, workers=0)
    (kept,) = tmp_path.glob(f"wandb/offline-run-*/run-{config.fingerprint}.wandb")
    content = kept.read_bytes()
    assert b"work/samples" in content
    assert b"accuracy" in content


def test_command_line(tmp_path, monkeypatch):
    pytest.importorskip("tensorboard")
    monkeypatch.chdir(tmp_path)
    Path("x.toml").write_text("rounds = 1\n", encoding="utf-8")
    result = CliRunner().invoke(app, ["run", "x.toml", "-w", "0", "--out", "out", "--track", "tensorboard"])
    assert result.exit_code == 0, result.output
    assert list(Path("tracking/tensorboard").glob("random-*/events*"))
