"""FLTrust: trust scores, the server's own training, and what happens when nobody agrees with it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import muster
from muster.aggregation.fltrust import FLTrust, trust_scores
from muster.core.errors import ConfigError, TrainingError
from muster.core.parameters import ParameterSpec, SpecEntry
from muster.engine.task import Place
from muster.experiment.parts import build_parts
from muster.updates.table import Updates


def textbook(rows, root):
    """The paper's algorithm 2, client by client."""
    total, scores = np.zeros(len(root)), []
    for row in rows:
        cosine = row @ root / (np.linalg.norm(row) * np.linalg.norm(root))
        scores.append(max(0.0, cosine))
        total += scores[-1] * row * np.linalg.norm(root) / np.linalg.norm(row)
    return total / sum(scores)


@given(st.integers(0, 10_000), st.integers(1, 9))
def test_equals_the_textbook(seed, clients):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=6).astype(np.float32)
    rows = (rng.normal(size=(clients, 6)) + root).astype(np.float32)
    if not trust_scores(rows, root).any():
        return
    aggregator = FLTrust()
    aggregator.trust(root)
    spec = ParameterSpec((SpecEntry("w", (6,), 0, 6),))
    got = aggregator.aggregate(np.zeros(6, dtype=np.float32), Updates.from_movements(rows), spec).parameters
    np.testing.assert_allclose(got, textbook(rows.astype(float), root.astype(float)), rtol=1e-4, atol=1e-5)


def test_worked_example(advance):
    aggregator = FLTrust()
    aggregator.trust(np.array([1.0, 0.0], dtype=np.float32))
    # Along, at a right angle, against: cosines 1, 0, −1; the first is brought to the length 1.
    result = advance(aggregator, [0.0, 0.0], [[5.0, 0.0], [0.0, 2.0], [-1.0, 0.0]])
    np.testing.assert_allclose(result.parameters, [1.0, 0.0])
    np.testing.assert_allclose(result.weights, [1.0, 0.0, 0.0])


def test_where_nobody_agrees_the_model_stays(advance):
    aggregator = FLTrust()
    aggregator.trust(np.array([1.0, 0.0], dtype=np.float32))
    result = advance(aggregator, [3.0, 4.0], [[-5.0, 0.0], [0.0, 0.0]])
    np.testing.assert_array_equal(result.parameters, [3.0, 4.0])
    assert not result.weights.any()


def test_it_does_not_go_on_with_an_old_training(advance):
    aggregator = FLTrust()
    aggregator.trust(np.ones(2, dtype=np.float32))
    advance(aggregator, [0.0, 0.0], np.ones((3, 2)))
    with pytest.raises(TrainingError, match="has not trained on its own data"):
        advance(aggregator, [0.0, 0.0], np.ones((3, 2)))


OWN = {"data": {"source": "digits", "validation": 100}, "aggregation": {"method": "fltrust"}}


def test_the_server_needs_data_of_its_own(tiny):
    with pytest.raises(ConfigError, match=r"validation = 100 in the section \[data\]"):
        muster.run(tiny(aggregation={"method": "fltrust"}), workers=0)


def test_scaled_and_flipped_updates_do_no_harm(tiny):
    attacked = [
        {"method": "sign-flip", "share": 0.3},
        {"method": "scaled-update", "share": 0.3, "factor": 100.0},
    ]
    everybody = {"method": "random", "clients_per_round": 12}
    training = {"lr": 0.1, "batch_size": 16, "epochs": 2}
    common = {"rounds": 8, "selection": everybody, "training": training}
    defended = muster.run(tiny(**OWN, **common, filters=attacked), workers=0)
    fallen = muster.run(tiny(**common, filters=attacked), workers=0)
    assert defended.final() > 0.6
    assert fallen.final() < defended.final() - 0.2


def test_the_servers_training_is_the_same_for_any_number_of_workers_and_after_a_resume(tiny, tmp_path):
    one, two = muster.run(tiny(**OWN), workers=0), muster.run(tiny(**OWN), workers=2)
    assert np.array_equal(one.parameters, two.parameters)
    with build_parts(tiny(**OWN), workers=0).engine as engine:
        start = engine.initial_parameters()
        first = engine.root_movement(start, Place(1, 0, 0), 0.1)
        assert np.array_equal(first, engine.root_movement(start, Place(1, 0, 0), 0.1))
        assert not np.array_equal(first, engine.root_movement(start, Place(2, 0, 0), 0.1))
        assert np.isfinite(first).all()
        assert first.any()
