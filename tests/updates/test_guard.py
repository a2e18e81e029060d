"""The guard refuses what must not touch the model, and lets the rest through."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from muster.aggregation.fedadam import FedAdam
from muster.aggregation.fedavg import FedAvg
from muster.aggregation.fedavgm import FedAvgM
from muster.core.errors import ConfigError
from muster.core.parameters import ParameterSpec, SpecEntry
from muster.engine.trial import TrialEngine
from muster.selection.random import RandomSelection
from muster.server.loop import Server
from muster.signals.base import LARGEST
from muster.updates.filters import streams
from muster.updates.guard import Guard, length, lengths
from muster.updates.table import Updates

SPEC = ParameterSpec((SpecEntry("weight", (4,), 0, 4),), buffers=(SpecEntry("mean", (2,), 4, 6),))


def movement(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def objection(guard: Guard, sent: np.ndarray, spec: ParameterSpec = SPEC) -> str | None:
    """What the guard says about one movement."""
    return guard.objections(sent[None], spec).get(0)


def test_what_is_let_through():
    assert objection(Guard(), movement(1, 2, 3, 4, 5, 6)) is None
    assert objection(Guard(max_norm=10), movement(1, 2, 3, 4, 5, 6)) is None


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (movement(1, 2, 3), "wrong shape"),
        (np.zeros((2, 3), dtype=np.float32), "wrong shape"),
        (np.zeros(6), "wrong type"),
        (movement(1, 2, math.nan, 4, 5, 6), "non-finite"),
        (movement(1, 2, math.inf, 4, 5, 6), "non-finite"),
        (movement(1, 2, 3, 4, -math.inf, 6), "non-finite"),
        (movement(30, 40, 0, 0, 0, 0), "norm 50 is beyond the bound 49"),
        (movement(3e38, 0, 0, 0, 0, 0), "norm 3e+38 is beyond the bound 49"),
        (movement(0, 0, 0, 0, 0, -3e38), "norm 3e+38: no training goes beyond 1e+18"),
    ],
)
def test_what_is_refused(sent, reason):
    assert reason in objection(Guard(max_norm=49), sent)


def test_without_a_bound_there_still_is_one():
    assert objection(Guard(), movement(3e38, 0, 0, 0, 0, 0)) == "norm 3e+38: no training goes beyond 1e+18"
    assert objection(Guard(), movement(9e17, 0, 0, 0, 0, 0)) is None


def test_counters_do_not_make_a_movement_long():
    counted = ParameterSpec(SPEC.parameters, SPEC.buffers, counters=(SpecEntry("batches", (1,), 6, 7),))
    assert objection(Guard(max_norm=10), movement(1, 2, 3, 4, 5, 6, 5000), counted) is None
    assert "non-finite" in objection(Guard(max_norm=10), movement(1, 2, 3, 4, 5, 6, math.nan), counted)


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 3e38, -3e38])
def test_a_further_vector_that_would_spoil_what_is_made_of_it_costs_its_update(poison):
    """One NaN in a control variate would be in everybody's for the rest of the run."""
    rows = np.ones((3, 6), dtype=np.float32)
    poisoned = rows.copy()
    poisoned[1, 4] = poison
    sent = replace(Updates.from_movements(rows, clients=np.array([3, 5, 8])), extra={"control_change": poisoned})
    filtered = Guard().apply(sent, SPEC, streams(0, 0, 0)("guard"))
    assert filtered.refused == {5: "its 'control_change' has numbers that are not within ±1e+18"}
    assert filtered.updates.clients.tolist() == [3, 8]


@pytest.mark.parametrize("aggregator", [FedAvg(), FedAvgM(), FedAdam(), FedAvg(server_lr=3.0)])
def test_finite_numbers_that_add_up_to_infinity_do_not_end_a_run(aggregator):
    rows = np.ones((4, 31), dtype=np.float32)
    rows[2] = 3e38
    engine = TrialEngine(4, sizes=np.array([1, 1, 1000, 1]), movements=rows)
    result = Server(RandomSelection(clients_per_round=4), aggregator, engine).run(5)
    assert {client for _, client, _ in result.rejected} == {2}
    assert np.abs(result.parameters).max() < 100


@example(np.full(6, 4.855081e-25, dtype=np.float32))
@given(hnp.arrays(np.float32, 6, elements=st.floats(width=32)))
@settings(max_examples=200, deadline=None)
def test_length_is_finite_exactly_when_all_entries_are(vector):
    expected = float(np.linalg.norm(vector.astype(np.float64)))
    if np.isfinite(vector).all():
        assert length(vector) == pytest.approx(expected, rel=1e-5, abs=1e-30)
    else:
        assert not math.isfinite(length(vector))


@pytest.mark.parametrize("options", [{"max_norm": 0}, {"max_norm": -1}, {"max_failed_rounds": 0}])
def test_bad_bounds_are_named(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        Guard(**options).check()


def test_what_is_exactly_at_the_bound_is_let_through():
    assert objection(Guard(max_norm=50), movement(30, 40, 0, 0, 0, 0)) is None
    assert "beyond" in objection(Guard(max_norm=49.999), movement(30, 40, 0, 0, 0, 0))
    rows = np.ones((2, 6), dtype=np.float32)
    edge = np.full((2, 6), LARGEST, dtype=np.float32)
    edge[1] = -LARGEST
    sent = replace(Updates.from_movements(rows), extra={"control_change": np.clip(edge, -1e18, 1e18)})
    assert Guard().apply(sent, SPEC, streams(0, 0, 0)("guard")).refused == {}


def test_of_two_objections_to_an_update_the_first_is_told():
    rows = np.ones((2, 6), dtype=np.float32)
    rows[0, 0] = np.nan
    sent = replace(
        Updates.from_movements(rows), extra={"control_change": np.full((2, 6), np.inf, dtype=np.float32)}
    )
    refused = Guard(max_norm=1.0).apply(sent, SPEC, streams(0, 0, 0)("guard")).refused
    assert refused == {0: "non-finite values", 1: "norm 2 is beyond the bound 1"}


def test_bounds_that_are_just_possible():
    Guard(max_norm=1e-9, max_failed_rounds=1).check()
    Guard(max_norm=math.inf).check()
    with pytest.raises(ConfigError, match=r"guard\.max_norm"):
        Guard(max_norm=math.nan).check()
    assert (Guard().max_norm, Guard().max_failed_rounds, Guard.changes) == (None, 10, False)


@pytest.mark.parametrize("scale", [1e-25, 1e-18, 1e-15, 1.0, 1e18, 1e19, 1e30])
def test_lengths_of_very_short_and_very_long_movements_are_exact(scale):
    rows = np.array([[3, 4], [0, 0], [5, 12]], dtype=np.float32) * np.float32(scale)
    np.testing.assert_allclose(lengths(rows), np.array([5.0, 0.0, 13.0]) * scale, rtol=1e-6)
