"""dirichlet: both directions, balancing, minimum sizes, and clients by the million."""

import resource
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core.errors import ConfigError, DataError
from muster.data.partition.dirichlet import Dirichlet, dirichlet_over_clients, fill


@settings(max_examples=40, deadline=None)
@given(
    labels=st.lists(st.integers(0, 4), min_size=60, max_size=200),
    clients=st.integers(1, 6),
    alpha=st.sampled_from([1e-3, 0.1, 0.5, 10.0, np.inf]),
    over=st.sampled_from(["clients", "classes"]),
    balanced=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_sample_has_one_client(
    *, labels, clients, alpha, over, balanced, seed, make_dataset, check_partition, check_matching_test
):
    dataset = make_dataset(labels, np.arange(53) % 5, 5)
    scheme = Dirichlet(clients, alpha, over, balanced, min_size=3, on_small="fill")
    first, second = (scheme.divide(dataset, np.random.default_rng(seed)) for _ in range(2))
    fed = check_partition(first, dataset, clients)
    check_matching_test(fed)
    assert fed.sizes.min() >= 3
    np.testing.assert_array_equal(first.train.samples, second.train.samples)
    np.testing.assert_array_equal(first.test.samples, second.test.samples)
    if over == "classes":
        assert np.ptp(fed.sizes) <= 1


def test_seeds_give_different_partitions(make_dataset):
    dataset = make_dataset(np.repeat(np.arange(10), 50))
    one, other = (Dirichlet(5).divide(dataset, np.random.default_rng(seed)) for seed in (0, 1))
    assert one.train.sizes.tolist() != other.train.sizes.tolist()


def test_proportions_over_clients_have_the_dirichlet_moments():
    # Without balancing, a client's share of a class has mean 1/N and variance (1/N)(1 − 1/N)/(Nα + 1).
    labels = np.repeat(np.arange(200), 1000)
    index = dirichlet_over_clients(labels, 200, 4, 0.5, np.random.default_rng(0), balanced=False)
    shares = np.stack([np.bincount(labels[index[k]], minlength=200) for k in range(4)]) / 1000
    assert shares.mean() == pytest.approx(0.25)
    assert shares.var() == pytest.approx(0.25 * 0.75 / 3, rel=0.1)


def test_mixtures_over_classes_have_the_dirichlet_moments(make_dataset, check_partition):
    # Before any class runs out q ~ Dir(α/C), so Var q_c = (1/C)(1 − 1/C)/(α + 1), and binomial noise comes on top.
    dataset = make_dataset(np.repeat(np.arange(4), 100_000))
    partition = Dirichlet(1000, 2.0, "classes").divide(dataset, np.random.default_rng(0))
    fed = check_partition(partition, dataset, 1000)
    mixtures = fed.label_histograms[:500] / 400
    expected = 0.25 * 0.75 / 3
    assert mixtures.var(axis=0).mean() == pytest.approx(expected + (0.25 * 0.75 - expected) / 400, rel=0.1)


def test_infinite_alpha_divides_every_class_equally(make_dataset, check_partition):
    dataset = make_dataset(np.repeat(np.arange(10), 100))
    fed = check_partition(Dirichlet(20, np.inf).divide(dataset, np.random.default_rng(0)), dataset, 20)
    assert (fed.label_histograms == 5).all()


def test_balancing_keeps_full_clients_from_growing():
    labels = np.repeat(np.arange(10), 500)
    spread = {}
    for balanced in (True, False):
        sizes = [
            dirichlet_over_clients(
                labels, 10, 20, 0.1, np.random.default_rng(seed), balanced=balanced, min_size=1, on_small="fill"
            ).sizes.std()
            for seed in range(10)
        ]
        spread[balanced] = np.mean(sizes)
    assert spread[True] < 0.8 * spread[False]


def test_a_client_at_its_equal_share_gets_no_further_class():
    labels = np.repeat([0, 1], 50)
    full = 0
    for seed in range(60):
        index = dirichlet_over_clients(labels, 2, 5, 0.1, np.random.default_rng(seed), min_size=1, on_small="fill")
        counts = np.stack([np.bincount(labels[index[k]], minlength=2) for k in range(5)])
        # A client may lose samples to `fill`, so look well above the equal share of 20.
        full += (counts[:, 0] > 24).sum()
        assert (counts[counts[:, 0] > 24, 1] <= 1).all()
    assert full > 30


def test_fill_moves_only_what_is_missing():
    owners = np.repeat([0, 1, 2], [0, 8, 2])
    filled = fill(owners, np.array([0, 8, 2]), 3, np.random.default_rng(0))
    assert np.bincount(filled).tolist() == [3, 4, 3]
    assert (owners != filled).sum() == 4
    assert (owners[owners != filled] == 1).all()


def test_too_small_clients_are_drawn_again_and_then_reported(make_dataset):
    dataset = make_dataset(np.repeat(np.arange(2), 100))
    with pytest.raises(DataError, match="7 tries") as caught:
        Dirichlet(19, 0.01, min_size=10, max_tries=7).divide(dataset, np.random.default_rng(0))
    assert "on_small" in caught.value.fix


@pytest.mark.parametrize(
    "options",
    [{"clients": 30, "min_size": 10}, {"clients": 5, "alpha": 0.0}, {"clients": 5, "alpha": float("nan")}],
)
def test_impossible_options_are_refused(options, make_dataset):
    with pytest.raises(ConfigError):
        Dirichlet(**options).divide(make_dataset(np.repeat([0, 1], 100)), np.random.default_rng(0))


def test_classes_without_samples_and_without_tests(make_dataset, check_partition):
    dataset = make_dataset(np.repeat([0, 3], 60), classes=6)
    for over in ("clients", "classes"):
        partition = Dirichlet(4, 0.5, over).divide(dataset, np.random.default_rng(0))
        check_partition(partition, dataset, 4)
        assert partition.test is None


@pytest.mark.slow
@pytest.mark.parametrize("balanced", [True, False])
def test_a_million_clients_over_ten_million_labels(balanced):
    labels = np.random.default_rng(0).integers(10, size=10_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    index = dirichlet_over_clients(
        labels, 10, 1_000_000, 0.5, np.random.default_rng(1), balanced=balanced, min_size=1, on_small="fill"
    )
    assert time.perf_counter() - start < 30
    assert index.samples.dtype == np.int32
    assert index.samples.nbytes + index.starts.nbytes < 64 * 2**20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**20  # KiB
    assert index.sizes.min() >= 1
    assert (np.bincount(index.samples, minlength=len(labels)) == 1).all()
