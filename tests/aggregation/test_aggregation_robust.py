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


@pytest.mark.parametrize(
    ("method", "resists"),
    [
        *((method, True) for method in ("median", "trimmed-mean", "bulyan", "sign-vote", "norm-bounding")),
        *((method, False) for method in ("krum", "multi-krum", "geometric-median")),
        *((method, False) for method in ("centred-clipping", "dnc", "fltrust")),
    ],
)
def test_who_resists_absurd_running_statistics_beside_ordinary_weights(cohort, layout, method, resists) -> None:
    """As SECURITY.md says: distances are between trainable parameters, and statistics are averaged."""
    rng = np.random.default_rng(0)
    movements = (1 + rng.uniform(-0.5, 0.5, size=(12, 6))).astype(np.float32)
    movements[:2, :4], movements[:2, 4:] = 1.0, -1e9
    aggregator = aggregators.build(method, {"attackers": 2} if method in ("krum", "bulyan", "dnc") else {})
    aggregator.trust(np.ones(6, dtype=np.float32))
    aggregator.draw_from(rng)
    origin = np.zeros(6, dtype=np.float32)
    result = aggregator.aggregate(origin, cohort(movements), layout([4], buffers=2)).parameters
    assert (result[4:].min() > -1) == resists
    assert np.abs(result[:4]).max() < 3


def test_the_plain_mean_does_not(advance) -> None:
    movements = np.ones((20, 3), dtype=np.float32)
    movements[:4] = 1e6
    assert advance(aggregators.build("fedavg", {}), np.zeros(3), movements).parameters.min() > 1000


def test_vectors_that_are_not_numbers_do_not_reach_an_aggregator(layout) -> None:
    spec = layout([3])
    for poison in (np.nan, np.inf, -np.inf):
        assert Guard().objections(np.array([[0, poison, 1]], dtype=np.float32), spec) == {0: "non-finite values"}
