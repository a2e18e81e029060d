"""Noise on signals: as much as the guarantee needs, the same in every run, and answers that still make sense."""

import pickle
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm

from muster.core.errors import ConfigError
from muster.privacy.noise import Private, gaussian_scale, nearest_counts, private, with_own_entropy
from muster.signals.base import Sensitivity, Signal
from muster.signals.heterogeneity import HeterogeneityTriplet, InteractionMatrix
from muster.signals.labels import LabelEntropy, LabelHistogram
from muster.signals.losses import Loss
from muster.signals.updates import FinalLayerNorm

DELTA = 1e-5


@dataclass(frozen=True)
class Zeros(Signal):
    """Many zeros, so that one answer shows the distribution of the noise."""

    name: ClassVar[str] = "zeros"
    discloses: ClassVar[str] = "nothing"

    def measure(self, client):
        return np.zeros(40_000)


def delta_of(sigma: float, epsilon: float) -> float:
    """The textbook definition: how much more one output is likely than exp(ε) times the other, added up."""

    def excess(x: float) -> float:
        return max(0.0, norm.pdf(x, 1, sigma) - np.exp(epsilon) * norm.pdf(x, 0, sigma))

    start = 0.5 + epsilon * sigma**2  # where the densities' ratio is exp(ε)
    return quad(excess, start, start + 40 * sigma, epsabs=1e-14)[0]


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0, 20.0])
@pytest.mark.parametrize("delta", [1e-6, 1e-2])
def test_gaussian_noise_is_just_enough(epsilon, delta):
    assert delta_of(gaussian_scale(epsilon, delta), epsilon) == pytest.approx(delta, rel=1e-5)


def test_gaussian_noise_is_less_than_the_classical_bound():
    assert gaussian_scale(1.0, DELTA) == pytest.approx(3.7306, abs=1e-4)
    assert gaussian_scale(1.0, DELTA) < np.sqrt(2 * np.log(1.25 / DELTA))


@pytest.mark.parametrize("mechanism", ["laplace", "gaussian"])
def test_noise_has_the_scale_of_the_sensitivity(make_client, mechanism):
    bound = Sensitivity(l1=3.0, l2=2.0, neighbours="made up", low=-np.inf)
    noisy = Private(Zeros(), mechanism, epsilon=0.5, delta=DELTA, bound=bound)
    drawn = noisy.measure(make_client())
    expected = 3.0 / 0.5 if mechanism == "laplace" else 2.0 * gaussian_scale(0.5, DELTA)
    assert noisy.scale == pytest.approx(expected)
    # Mean absolute deviation: b of the Laplace distribution, σ√(2/π) of the normal one.
    spread = expected * (1 if mechanism == "laplace" else np.sqrt(2 / np.pi))
    assert np.abs(drawn).mean() == pytest.approx(spread, rel=0.02)
    assert drawn.mean() == pytest.approx(0, abs=0.03 * expected)


@pytest.mark.parametrize(
    ("signal", "l1", "l2", "neighbours"),
    [
        (LabelHistogram(), 2, np.sqrt(2), "one sample replaced"),
        (InteractionMatrix(), 2, np.sqrt(2), "one sample replaced"),
        (HeterogeneityTriplet(), 3, np.sqrt(3), "any two data sets"),
        (LabelEntropy(), np.log(3), np.log(3), "any two data sets"),
    ],
)
def test_stated_sensitivities(signal, l1, l2, neighbours):
    bound = signal.sensitivity(3)
    assert (bound.l1, bound.l2) == pytest.approx((l1, l2))
    assert bound.neighbours == neighbours


def test_replacing_a_sample_stays_within_the_sensitivity(make_client):
    client, other = make_client(), make_client()
    other.labels = client.labels.clone()
    other.labels[0] = (client.labels[0] + 1) % 3
    moved = LabelHistogram().measure(client) - LabelHistogram().measure(other)
    bound = LabelHistogram().sensitivity(3)
    assert (np.abs(moved).sum(), np.linalg.norm(moved)) == pytest.approx((bound.l1, bound.l2))


def test_a_noisy_histogram_is_still_one(make_client):
    client = make_client(size=20)
    for seed in range(20):
        client.rng = np.random.default_rng(seed)
        noisy = private(LabelHistogram(), "laplace", 0.05, DELTA, 3).measure(client)
        assert noisy.min() >= 0
        assert noisy.sum() == pytest.approx(20)


def test_a_noisy_triplet_stays_in_its_range(make_client):
    client = make_client(attributes=np.zeros(30, dtype=np.int64), attribute_values=2)
    exact = HeterogeneityTriplet(estimate="true")
    noisy = private(exact, "gaussian", 1.0, DELTA, 3).measure(client)
    assert ((noisy >= 0) & (noisy <= 1)).all()
    assert not np.array_equal(noisy, exact.measure(client))


def test_noise_repeats_and_leaves_the_clients_own_stream_alone(make_client):
    noisy = private(LabelHistogram(), "laplace", 1.0, DELTA, 3)
    first, second, plain = make_client(), make_client(), make_client()
    assert np.array_equal(noisy.measure(first), noisy.measure(second))
    assert first.rng.random() == plain.rng.random()
    assert not np.array_equal(noisy.measure(second), noisy.measure(second)), "every answer has noise of its own"


def test_on_a_node_no_noise_follows_from_the_seed(make_client):
    """The server knows the seed: noise that follows from it would hide nothing."""
    noisy = with_own_entropy(private(LabelHistogram(), "laplace", 1.0, DELTA, 3))
    assert not np.array_equal(noisy.measure(make_client()), noisy.measure(make_client()))
    exact = LabelHistogram()
    assert with_own_entropy(exact) is exact


def test_it_looks_like_the_signal_that_it_covers():
    signal = HeterogeneityTriplet(models=2)
    noisy = pickle.loads(pickle.dumps(private(signal, "laplace", 2.0, DELTA, 4)))
    assert noisy == private(signal, "laplace", 2.0, DELTA, 4)
    assert noisy.name == signal.name
    assert noisy.uses_model
    assert noisy.samples(10, 5) == signal.samples(10, 5)
    assert noisy.discloses == f"{signal.discloses}, with noise (ε = 2)"


@pytest.mark.parametrize(
    ("signal", "message"), [(FinalLayerNorm(), "from the model update"), (Loss(), "no bound is known")]
)
def test_noise_that_cannot_protect_is_refused(signal, message):
    with pytest.raises(ConfigError, match=message):
        private(signal, "laplace", 1.0, DELTA, 3)


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=6), st.integers(1, 100))
@settings(max_examples=60, deadline=None)
def test_nearest_counts_is_the_closest_allowed_point(values, total):
    values = np.array(values)
    found = nearest_counts(values, total)
    assert found.min() >= 0
    assert found.sum() == pytest.approx(total)
    # The closest point of a convex set: no allowed corner lies further along the direction of the error.
    corners = np.eye(len(values)) * total
    assert ((corners - found) @ (values - found)).max() <= 1e-6 * (1 + np.abs(values).max()) * total


def test_nearest_counts_by_hand():
    assert nearest_counts(np.array([5.0, -3.0, 4.0]), 7).tolist() == [4.0, 0.0, 3.0]
    assert nearest_counts(np.array([2.0, 3.0]), 5).tolist() == [2.0, 3.0]


def test_labels_on_the_client_stay_as_they_are(make_client):
    client = make_client()
    before = client.labels.clone()
    private(LabelHistogram(), "gaussian", 1.0, DELTA, 3).measure(client)
    assert torch.equal(client.labels, before)
