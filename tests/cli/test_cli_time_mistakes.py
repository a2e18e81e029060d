"""Mistakes about time, through `muster run` and through Python: one message, or rounds that say what happened."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import muster
from muster.cli.app import app
from muster.config.toml import to_toml
from muster.core.errors import MusterError
from muster.experiment import from_dict
from muster.results.store import Store

DAY = 86_400.0
BASE: dict[str, Any] = {
    "rounds": 4,
    "partition": {"scheme": "iid", "clients": 12},
    "model": {"name": "mlp", "hidden": [8]},
    "selection": {"method": "random", "clients_per_round": 4},
    "devices": {"method": "lognormal"},
}


def trace(folder: Path, active: list[float], inactive: list[float], finish: float = 2 * DAY, **more: Any) -> str:
    entry = {"ms_per_sample": 100.0, "kbps": 1e6, "active": active, "inactive": inactive, "finish": finish}
    file = folder / "trace.json"
    file.write_text(json.dumps([{"id": device, **entry, **more} for device in range(3)]))
    return str(file)


def through_both(folder: Path, values: dict[str, Any]) -> list[tuple[int, str]]:
    """(exit code, message) of the command and of the function."""
    outcomes = []
    config = folder / "config.toml"
    config.write_text(to_toml(values))
    called = CliRunner().invoke(app, ["run", str(config), "--workers", "0", "--out", str(folder / "out")])
    error = called.exception
    assert error is None or isinstance(error, MusterError | SystemExit), repr(error)
    outcomes.append((error.exit_code, str(error)) if isinstance(error, MusterError) else (called.exit_code, ""))
    try:
        muster.run(from_dict(values), workers=0)
    except MusterError as mistake:
        outcomes.append((mistake.exit_code, str(mistake)))
    else:
        outcomes.append((0, ""))
    return outcomes


@pytest.mark.parametrize(
    ("sessions", "words"),
    [
        (([0.0, 50.0], [60.0, 90.0]), ["device 0", "sessions overlap", "60", "50"]),
        (([-5.0], [60.0]), ["device 0", "negative time"]),
        (([50.0], [20.0]), ["ends at 20", "before it begins at 50"]),
        (([0.0], [3 * DAY]), ["after 'finish'"]),
        (([], []), ["no device is ever online"]),
    ],
)
def test_traces(tmp_path, sessions, words):
    availability = {"method": "sessions", "file": trace(tmp_path, *sessions)}
    for code, message in through_both(tmp_path, BASE | {"availability": availability}):
        assert code == 3, message
        assert all(word in message for word in words), message


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"devices": {"method": "phonez"}}, ["phonez", "did you mean 'phones'"]),
        ({"devices": {"method": "phones", "only": ["Pixel 999"]}}, ["unknown phone 'Pixel 999'", "devices.only"]),
        (
            {"pacing": {"method": "buffered", "in_flight": 3, "k": 4}},
            ["in_flight is 3", "4 answers", "in_flight ≥ k"],
        ),
        (
            {"pacing": {"method": "buffered", "in_flight": 3}},
            ["chose 4 clients at once", "raise pacing.in_flight"],
        ),
        ({"pacing": {"method": "buffered", "in_flight": 13}}, ["13", "12 clients"]),
        ({"pacing": {"method": "deadline", "seconds": -1.0}}, ["pacing.seconds", "-1", "positive"]),
        ({"pacing": {"method": "deadline"}}, ["either pacing.seconds or pacing.quantile"]),
        ({"pacing": {"method": "over-select", "factor": 0.5}}, ["pacing.factor", "at least 1"]),
        ({"pacing": {"method": "over-select", "factor": 4.0}}, ["16", "12 clients"]),
        ({"pacing": {"method": "over-select"}, "devices": {}}, ["they take no time", "[devices]"]),
        ({"pacing": {"method": "sometimes"}}, ["sometimes", "synchronous"]),
    ],
)
def test_settings(tmp_path, changes, words):
    values = {key: value for key, value in (BASE | changes).items() if value != {}}
    for code, message in through_both(tmp_path, values):
        assert code == 2, message
        assert all(word in message for word in words), message


def test_an_empty_day_is_waited_out(tmp_path):
    """Everybody is there for a minute, then nobody for two days: the clock goes on, no round is lost."""
    file = trace(tmp_path, [0.0], [60.0])
    values = BASE | {
        "rounds": 8,
        "devices": {"method": "trace", "file": file, "reference_flops": 1.0, "flops_per_sample": 1.0},
        "availability": {"method": "sessions", "file": file},
    }
    assert through_both(tmp_path, values) == [(0, ""), (0, "")]
    records = muster.run(from_dict(values), workers=0).records
    assert len(records) == 8
    assert any("no client was there for" in event for record in records for event in record.events)
    assert records[-1].ended > DAY


def test_a_deadline_that_nobody_meets_loses_nothing(tmp_path):
    values = BASE | {"rounds": 20, "pacing": {"method": "deadline", "seconds": 1e-6}}
    for code, message in through_both(tmp_path, values):
        assert code == 6
        assert "10 rounds in a row" in message
        assert "late: given up on after 1e-06 of" in message
        assert "pacing.seconds" in message  # not the learning rate
    with Store(tmp_path / "out") as store:
        (kept,) = store.runs()
        assert kept.done == 10  # the rounds are there
        assert len(store.rows_of_run(kept.id, kept.done).records()[-1].trainings[0].failed) == 4  # and say why


def test_the_summary_of_a_run_tells_its_time_and_what_was_for_nothing(tmp_path):
    config = tmp_path / "config.toml"
    config.write_text(to_toml(BASE | {"pacing": {"method": "over-select", "factor": 2.0}}))
    shown = CliRunner().invoke(app, ["run", str(config), "--workers", "0", "--out", str(tmp_path / "out")])
    costs = muster.run(from_dict(tomllib.loads(config.read_text())), workers=0).ledger.total()
    lines = [" ".join(line.split()) for line in shown.output.splitlines()]
    assert f"time that clients took {costs.virtual_seconds:.2g} s" in lines
    assert f"wasted trainings (left, late or too stale) {costs.wasted_trainings}" in lines
    assert costs.wasted_trainings == 16


def test_with_late_answers_used_the_same_deadline_trains(tmp_path):
    late = {"method": "deadline", "seconds": 0.05, "late": "use"}
    result = muster.run(from_dict(BASE | {"rounds": 30, "pacing": late}), workers=0)
    assert any(not record.failed for record in result.records)
    assert result.ledger.total().wasted_trainings == 0
