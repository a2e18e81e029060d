"""Numbers of one run, by hand: budgets, areas, targets, participation and overhead."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import muster
from muster.core import inequality
from muster.core.errors import ConfigError
from muster.report.compare.measures import (
    Budget,
    better,
    curve,
    disclosures,
    overhead,
    participation,
    step_area,
    to_target,
    total,
    value,
    weights_given,
)
from muster.report.tables import Better
from muster.server.ledger import Costs

NAN = math.nan
X, Y = np.array([1.0, 2.0, 4.0]), np.array([0.1, 0.5, 0.9])


def test_value_is_that_of_the_last_evaluation(run_of):
    run = run_of("a", 0, [0.1, 0.2, 0.4, NAN])
    assert value(run, "accuracy") == 0.4
    assert value(run, "accuracy", last=2) == pytest.approx(0.3)
    assert value(run, "accuracy", last=9) == pytest.approx(0.7 / 3)
    assert math.isnan(value(run, "worst_group_accuracy"))


@pytest.mark.parametrize(
    ("unit", "amount", "expected"),
    [
        ("round", 2, 0.2),
        ("round", 2.9, 0.2),
        ("client_trainings", 4, 0.2),
        ("client_trainings", 5.9, 0.2),
        ("client_trainings", 6, 0.4),
        ("bytes", 160, 0.1),  # both ways: 160 bytes a round
        ("bytes", 1e9, 0.4),
        ("virtual_seconds", 3.0, 0.2),
        ("round", 0.5, NAN),
    ],
)
def test_within_a_budget_the_last_evaluation_counts(run_of, unit, amount, expected):
    costs = Costs(2, 0, 0, 0, 80, 80, 0.0, 1.5)
    run = run_of("a", 0, [0.1, 0.2, 0.4], costs=costs)
    assert value(run, "accuracy", within=Budget(unit, amount)) == pytest.approx(expected, nan_ok=True)


def test_totals_and_unknown_units(run_of):
    run = run_of("a", 0, [0.1, 0.2], costs=Costs(3, 0, 0, 0, 100, 20, 0.0, 2.5))
    found = [total(run, unit) for unit in ("round", "client_trainings", "bytes", "virtual_seconds")]
    assert found == [2, 6, 240, 5.0]
    with pytest.raises(ConfigError, match="unknown unit of work 'rounds'"):
        curve(run, "accuracy", "rounds")


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (1, 4, (0.1 * 1 + 0.5 * 2) / 3),
        (1, 6, (0.1 * 1 + 0.5 * 2 + 0.9 * 2) / 5),
        (1.5, 3, (0.1 * 0.5 + 0.5 * 1) / 1.5),
        (5, 9, 0.9),
        (0, 4, NAN),  # nothing was measured at 0
        (4, 4, NAN),
    ],
)
def test_area_by_hand(start, end, expected):
    assert step_area(X, Y, start, end) == pytest.approx(expected, nan_ok=True)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.1, 5), st.floats(0, 1)), min_size=1, max_size=8),
    st.floats(0, 3),
    st.floats(1, 20),
)
def test_area_is_the_mean_of_a_fine_sampling(steps, late, length):
    work = np.cumsum([step for step, _ in steps])
    values = np.array([height for _, height in steps])
    start = work[0] + late
    samples = start + (np.arange(4000) + 0.5) * length / 4000
    held = values[np.searchsorted(work, samples, side="right") - 1]
    assert step_area(work, values, start, start + length) == pytest.approx(held.mean(), abs=5e-3)


@pytest.mark.parametrize(
    ("values", "target", "sustain", "expected"),
    [
        ([0.1, 0.5, 0.9], 0.5, 1, 2),
        ([0.1, 0.5, 0.9], 0.95, 1, NAN),
        ([0.6, 0.4, 0.6, 0.7], 0.6, 1, 1),
        ([0.6, 0.4, 0.6, 0.7], 0.6, 2, 3),  # once is chance
        ([0.6], 0.6, 2, NAN),
        ([], 0.6, 1, NAN),
    ],
)
def test_work_to_a_target(values, target, sustain, expected):
    work = np.arange(1.0, len(values) + 1)
    found = to_target(work, np.array(values), target, Better.HIGHER, sustain)
    assert found == pytest.approx(expected, nan_ok=True)


def test_a_loss_reaches_its_target_from_above():
    assert better("loss") is Better.LOWER
    assert to_target(X, 1 - Y, 0.5, Better.LOWER) == 2


def test_participation_is_counted_by_round(run_of):
    run = run_of("a", 0, [0.1] * 3, selections=[[0, 1, 0], [0, 2, 0], [0, 1, 0]])
    facts = participation(run)
    counts = np.array([3, 2, 1, 0])
    assert facts["gini"] == pytest.approx(inequality.gini(counts))
    assert (facts["coverage"], facts["longest_wait"]) == (0.75, 4)


def test_participation_is_unknown_where_the_number_of_clients_is(run_of):
    run = run_of("a", 0, [0.1])
    run.history.__init__(0)
    assert all(map(math.isnan, participation(run).values()))


def test_weights_by_hand(run_of):
    run = run_of("a", 0, [0.1, 0.2], selections=[[0, 1, 2, 3], [0, 1]])
    run.records[0].trainings[0].weights[:] = [0.5, 0.25, 0.125, 0.125]
    facts = weights_given(run)
    assert (facts["smallest"], facts["largest"], facts["clients"]) == (0.125, 0.5, 3.0)
    assert (facts["ratio"], facts["largest_ratio"]) == (2.5, 4.0)
    # Entropy in bits: 1/2 + 2/4 + 3/8 + 3/8 = 1.75; two equal clients are two that count.
    assert facts["counting"] == pytest.approx((2**1.75 + 2) / 2)
    run.records[1].trainings[0].weights[:] = [1.0, 0.0]
    facts = weights_given(run)
    assert math.isnan(facts["ratio"]), "a client without weight: no ratio"
    assert facts["counting"] == pytest.approx((2**1.75 + 1) / 2)


def test_weights_are_unknown_where_nobody_was_aggregated(run_of):
    run = run_of("a", 0, [0.1])
    run.records[0].trainings.clear()
    assert all(math.isnan(fact) for fact in weights_given(run).values())


def test_overhead_by_hand(run_of):
    # Two of three clients answered with a model of 40 bytes; four were asked, with a model, and sent 4 bytes each.
    costs = Costs(2, 4, 30, 50, 3 * 40 + 4 * 40, 2 * 40 + 4 * 4, 0.25, seconds=1.5)
    run = run_of("a", 0, [0.1, 0.2], costs=costs, asks=[(["loss"], 4, 4)], disclosed={"loss": 4})
    for record in run.records:
        record.trainings[0].failed = {3: "silent"}
    found = overhead(run)
    assert (found.rounds_with_questions, found.clients_asked, found.client_trainings) == (1.0, 4, 2)
    assert (found.extra_down, found.extra_up) == (160, 16)
    assert (found.samples_trained, found.samples_probed, found.server_seconds, found.seconds) == (
        30,
        50,
        0.25,
        1.5,
    )
    assert disclosures(run) == {"loss": 4}


def test_real_runs_without_questions_have_no_overhead(tiny):
    plain = overhead(muster.run(tiny(), workers=0))
    assert (plain.extra_down, plain.extra_up, plain.clients_asked) == (0, 0, 0)
    asking = muster.run(tiny(selection={"method": "power-of-choice", "clients_per_round": 5}), workers=0)
    found = overhead(asking)
    assert found.extra_up == 4 * found.clients_asked > 0
    assert found.extra_down == asking.spec.bytes * found.clients_asked
    assert found.samples_probed > 0
