"""What the robust methods promise: a fifth of the clients may send anything."""

import numpy as np
import pytest

from muster.aggregation import aggregators
from muster.updates.guard import Guard

#: Norm bounding limits how far attackers pull, but does not keep the result among the honest clients.
RANGE_KEEPING = ["median", "trimmed-mean", "krum", "multi-krum", "geometric-median"]

ATTACKS = {
    "far away": lambda honest, rng: np.full(honest.shape[1], 1e6),
    "beyond float32 squares": lambda honest, rng: np.full(honest.shape[1], 1e30),
    "flipped and scaled": lambda honest, rng: -50 * honest.mean(axis=0),
    "noise": lambda honest, rng: rng.normal(scale=100, size=honest.shape[1]),
    "zero": lambda honest, rng: np.zeros(honest.shape[1]),
}


@pytest.mark.parametrize("method", RANGE_KEEPING)
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("columns", [5, 300_000])
def test_result_stays_among_the_honest(advance, method, attack, columns) -> None:
    rng = np.random.default_rng(0)
    honest = (1 + rng.uniform(-0.5, 0.5, size=(16, columns))).astype(np.float32)
    attackers = np.stack([ATTACKS[attack](honest, rng) for _ in range(4)]).astype(np.float32)
    movements = np.concatenate([honest[:5], attackers, honest[5:]])
    options = {"attackers": 4} if "krum" in method else {}
    result = advance(aggregators.build(method, options), np.zeros(columns), movements).parameters
    slack = 1e-5 if method != "geometric-median" else 0.25
    assert (result >= honest.min(axis=0) - slack).all()
    assert (result <= honest.max(axis=0) + slack).all()
    assert (
        np.linalg.norm(result - honest.mean(axis=0))
        < np.linalg.norm(honest - honest.mean(axis=0), axis=1).max() + 1
    )


#: All robust methods, with options that withstand two of twelve.
ROBUST = {
    "median": {},
    "trimmed-mean": {},
    "bulyan": {"attackers": 2},
    "sign-vote": {},
    "norm-bounding": {},
    "krum": {"attackers": 2},
    "multi-krum": {"attackers": 2},
    "geometric-median": {},
    "centred-clipping": {},
    "dnc": {"attackers": 2},
    "fltrust": {},
}


@pytest.fixture
def with_attackers(cohort, layout):
    """One aggregation of twelve clients, of which the first ones have ordinary weights, better than anybody's, and
    send whatever is given as running statistics and counters."""

    def run(method: str, statistics: float, counter: float, attackers: int = 2) -> np.ndarray:
        rng = np.random.default_rng(0)
        movements = (1 + rng.uniform(-0.5, 0.5, size=(12, 8))).astype(np.float32)
        movements[:, 6:] = 40
        movements[:attackers, :4] = 1.0
        movements[:attackers, 4:6], movements[:attackers, 6:] = statistics, counter
        aggregator = aggregators.build(method, ROBUST.get(method, {}))
        aggregator.trust(np.array([1, 1, 1, 1, 1, 1, 40, 40], dtype=np.float32))
        aggregator.draw_from(rng)
        spec = layout([4], buffers=2, counters=2)
        return aggregator.aggregate(np.zeros(8, dtype=np.float32), cohort(movements), spec).parameters

    return run


@pytest.mark.parametrize("method", ROBUST)
@pytest.mark.parametrize("absurd", [-1e9, 1e30])
def test_absurd_running_statistics_beside_ordinary_weights_gain_nothing(with_attackers, method, absurd) -> None:
    result = with_attackers(method, absurd, counter=2**24)
    assert (np.abs(result[4:6]) <= 2).all()
    np.testing.assert_array_equal(result[6:], 40)
    assert np.abs(result[:4]).max() < 3


def test_a_mean_takes_them_over(with_attackers) -> None:
    """Otherwise the test above would show nothing."""
    assert with_attackers("fedavg", -1e9, counter=40)[4:6].max() < -1e8


def test_fltrust_withstands_a_majority_of_them(with_attackers) -> None:
    result = with_attackers("fltrust", 1e9, counter=2**24, attackers=9)
    np.testing.assert_array_equal(result[4:], [1, 1, 40, 40])


def test_a_client_without_weight_has_no_vote_on_statistics(cohort, layout) -> None:
    movements = np.array([[1, 5, 3], [1, 7, 4], [1, 100, 9], [1, 100, 9], [1, 100, 9]], dtype=np.float32)
    updates = cohort(movements, weights=np.array([1.0, 1.0, 0.0, 0.0, 0.0]))
    origin, spec = np.zeros(3, dtype=np.float32), layout([1], buffers=1, counters=1)
    result = aggregators.build("geometric-median", {}).aggregate(origin, updates, spec).parameters
    assert result.tolist() == [1, 6, 3]


def test_the_plain_mean_does_not(advance) -> None:
    movements = np.ones((20, 3), dtype=np.float32)
    movements[:4] = 1e6
    assert advance(aggregators.build("fedavg", {}), np.zeros(3), movements).parameters.min() > 1000


def test_vectors_that_are_not_numbers_do_not_reach_an_aggregator(layout) -> None:
    spec = layout([3])
    for poison in (np.nan, np.inf, -np.inf):
        assert Guard().objections(np.array([[0, poison, 1]], dtype=np.float32), spec) == {0: "non-finite values"}
