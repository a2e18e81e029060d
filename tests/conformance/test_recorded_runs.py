"""Ten recorded runs still have the same bits, where processor and libraries are those they were recorded with."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

HERE = Path(__file__).parent
_spec = importlib.util.spec_from_file_location("recorded_runs", HERE / "recorded_runs.py")
assert _spec is not None
assert _spec.loader is not None
recorded_runs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(recorded_runs)

RECORD = json.loads((HERE / "recorded_runs.json").read_text())


@pytest.mark.slow
@pytest.mark.skipif(
    RECORD["machine"] != recorded_runs.machine(), reason="recorded with another processor or library"
)
@pytest.mark.parametrize("name", recorded_runs.RUNS)
def test_a_recorded_run_has_the_same_bits(name):
    assert recorded_runs.digest(recorded_runs.RUNS[name]) == RECORD["runs"][name]
