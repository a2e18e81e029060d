"""Results as plain files: what is written can be read again, by later versions too."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import muster
from muster.core.errors import DataError
from muster.report.compare import compare
from muster.results.files import holds_result, load_result


@pytest.fixture
def saved(tiny, tmp_path):
    asking = {"method": "power-of-choice", "clients_per_round": 5}
    result = muster.run(tiny(selection=asking, evaluation={"every": 2}), workers=0)
    result.save(tmp_path / "run")
    return result, tmp_path / "run"


def test_read_what_was_written(saved):
    result, folder = saved
    again = load_result(folder)
    assert [row["round"] for row in again.metrics if not math.isnan(row["accuracy"])] == [2, 3]
    for ours, theirs in zip(result.metrics, again.metrics, strict=True):
        assert ours == pytest.approx(theirs, nan_ok=True, rel=0, abs=0)
    assert again.selections == result.selections
    assert again.ledger.rounds == result.ledger.rounds
    assert again.ledger.disclosed == result.ledger.disclosed
    np.testing.assert_array_equal(again.parameters, result.parameters)
    for name in ("trainings", "rounds", "last_round", "failures"):
        np.testing.assert_array_equal(getattr(again.history, name), getattr(result.history, name))
    assert (again.name, again.config, again.complete) == (result.name, result.config, True)


def test_a_comparison_of_files_is_that_of_results(saved):
    result, folder = saved
    assert compare([load_result(folder)]).tables == compare([result]).tables


def test_folders_from_before_the_ledgers_file(saved):
    result, folder = saved
    (folder / "ledger.json").unlink()
    again = load_result(folder)
    assert again.ledger.total_disclosed() == result.ledger.total_disclosed()
    ours, theirs = result.ledger.total(), again.ledger.total()
    assert (theirs.bytes_up, theirs.client_trainings) == (ours.bytes_up, ours.client_trainings)
    assert theirs.server_seconds == ours.server_seconds
    assert again.history.clients == result.history.clients


def test_folders_that_hold_no_result(saved, tmp_path):
    _, folder = saved
    assert holds_result(folder)
    assert not holds_result(tmp_path)
    (folder / "selections.json").write_text("{")
    with pytest.raises(DataError, match="does not hold a readable result"):
        load_result(folder)
    (folder / "selections.json").unlink()
    with pytest.raises(DataError, match="does not hold a readable result"):
        load_result(folder)


def test_numbers_that_json_does_not_have_are_null(saved):
    _, folder = saved
    first = json.loads((folder / "selections.json").read_text())[0]
    assert first["metrics"]["accuracy"] is None
