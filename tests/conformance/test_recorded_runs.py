"""Ten recorded runs still have the same bits, where processor and libraries are those they were recorded with."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("recorded_runs", HERE / "recorded_runs.py")
assert _spec is not None
assert _spec.loader is not None
recorded_runs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(recorded_runs)

RECORD = recorded_runs.recorded()


@pytest.mark.slow
@pytest.mark.skipif(RECORD is None, reason="nothing was recorded with this processor and these libraries")
@pytest.mark.parametrize("name", recorded_runs.RUNS)
def test_a_recorded_run_has_the_same_bits(name):
    assert recorded_runs.digest(recorded_runs.RUNS[name]) == RECORD[name]


@pytest.mark.slow
@pytest.mark.skipif(RECORD is not None, reason="the bits themselves are compared")
@pytest.mark.parametrize("name", recorded_runs.RUNS)
def test_a_recorded_run_has_the_same_accuracy_up_to_rounding(name):
    """On another processor only roundings may differ: a few pictures of 360."""
    expected = recorded_runs.any_record()[name]["accuracy"]
    assert recorded_runs.digest(recorded_runs.RUNS[name])["accuracy"] == pytest.approx(expected, abs=0.02)
