"""Terraform's split against an exact oracle, and its rounds."""

from __future__ import annotations

import itertools
import time
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core.errors import ConfigError
from muster.selection.terraform import Terraform, intra_variance, split

RANGES = [(0.25, 0.75), (0.0, 1.0), (0.0, 0.75), (0.25, 1.0), (0.75, 1.0)]

EXAMPLE = np.array([0.9, 0.1, 2.0, 0.2, 1.1, 0.15])
SIZES = np.array([100, 50, 200, 50, 100, 100])


def exact_split(magnitudes, sizes, quartiles, outer_weights):
    """The definition, word for word, in rational numbers."""
    kept = [i for i, u in enumerate(magnitudes) if np.isfinite(u)]
    order = sorted(kept, key=lambda i: (magnitudes[i], i))
    if len(order) < 2:
        return order
    u = [Fraction(float(magnitudes[i])) for i in order]
    n = [int(sizes[i]) for i in order]
    total = sum(n)

    def quartile(share):
        return next(k for k in range(1, len(n) + 1) if sum(n[:k]) >= Fraction(share) * total)

    def variance(values, weights):
        mean = sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)
        return sum(w * (v - mean) ** 2 for w, v in zip(weights, values, strict=True)) / sum(weights)

    def objective(cut):
        share = Fraction(cut, len(u)) if outer_weights == "count" else Fraction(sum(n[:cut]), total)
        return share * variance(u[:cut], n[:cut]) + (1 - share) * variance(u[cut:], n[cut:])

    first, stop = (quartile(share) for share in quartiles)
    cuts = list(range(first, stop)) or [min(max(first, 1), len(u) - 1)]
    # Decimal magnitudes that tie on paper differ by a rounding error as binary numbers: that is still a tie.
    best = min(objective(cut) for cut in cuts) * (1 + Fraction(1, 10**12))
    return order[next(cut for cut in cuts if objective(cut) <= best) :]


def test_worked_example():
    order = np.argsort(EXAMPLE)
    np.testing.assert_array_equal(order, [1, 5, 3, 0, 4, 2])
    count = intra_variance(EXAMPLE[order], SIZES[order])
    np.testing.assert_allclose(count[1:], [0.262572, 0.128125, 0.143889, 0.155208], atol=5e-7)
    samples = intra_variance(EXAMPLE[order], SIZES[order], "samples")
    np.testing.assert_allclose(samples[1:], [0.295324, 0.170417, 0.152917, 0.124167], atol=5e-7)
    np.testing.assert_array_equal(split(EXAMPLE, SIZES), [0, 4, 2])
    np.testing.assert_array_equal(split(EXAMPLE, SIZES, outer_weights="samples"), [2])


def test_worked_example_with_equal_sizes():
    ones = np.ones(6, dtype=int)
    variances = intra_variance(np.sort(EXAMPLE), ones)
    np.testing.assert_allclose(variances[1:4], [0.275208, 0.115278, 0.138646], atol=5e-7)
    np.testing.assert_array_equal(split(EXAMPLE, ones), [0, 4, 2])


@pytest.mark.parametrize("clients", [0, 1])
def test_nothing_to_split(clients):
    np.testing.assert_array_equal(split(np.ones(clients), np.ones(clients, dtype=int)), np.arange(clients))


def test_one_client_with_most_of_the_data_leaves_no_range():
    np.testing.assert_array_equal(split(np.array([1.0, 2.0, 3.0]), np.array([1, 98, 1])), [2])
    np.testing.assert_array_equal(split(np.array([1.0, 2.0, 3.0]), np.array([98, 1, 1])), [1, 2])
    np.testing.assert_array_equal(split(np.array([1.0, 2.0, 3.0]), np.array([1, 1, 98])), [2])


def test_equal_magnitudes_give_the_largest_hard_group():
    np.testing.assert_array_equal(split(np.full(8, 0.1), np.full(8, 3)), np.arange(2, 8))


def test_non_finite_magnitudes_take_no_part():
    magnitudes = np.concatenate([EXAMPLE, [np.nan, np.inf, -np.inf]])
    np.testing.assert_array_equal(split(magnitudes, np.concatenate([SIZES, [10**6] * 3])), [0, 4, 2])


def test_groups_that_lie_far_apart_are_told_apart_exactly():
    magnitudes = np.array([0.0, 1e-3, 2e-3, 1e8, 1e8 + 1, 1e8 + 2])
    np.testing.assert_array_equal(split(magnitudes, np.ones(6, dtype=int)), [3, 4, 5])


@pytest.mark.parametrize("scale", [1e-189, 1e-320, 1e190])
def test_scale_does_not_matter(scale):
    magnitudes = scale * np.array([5.0, 1.0, 500.0, 520.0])
    np.testing.assert_array_equal(split(magnitudes, np.ones(4, dtype=int)), [2, 3])
    np.testing.assert_array_equal(split(np.array([1e-239, 1e-263, 1e-189]), np.full(3, 7)), [2])


clients = st.lists(
    st.tuples(
        st.one_of(st.integers(0, 4).map(lambda tenths: tenths / 10), st.floats(0, 1e3), st.just(np.nan)),
        st.one_of(st.just(7), st.integers(1, 1000)),
    ),
    max_size=24,
)


@settings(max_examples=300, deadline=None)
@given(clients, st.sampled_from(RANGES), st.sampled_from(["count", "samples"]))
def test_equals_the_definition(pairs, quartiles, outer_weights):
    magnitudes = np.array([u for u, _ in pairs], dtype=float)
    sizes = np.array([n for _, n in pairs], dtype=np.int64)
    expected = exact_split(magnitudes, sizes, quartiles, outer_weights)
    np.testing.assert_array_equal(split(magnitudes, sizes, quartiles, outer_weights=outer_weights), expected)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=30), st.sampled_from(RANGES))
def test_equals_the_definition_on_ties(levels, quartiles):
    magnitudes, sizes = np.array(levels) / 3, np.full(len(levels), 50)
    expected = exact_split(magnitudes, sizes, quartiles, "count")
    np.testing.assert_array_equal(split(magnitudes, sizes, quartiles), expected)


def test_two_trainings_of_the_worked_example(federation):
    magnitudes = [0.1, 0.2, 0.3, 0.4, 1, 1.1, 1.2, 1.3, 3, 3.2, 3.4, 3.6]
    fed = federation(12, sizes=[50] * 12, script={"final_layer_norm": magnitudes})
    trained = [train.clients.tolist() for train in fed.play(Terraform(clients_per_round=12)).trains]
    assert trained == [list(range(12)), [8, 9, 10, 11]]


def test_five_equal_clients_train_once_as_with_random_selection(federation):
    fed = federation(50, sizes=[30] * 50)
    assert all(len(played.trains) == 1 for played in fed.run(Terraform(clients_per_round=5), 10))


def test_at_most_t_trainings(federation):
    fed = federation(64, sizes=[30] * 64)
    played = fed.play(Terraform(clients_per_round=64, min_clients=1, max_iterations=3))
    assert len(played.trains) == 3
    assert all(set(b.clients) < set(a.clients) for a, b in itertools.pairwise(played.trains))


def test_one_client_that_answers_is_not_trained_for_ever(federation):
    played = federation(8).play(Terraform(clients_per_round=8, min_clients=1), drop=range(7))
    assert len(played.trains) == 1


@pytest.mark.parametrize(
    ("signal", "reported"),
    [
        ("gradient", "final_layer_norm"),
        ("loss", "train_loss"),
        ("bias", "final_bias_norm"),
        ("weight", "final_weight_norm"),
    ],
)
def test_signals(federation, signal, reported):
    selector = Terraform(clients_per_round=8, signal=signal)
    assert [s.name for s in selector.needs()] == [reported]
    played = federation(8, sizes=[9] * 8, script={reported: np.arange(8.0)}).play(selector)
    assert played.trains[1].clients.tolist() == [4, 5, 6, 7]


def test_an_update_with_a_broken_loss_is_not_used(federation):
    selector = Terraform(clients_per_round=8, signal="loss")
    played = federation(8).play(selector, nan={"train_loss": [2]})
    assert played.used[0].tolist() == [0, 1, 3, 4, 5, 6, 7]
    assert all(2 not in train.clients for train in played.trains[1:])


@pytest.mark.parametrize("options", [{}, {"signal": "loss", "outer_weights": "samples", "quartiles": (0.0, 1.0)}])
def test_contract(keeps_contract, options):
    keeps_contract(lambda: Terraform(clients_per_round=8, **options), 8)


@pytest.mark.parametrize(
    "options",
    [
        {"clients_per_round": 13},
        {"min_clients": 0},
        {"max_iterations": 0},
        {"quartiles": (0.75, 0.25)},
        {"quartiles": (0.0, 1.5)},
    ],
)
def test_refuses_bad_options(federation, options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        Terraform(**({"clients_per_round": 4} | options)).check(federation(12).population)


@pytest.mark.bench
def test_a_million_magnitudes_in_a_second():
    rng = np.random.default_rng(0)
    magnitudes, sizes = rng.random(1_000_000), rng.integers(1, 1000, 1_000_000)
    start = time.perf_counter()
    split(magnitudes, sizes)
    assert time.perf_counter() - start < 1
