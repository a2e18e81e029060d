"""Running statistics and counters that no training leaves behind are refused, whatever aggregates the rest."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import muster
from muster.aggregation.base import aggregators
from muster.core.parameters import ParameterSpec, SpecEntry, spec_of
from muster.engine.trial import TrialEngine
from muster.selection.random import RandomSelection
from muster.server.door import PossibleStatistics
from muster.server.loop import Server
from muster.training.base import algorithms
from muster.updates.filters import streams
from muster.updates.table import Updates

SPEC = ParameterSpec(
    (SpecEntry("fc.weight", (3,), 0, 3),),
    (SpecEntry("norm.running_mean", (2,), 3, 5), SpecEntry("norm.running_var", (2,), 5, 7)),
    (SpecEntry("norm.num_batches_tracked", (), 7, 8), SpecEntry("ring", (), 8, 9)),
)
CLIENTS, LIAR = 7, 4
HONEST = [0.1, 0.2, 0.3, -0.5, 0.5, 0.25, 0.5, 10.0, -3.0]
NEGATIVE, NOT_FINITE = "a running variance is negative", "its running statistics are not finite"
BACK, NOT_WHOLE = "it counts fewer mini-batches than before it trained", "a counter is not a whole number"


def sent(**changes: float) -> np.ndarray:
    """A row like an honest client's, except at these places."""
    row = np.array(HONEST, dtype=np.float32)
    for place, value in changes.items():
        row[int(place[1:])] = value
    return row


def refused(row: np.ndarray, origin: np.ndarray | None = None) -> str | None:
    start = np.zeros(9, dtype=np.float32) if origin is None else origin
    updates = Updates.from_movements(row[None])
    return PossibleStatistics({0: start}).apply(updates, SPEC, streams(0, 0, 0)("look")).refused.get(0)


@pytest.mark.parametrize("method", aggregators.names())
def test_no_method_gets_a_negative_variance(method) -> None:
    needed = aggregators.build(method, {}).requires_algorithm
    rows = np.repeat(sent()[None], CLIENTS, axis=0)
    rows[LIAR] = sent(_6=-1e-3)
    engine = TrialEngine(
        CLIENTS, spec=SPEC, movements=rows, algorithm=algorithms.build(needed[0], {}) if needed else None
    )
    attackers = {"attackers": 0} if method == "bulyan" else {}
    aggregator = aggregators.build(method, attackers)
    result = Server(RandomSelection(clients_per_round=CLIENTS), aggregator, engine).run(1)
    assert [(client, why) for _, client, why in result.rejected] == [(LIAR, NEGATIVE)]
    assert result.records[0].trainings[0].clients == [0, 1, 2, 3, 5, 6]
    assert (result.parameters[5:7] >= 0).all()


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (sent(), None),
        (sent(_5=0.0), None),
        (sent(_5=-1e-6), NEGATIVE),
        (sent(_7=0.0), None),
        (sent(_7=-1.0), BACK),
        (sent(_7=10.5), NOT_WHOLE),
        (sent(_8=0.5), NOT_WHOLE),
        (sent(_8=-(2.0**30)), None),
        (sent(_8=1e30), "a counter is too large"),
        (sent(_8=-1e30), "a counter is too large"),
    ],
)
def test_what_is_refused(row, problem) -> None:
    assert refused(row) == problem


def test_what_counts_is_the_variance_not_its_movement() -> None:
    origin = np.array([0, 0, 0, 0, 3e38, 2, 2, 100, 0], dtype=np.float32)
    assert refused(sent(_5=-2.0, _6=-1.5, _7=100.0), origin) is None
    assert refused(sent(_5=-2.5, _7=100.0), origin) == NEGATIVE
    assert refused(sent(_4=3e38, _7=100.0), origin) == NOT_FINITE
    assert refused(sent(_7=99.0), origin) == BACK


def test_an_answer_to_an_older_model_is_judged_by_that_model() -> None:
    old, new = np.zeros((2, 9), dtype=np.float32)
    new[5] = 2
    rows = np.array([sent(_5=-1.0), sent(_5=-1.0), sent(_5=1.0)])
    updates = Updates.from_movements(rows, clients=np.array([3, 5, 8]), version=np.array([1, 0, 0]))
    judged = PossibleStatistics({0: old, 1: new}).apply(updates, SPEC, streams(0, 0, 0)("look"))
    assert judged.refused == {5: NEGATIVE}
    assert judged.updates.clients.tolist() == [3, 8]


variance = st.floats(0, 2.0**100, width=32)


@given(variance, variance)
@settings(max_examples=300, deadline=None)
def test_rounding_makes_no_variance_negative(before, after) -> None:
    start, end = np.float32(before), np.float32(after)
    assert refused(sent(_5=end - start, _7=0), np.full(9, start) * (np.arange(9) == 5)) is None


def test_names_of_pytorchs_layers() -> None:
    spec = spec_of(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2), nn.BatchNorm1d(2)))
    assert spec.variances.tolist() == [*range(30, 33), *range(35, 37)]
    assert spec.batch_counts.tolist() == [37, 38]


@pytest.mark.parametrize("pacing", [{}, {"method": "buffered", "k": 3, "in_flight": 6}], ids=["in time", "late"])
def test_honest_clients_are_believed(tiny, pacing) -> None:
    """Late answers too, whose statistics are relative to older models; a constant feature has no variance."""
    network = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64), nn.Linear(64, 10), nn.BatchNorm1d(10))
    devices = {"devices": {"method": "lognormal"}} if pacing else {}
    experiment = tiny(rounds=8, model=network, pacing=pacing, training={"lr": 0.1, "epochs": 3}, **devices)
    result = muster.run(experiment, workers=0)
    assert not result.rejected
    flown = [training.flown for record in result.records for training in record.trainings]
    assert any(trip is not None and any(trip.staleness) for trip in flown) == bool(pacing)
    assert math.isfinite(result.parameters.sum())
