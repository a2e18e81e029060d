"""FedCor."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core.errors import ConfigError
from muster.selection.fedcor import FedCor, by_measured, discounts, fit, gradient, initial, residuals_of, select

COVARIANCE = np.array([[1, 0.8, 0.1], [0.8, 1, 0.2], [0.1, 0.2, 1]])
QUICK = {"warmup": 2, "interval": 3, "steps": (20, 5)}


@pytest.mark.parametrize("options", [{}, {"likelihood": "leave-one-out", "epsilon": 0.3}])
def test_contract(keeps_contract, options):
    keeps_contract(lambda: FedCor(clients_per_round=4, **QUICK, **options), 4)


def scores(covariance, shares, left):
    return [
        sum(shares[i] * covariance[i, k] for i in left) / np.sqrt(covariance[k, k]) if k in left else None
        for k in range(len(covariance))
    ]


def test_worked_example():
    thirds = np.full(3, 1 / 3)
    assert scores(COVARIANCE, thirds, [0, 1, 2]) == pytest.approx([0.633333, 0.666667, 0.433333], abs=5e-7)
    conditioned = COVARIANCE - np.outer(COVARIANCE[1], COVARIANCE[1])
    np.testing.assert_allclose(conditioned, [[0.36, 0, -0.06], [0, 0, 0], [-0.06, 0, 0.96]], atol=1e-12)
    left = scores(conditioned, thirds, [0, 2])
    assert (left[0], left[2]) == pytest.approx((0.166667, 0.306186), abs=5e-7)
    assert select(COVARIANCE, thirds, 2).tolist() == [1, 2]


def textbook(covariance, shares, count, annealed, floor):
    left, picked = list(range(len(covariance))), []

    def score(k):
        return (
            annealed[k] * sum(shares[i] * covariance[i, k] for i in left) / np.sqrt(max(covariance[k, k], floor))
        )

    for _ in range(count):
        best = max(left, key=lambda k: (score(k), -k))
        variance = max(covariance[best, best], floor)
        covariance = covariance - np.outer(covariance[:, best], covariance[best]) / variance
        left.remove(best)
        picked.append(best)
    return picked


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 9), st.integers(0, 1000))
def test_selection_equals_the_textbook(clients, seed):
    rng = np.random.default_rng(seed)
    x, shares, annealed = rng.normal(size=(3, clients)), rng.dirichlet(np.ones(clients)), rng.random(clients)
    covariance = x.T @ x + 0.01 * np.eye(clients)
    count = int(rng.integers(1, clients))
    picked = select(covariance, shares, count, annealed=annealed, floor=0.01)
    assert picked.tolist() == textbook(covariance, shares, count, annealed, 0.01)


def log_likelihood(changes, embedding, weights, noise, likelihood):
    """What `fit` maximises, up to a constant. Clients that an observation lacks are integrated out."""
    total = 0.0
    for weight, residual in zip(weights, residuals_of(changes, weights), strict=True):
        seen = np.isfinite(residual)
        x, r = embedding[:, seen], residual[seen]
        precision = np.linalg.inv(x.T @ x + noise**2 * np.eye(len(r)))
        a = precision @ r
        if likelihood == "marginal":
            total += weight * 0.5 * (np.linalg.slogdet(precision)[1] - r @ a)
        else:
            q = np.diag(precision)
            total += weight * 0.5 * float(np.sum(np.log(q) - a**2 / q))
    return float(total)


@pytest.mark.parametrize("likelihood", ["marginal", "leave-one-out"])
def test_gradient_equals_finite_differences(likelihood):
    rng = np.random.default_rng(0)
    changes, x = rng.normal(size=(4, 6)), 0.5 * rng.normal(size=(3, 6))
    changes[1, 2] = changes[3, :2] = np.nan
    numeric, weights = np.zeros_like(x), discounts(np.array([1, 2, 5, 7]))
    for cell in np.ndindex(*x.shape):
        step = np.zeros_like(x)
        step[cell] = 1e-6
        up, down = (log_likelihood(changes, x + sign * step, weights, 0.3, likelihood) for sign in (1, -1))
        numeric[cell] = (up - down) / 2e-6
    np.testing.assert_allclose(
        gradient(by_measured(changes, weights), x, 0.3, likelihood), numeric, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("likelihood", ["marginal", "leave-one-out"])
def test_fit_learns_which_losses_move_together(likelihood):
    rng = np.random.default_rng(1)
    groups = np.repeat([0, 1], 4)
    changes = rng.normal(size=(10, 2))[:, groups] + 0.1 * rng.normal(size=(10, 8))
    start, weights = initial(changes, 4, rng), discounts(np.arange(10), 0.95)
    found = fit(changes, start, weights, noise=0.1, steps=600, lr=0.02, likelihood=likelihood)
    before, after = (log_likelihood(changes, x, weights, 0.1, likelihood) for x in (start, found))
    assert after > before
    if likelihood == "leave-one-out":
        return  # its optimum need not show the groups
    unit = found / np.linalg.norm(found, axis=0)
    cosine = unit.T @ unit
    same = groups[:, None] == groups[None, :]
    assert cosine[same].min() > np.abs(cosine[~same]).max()


def test_measurements_in_warm_up_and_fitting_rounds_only(federation):
    fed = federation(8)
    played = fed.run(FedCor(clients_per_round=3, **QUICK), 8)
    # Losses after a round are those before the next one, and are not asked for twice.
    assert [len(round.asks) for round in played] == [2, 1, 1, 1, 0, 0, 2, 0]


def test_selected_clients_are_annealed_until_the_next_fit(federation):
    fed, selector = federation(8), FedCor(clients_per_round=3, **QUICK)
    fed.run(selector, 4)
    chosen = fed.play(selector).trained
    annealed = selector.state_dict()["_annealed"]
    assert annealed[chosen].tolist() == [0.9] * 3
    assert annealed.sum() == pytest.approx(5 + 2.7)
    fed.run(selector, 2)
    assert selector.state_dict()["_annealed"].tolist() == [1.0] * 8


def test_losses_that_are_not_numbers_leave_gaps(federation):
    fed, selector = federation(6), FedCor(clients_per_round=3, **QUICK)
    fed.play(selector, nan={"loss": [2]})
    fed.play(selector, nan={"loss": range(6)})
    changes = selector.state_dict()["_changes"]
    assert changes.shape == (1, 6)
    assert np.isnan(changes[0]).tolist() == [k == 2 for k in range(6)]


def test_observations_are_kept_and_discounted_by_their_rounds(federation):
    """With the authors' defaults: after the warm-up a fit every five rounds, ten rounds kept, γ = 0.8."""
    fed = federation(6)
    selector = FedCor(clients_per_round=3, steps=(2, 2))
    fed.run(selector, 26)
    kept = selector.state_dict()
    assert kept["_rounds"].tolist() == list(range(15, 26))  # the newest, and ten rounds before it
    assert len(kept["_changes"]) == 11
    fed.run(selector, 10)  # rounds 30 and 35
    rounds = selector.state_dict()["_rounds"]
    assert rounds.tolist() == [25, 30, 35]
    assert discounts(rounds) == pytest.approx([0.8**10, 0.8**5, 1])
    assert discounts(rounds) == pytest.approx([0.11, 0.33, 1], abs=0.005)


def test_a_fit_weighs_observations_by_their_rounds(federation, monkeypatch):
    seen = []

    def spy(changes, embedding, weights, **options):
        seen.append(weights.tolist())
        return fit(changes, embedding, weights, **options)

    monkeypatch.setattr("muster.selection.fedcor.fit", spy)
    federation(6).run(FedCor(clients_per_round=3, steps=(2, 2)), 36)
    ages = [range(10, -1, -1), [*range(5 + 5, 4, -1), 0], [10, 5, 0]]
    assert len(seen) == 3
    for weights, expected in zip(seen, ages, strict=True):
        assert weights == pytest.approx([0.8**age for age in expected])


def test_clients_with_equal_scores_are_drawn_by_lot(federation):
    """Of clients that nobody has measured, none is better than another, whatever its id."""
    fed, selector = federation(12, sizes=[50] * 12), FedCor(clients_per_round=3, warmup=1, interval=10**6)
    selector.load_state_dict({**selector.state_dict(), "_embedding": np.zeros((15, 12))})
    times = np.zeros(12)
    for _ in range(240):
        selector._annealed = np.ones(12)
        times[fed.play(selector).trained] += 1
    # 60 each in the mean, with a standard deviation of 6.7.
    assert times[0] < 120
    assert times.min() > 30


def test_it_picks_from_both_groups_of_losses(federation):
    def loss(clients, round):
        shared = np.random.default_rng(round).normal(size=2)
        return 2 + shared[clients // 5]

    fed = federation(10, sizes=[50] * 10, script={"loss": loss})
    selector = FedCor(clients_per_round=2, warmup=8, interval=100)
    fed.run(selector, 9)
    for _ in range(5):
        first, second = fed.play(selector).trained
        assert first < 5 <= second


@pytest.mark.parametrize(
    "options", [{"warmup": 0}, {"noise": 0.0}, {"discount": 1.5}, {"epsilon": -0.1}, {"steps": (0, 1)}]
)
def test_bad_options_are_refused(federation, options):
    with pytest.raises(ConfigError):
        FedCor(**{"clients_per_round": 4, **options}).check(federation(10).population)


@pytest.mark.parametrize("interval", [1, 2, 3])
def test_says_that_it_is_random_selection_exactly_where_no_round_chooses(federation, interval):
    fed = federation(12, rounds=10)
    selector = FedCor(clients_per_round=4, warmup=2, interval=interval, steps=(5, 2))
    cautioned = any("random selection" in line for line in selector.cautions(fed.population))
    # A round that chooses by the fitted process asks nobody for losses; a random one does.
    chooses = any(not played.asks for played in fed.run(selector, 10))
    assert cautioned != chooses


def test_the_fit_takes_the_steps_of_adam():
    rng = np.random.default_rng(0)
    changes, start, weights = rng.normal(size=(4, 6)), rng.normal(size=(3, 6)), np.array([0.5, 0.8, 0.9, 1.0])
    parts, embedding = by_measured(changes, weights), torch.tensor(start)
    adam = torch.optim.Adam([embedding], lr=0.01, maximize=True)
    for _ in range(5):
        embedding.grad = torch.tensor(gradient(parts, embedding.numpy(), 0.3, "marginal"))
        adam.step()
    np.testing.assert_allclose(fit(changes, start, weights, noise=0.3, steps=5), embedding, rtol=1e-9)
