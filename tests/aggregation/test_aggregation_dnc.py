"""DnC: scores are those of a singular value decomposition, outliers are left out, draws follow the run's seed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import muster
from muster.aggregation.dnc import DivideAndConquer, inconspicuous, outlier_scores
from muster.core.errors import ConfigError, TrainingError
from muster.engine.trial import TrialEngine
from muster.selection.random import RandomSelection
from muster.server import Server
from muster.server.loop import Observer


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 9), st.integers(1, 12))
def test_scores_are_projections_on_the_first_singular_vector(seed, clients, width):
    rows = np.random.default_rng(seed).normal(size=(clients, width))
    centred = rows - rows.mean(axis=0)
    _, values, directions = np.linalg.svd(centred, full_matrices=False)
    if len(values) > 1 and values[0] - values[1] < 1e-6:
        return
    np.testing.assert_allclose(outlier_scores(rows), (centred @ directions[0]) ** 2, atol=1e-8)


def test_worked_example(advance):
    movements = np.array([[1.0, 0.0], [1.1, 0.1], [0.9, -0.1], [1.0, 0.1], [-9.0, 0.0]])
    result = advance(DivideAndConquer(attackers=1, iterations=1), [0.0, 0.0], movements)
    np.testing.assert_allclose(result.weights, [0.25] * 4 + [0.0])
    np.testing.assert_allclose(result.parameters, [1.0, 0.025], atol=1e-6)


def test_equal_scores_stay_or_go_together():
    assert inconspicuous(np.zeros(5), 3).all()
    assert inconspicuous(np.array([0.1, 0.2, 0.2, 0.9]), 2).tolist() == [True, False, False, False]
    assert inconspicuous(np.array([0.1, 0.2, 0.3, 0.9]), 3).tolist() == [True, True, True, False]


def test_coordinates_come_from_the_generator_that_is_passed_in(advance):
    movements = np.random.default_rng(2).normal(size=(9, 40))
    results = [
        advance(DivideAndConquer(attackers=3, iterations=1, dimensions=2), np.zeros(40), movements, seed=seed)
        for seed in (5, 5, 6)
    ]
    np.testing.assert_array_equal(results[0].weights, results[1].weights)
    assert not np.array_equal(results[0].weights, results[2].weights)


def test_without_a_generator_it_says_so_and_one_is_used_once(advance, cohort, layout):
    one, updates = DivideAndConquer(attackers=1), cohort(np.eye(4))
    advance(one, np.zeros(4), np.eye(4))
    with pytest.raises(TrainingError, match="nothing to draw from"):
        one.aggregate(np.zeros(4, dtype=np.float32), updates, layout([4]))


def weights_of(result):
    return [training.weights for record in result.records for training in record.trainings]


class Stop(Observer):
    """Stops after a round."""

    def wants_stop(self) -> bool:
        return True


def test_every_seed_and_every_round_has_its_own_coordinates(monkeypatch):
    """In a run they follow from the seed, the round and the number of aggregations; nothing else."""
    drawn = []
    monkeypatch.setattr(DivideAndConquer, "draw_from", lambda self, rng: drawn.append(rng.bit_generator.state))
    monkeypatch.setattr(
        DivideAndConquer,
        "aggregate",
        lambda self, current, updates, spec: self.averaged(
            current, updates, np.full(len(updates), 1 / len(updates)), spec
        ),
    )

    def run(seed, rounds):
        drawn.clear()
        Server(RandomSelection(clients_per_round=4), DivideAndConquer(), TrialEngine(8), seed=seed).run(rounds)
        return [state["state"]["state"] for state in drawn]

    first = run(3, 4)
    assert len(set(first)) == 4, "every round draws others"
    assert run(3, 2) == first[:2]
    assert not set(run(4, 4)) & set(first), "and so does every seed"


def test_runs_draw_the_same_with_any_number_of_workers_and_after_a_resume(tiny, tmp_path):
    def experiment(**changes):
        dnc = {"method": "dnc", "attackers": 2, "iterations": 1, "dimensions": 20}
        return tiny(rounds=4, seed=changes.pop("seed", 1), aggregation=dnc, **changes)

    whole = muster.run(experiment(), workers=0)
    assert weights_of(muster.run(experiment(), workers=2)) == weights_of(whole)
    part = muster.run(experiment(), workers=0, out=tmp_path / "run", observers=[Stop()])
    assert len(part.records) == 1
    resumed = muster.run(experiment(), workers=0, out=tmp_path / "run", resume=True)
    np.testing.assert_array_equal(resumed.parameters, whole.parameters)
    assert weights_of(resumed) == weights_of(whole)


def test_colluding_attackers_are_left_out(advance):
    rng = np.random.default_rng(3)
    honest = rng.normal(size=(15, 50)) * 0.1 + 1
    attack = np.tile(honest.mean(axis=0) - 1.5, (4, 1))
    result = advance(DivideAndConquer(attackers=4), np.zeros(50), np.vstack([attack, honest]))
    assert not result.weights[:4].any()


def test_too_few_and_bad_options(population, advance):
    with pytest.raises(TrainingError, match="3 updates came, and 3 are to be left out"):
        advance(DivideAndConquer(attackers=3), np.zeros(2), np.ones((3, 2)))
    for options in ({"attackers": -1}, {"filter_factor": 0.0}, {"iterations": 0}, {"dimensions": 0}):
        with pytest.raises(ConfigError, match=next(iter(options))):
            DivideAndConquer(**options).check(population())


def test_one_attacker_more_than_expected_saves_nobody_when_all_send_the_same():
    scores = np.array([0.1, 0.2, 0.3, 0.4, 9.0, 9.0, 9.0])
    assert inconspicuous(scores, 5).tolist() == [True] * 4 + [False] * 3
    assert inconspicuous(np.ones(4), 2).all(), "nobody stands out"
