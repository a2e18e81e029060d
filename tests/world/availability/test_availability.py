"""Who can be reached: counts, skew, and independence of what happened before."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core.errors import ConfigError
from muster.core.sampling import weighted_sample
from muster.world.availability import availabilities
from muster.world.availability.dirichlet import DirichletAvailability, participation_probabilities


def frequencies(availability, clients: int, rounds: int, seed: int = 3) -> np.ndarray:
    counts = np.zeros(clients)
    for t in range(rounds):
        counts[availability.available(t, clients, seed)] += 1
    return counts / rounds


def test_always_reaches_everybody():
    assert availabilities.build("always", {}).available(7, 5, 0).tolist() == [0, 1, 2, 3, 4]


def test_bernoulli_reaches_each_client_with_its_probability():
    seen = frequencies(availabilities.build("bernoulli", {"p": 0.3}), clients=20, rounds=2000)
    assert np.abs(seen - 0.3).max() < 0.05  # five standard deviations


def test_bernoulli_with_probability_one_is_always():
    assert len(availabilities.build("bernoulli", {"p": 1.0}).available(0, 50, 9)) == 50


def test_successive_draws_have_the_textbook_inclusion_probabilities():
    rng = np.random.default_rng(0)
    counts = np.zeros(3)
    for _ in range(20_000):
        counts[weighted_sample(np.array([0.7, 0.2, 0.1]), 2, rng)] += 1
    np.testing.assert_allclose(counts / 20_000, [0.952778, 0.688889, 0.358333], atol=0.015)


def test_skew_stays_with_the_same_clients_unless_redrawn():
    stays = frequencies(DirichletAvailability(gamma=0.1, share=0.1), clients=50, rounds=1000)
    redrawn = frequencies(
        DirichletAvailability(gamma=0.1, share=0.1, redraw="every_round"), clients=50, rounds=1000
    )
    assert stays.std() > 5 * redrawn.std()
    assert np.abs(redrawn - 0.1).max() < 0.06


def test_infinite_gamma_has_no_skew():
    assert participation_probabilities(4, np.inf, np.random.default_rng(0)).tolist() == [0.25] * 4


@settings(max_examples=30, deadline=None)
@given(
    clients=st.integers(1, 200),
    share=st.floats(0.01, 1.0),
    gamma=st.sampled_from([1e-4, 0.01, 0.5, 10.0, np.inf]),
    redraw=st.sampled_from(["never", "every_round"]),
    round_=st.integers(0, 500),
)
def test_dirichlet_gives_the_asked_number_of_distinct_clients(clients, share, gamma, redraw, round_):
    availability = DirichletAvailability(gamma=gamma, share=share, redraw=redraw)
    ids = availability.available(round_, clients, seed=1)
    assert len(ids) == max(1, int(share * clients + 1e-9))
    assert (np.diff(ids) > 0).all()
    assert ids[0] >= 0
    assert ids[-1] < clients
    assert ids.tolist() == availability.available(round_, clients, seed=1).tolist()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("bernoulli", {"p": 0.0}),
        ("bernoulli", {"p": 1.5}),
        ("dirichlet", {"gamma": 0.0}),
        ("dirichlet", {"gamma": float("nan")}),
        ("dirichlet", {"share": 0.0}),
    ],
)
def test_values_out_of_range_are_refused(name, options):
    with pytest.raises(ConfigError, match="availability"):
        availabilities.build(name, options).check(None)


def test_a_share_that_means_a_whole_number_is_one():
    assert int(0.29 * 100) == 28
    assert len(DirichletAvailability(share=0.29).available(0, 100, seed=0)) == 29
