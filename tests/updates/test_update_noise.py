"""Noise on model updates: as much as ε demands, on everything, repeatable in simulation, and accounted for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.stats import kstest, norm

import muster
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.core.parameters import ParameterSpec, SpecEntry
from muster.privacy.account import LARGEST_EPSILON
from muster.server.loop import Observer
from muster.updates.filters import filters, named, streams
from muster.updates.table import Updates
from muster.updates.update_noise import UpdateNoise, clipped

WIDE = ParameterSpec((SpecEntry("weight", (20_000,), 0, 20_000),))
NOISE = {"method": "update-noise", "norm": 0.5, "epsilon": 2.0, "delta": 1e-4}


def sent(noise: UpdateNoise, movements, *, seed=3, round=0, clients=None) -> np.ndarray:
    updates = Updates.from_movements(np.array(movements, dtype=np.float32), clients=clients)
    result = noise.apply(updates, WIDE, streams(seed, round, 0)("client update-noise"))
    assert result.changed == len(updates), "whether an update was long is told by nothing but the update"
    return result.updates.movements


@pytest.mark.parametrize("node", [False, True])
def test_the_noise_is_normal_and_as_wide_as_the_mechanism_says(node):
    """Of two clipped movements, which are at most 2 · norm apart; by the formula of Balle and Wang, not ours."""
    noise = UpdateNoise(norm=0.5, epsilon=2.0, delta=1e-4)
    noise = noise.on_node() if node else noise
    sigma = noise.scale
    apart = 2 * 0.5
    leaked = norm.cdf(apart / (2 * sigma) - 2.0 * sigma / apart)
    leaked -= np.exp(2.0) * norm.cdf(-apart / (2 * sigma) - 2.0 * sigma / apart)
    assert leaked == pytest.approx(1e-4, rel=1e-6)
    movement = np.zeros(20_000)
    movement[:2] = 30.0, 40.0
    got = sent(noise, [movement])[0].astype(float)
    got[:2] -= 0.3, 0.4
    assert kstest(got / sigma, "norm").pvalue > 1e-4


def test_in_simulation_it_follows_from_seed_round_and_client_and_from_nothing_else():
    noise, zeros = UpdateNoise(norm=1.0, epsilon=1.0), np.zeros((2, 20_000))
    both = sent(noise, zeros, clients=np.array([4, 9]))
    np.testing.assert_array_equal(sent(noise, zeros[:1], clients=np.array([9]))[0], both[1])
    for other in (
        sent(noise, zeros[:1], clients=np.array([4]), **changed)[0] for changed in ({"seed": 4}, {"round": 1})
    ):
        assert not np.array_equal(other, both[0])
    assert not np.array_equal(both[0], both[1])


def test_on_a_node_no_number_follows_from_the_seed():
    def no_draws(client):
        raise AssertionError("drew from the experiment's seed")

    noise = UpdateNoise(norm=1.0, epsilon=1.0).on_node()
    one, other = (
        noise.apply(Updates.from_movements(np.zeros((1, 20_000))), WIDE, no_draws).updates.movements
        for _ in range(2)
    )
    assert not (one == other).any()


@settings(max_examples=50, deadline=None)
@given(hnp.arrays(np.float32, 6, elements=st.floats(-(2.0**99), 2.0**99, width=32)), st.floats(1e-3, 1e3))
def test_clipping_bounds_the_length_and_keeps_the_direction(movement, norm):
    result = clipped(movement, norm)
    assert np.linalg.norm(result) <= norm * (1 + 1e-12)
    length = np.linalg.norm(movement.astype(float))
    np.testing.assert_allclose(result * max(length, norm), movement.astype(float) * norm, rtol=1e-9)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_training_that_diverged_does_not_show(value):
    movement = np.zeros(20_000)
    movement[7] = value
    assert np.isfinite(sent(UpdateNoise(norm=1.0, epsilon=1.0), [movement])).all()


@pytest.mark.parametrize(
    "options",
    [
        {"norm": 0.0},
        {"norm": np.inf},
        {"norm": np.nan},
        {"epsilon": 0.0},
        {"epsilon": 101.0},
        {"epsilon": np.nan},
        {"delta": 0.0},
        {"delta": 1.0},
    ],
)
def test_options_that_protect_nothing_are_refused(options):
    (name,) = options
    noise = UpdateNoise(**({"norm": 1.0, "epsilon": 1.0} | options))
    with pytest.raises(ConfigError, match=f"{name} is"):
        noise.check(Population(np.full(3, 10), 2, WIDE, 1))


@pytest.mark.parametrize("where", ["buffers", "counters"])
def test_a_model_with_running_statistics_is_refused(where):
    spec = ParameterSpec((SpecEntry("weight", (4,), 0, 4),), **{where: (SpecEntry("bn.mean", (2,), 4, 6),)})
    with pytest.raises(ConfigError, match=r"running statistics \('bn.mean'\)"):
        UpdateNoise(norm=1.0, epsilon=1.0).check(Population(np.full(3, 10), 2, spec, 1))


class Stop(Observer):
    def wants_stop(self):
        return True


def test_runs_have_the_same_bits_on_every_engine_and_after_a_resume(tiny, tmp_path):
    experiment = tiny(rounds=2, filters=[NOISE])
    whole = muster.run(experiment, workers=0)
    assert np.array_equal(muster.run(experiment, workers=2).parameters, whole.parameters)
    muster.run(experiment, workers=0, out=tmp_path, observers=[Stop()])
    resumed = muster.run(experiment, workers=0, out=tmp_path, resume=True)
    assert np.array_equal(resumed.parameters, whole.parameters)
    (training,) = whole.records[0].trainings
    assert training.filtered["client update-noise"]["changed"] == len(training.clients)
    assert resumed.ledger.privacy.spent() == whole.ledger.privacy.spent()


def test_the_account_has_every_update_also_one_that_is_refused(tiny):
    """The longest of all updates: the guard refuses it, and it has left the client all the same."""
    everybody = {"method": "random", "clients_per_round": 12}
    result = muster.run(tiny(rounds=3, filters=[NOISE], selection=everybody, guard={"max_norm": 1e-6}), workers=0)
    (spent,) = result.ledger.privacy.spent()
    assert all(training.rejected for record in result.records for training in record.trainings)
    assert (spent.signal, spent.mechanism, spent.neighbours) == ("model update", "gaussian", "any two data sets")
    assert (spent.answers, spent.epsilon, spent.delta) == (3, 2.0, 1e-4)
    assert result.ledger.privacy.total() == pytest.approx((6.0, 3e-4))


def test_it_acts_on_clients_and_is_called_by_its_name():
    noise = filters.build("update-noise", {"norm": 1.0, "epsilon": 1.0})
    assert [name for name, _ in named([noise])] == ["client update-noise"]
    with pytest.raises(ConfigError, match="side"):
        filters.build("update-noise", {"norm": 1.0, "epsilon": 1.0, "side": "server"})


def test_feddyn_cannot_work_with_it(tiny):
    feddyn = {"aggregation": {"method": "feddyn"}, "algorithm": {"method": "feddyn"}}
    with pytest.raises(ConfigError, match="'client update-noise' changes movements on their way"):
        muster.run(tiny(filters=[NOISE], **feddyn), workers=0)


def test_the_ends_of_the_range_are_allowed():
    population = Population(np.full(3, 10), 2, WIDE, 1)
    UpdateNoise(norm=1e-6, epsilon=LARGEST_EPSILON, delta=0.999).check(population)
    UpdateNoise(norm=1e6, epsilon=1e-3, delta=1e-12).check(population)
    assert UpdateNoise(norm=1.0, epsilon=1.0).delta == 1e-5


def test_a_movement_within_the_bound_is_not_shortened():
    short = np.array([3.0, 4.0], dtype=np.float32)
    assert clipped(short, 5.0).tolist() == [3.0, 4.0]
    assert clipped(short, 6.0).tolist() == [3.0, 4.0]
    assert clipped(short, 2.5).tolist() == pytest.approx([1.5, 2.0])


def test_on_a_node_it_is_a_copy_that_draws_for_itself():
    noise = UpdateNoise(norm=1.0, epsilon=1.0)
    own = noise.on_node()
    assert own is not noise
    assert (own.norm, own.epsilon, own.scale) == (noise.norm, noise.epsilon, noise.scale)
    # The one that was given stays repeatable.
    zeros = np.zeros((1, 20_000))
    np.testing.assert_array_equal(sent(noise, zeros), sent(noise, zeros))
