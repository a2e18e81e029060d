"""Every aggregation method in whole runs: with several selectors, and stopped in the middle."""

from __future__ import annotations

import numpy as np
import pytest

import muster
from muster.aggregation import aggregators
from muster.core.errors import ConfigError
from muster.server.loop import Observer

ALL = aggregators.names()
SELECTORS = {
    "random": {"method": "random", "clients_per_round": 6},
    "terraform": {"method": "terraform", "clients_per_round": 10, "min_clients": 5, "max_iterations": 3},
    "with replacement": {
        "method": "size-weighted",
        "clients_per_round": 8,
        "replace": True,
        "equal_weights": False,
    },
}


class StopAfterOne(Observer):
    def wants_stop(self) -> bool:
        return True


@pytest.fixture
def experiment(tiny):
    """`experiment(aggregation, selector)`: with the local algorithm that the aggregation asks for."""

    def make(method: str, selector: str = "random", **options):
        needed = aggregators.get(method).requires_algorithm  # type: ignore[attr-defined]
        if "krum" in method:
            options["too_few"] = "median"
        if method == "bulyan":
            options["attackers"] = 0
        if method == "sign-vote":  # the step is small on purpose; three rounds are few
            options["server_lr"] = 0.02
        algorithm = {"algorithm": {"method": needed[0]}} if needed else {}
        if aggregators.get(method).needs_root:  # type: ignore[attr-defined]
            algorithm["data"] = {"source": "digits", "validation": 50}
        return tiny(aggregation={"method": method} | options, selection=SELECTORS[selector], **algorithm)

    return make


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize(
    "selector", ["random", *(pytest.param(name, marks=pytest.mark.slow) for name in SELECTORS if name != "random")]
)
def test_three_rounds_on_digits(experiment, method, selector) -> None:
    setup = experiment(method, selector)
    if selector == "with replacement" and not aggregators.get(method).honours_multiplicity:  # type: ignore[attr-defined]
        with pytest.raises(ConfigError, match="count a client twice"):
            muster.run(setup, workers=0)
        return
    result = muster.run(setup, workers=0)
    assert np.isfinite(result.parameters).all()
    for record in result.records:
        for training in record.trainings:
            assert sum(training.weights) == pytest.approx(1)
    assert result.records[-1].metrics["accuracy"] > 0.12


@pytest.mark.parametrize("method", [*ALL, "simprox own_last"])
def test_a_run_that_was_stopped_ends_with_the_same_bits(experiment, tmp_path, method) -> None:
    method, _, prev = method.partition(" ")
    options = {"prev": prev} if prev else {}
    through = muster.run(experiment(method, **options), workers=0)
    stopped = muster.run(
        experiment(method, **options), workers=0, out=tmp_path / "run", observers=[StopAfterOne()]
    )
    assert len(stopped.records) == 1
    resumed = muster.run(experiment(method, **options), workers=0, out=tmp_path / "run", resume=True)
    np.testing.assert_array_equal(resumed.parameters, through.parameters)
    assert [r.trainings[0].weights for r in resumed.records] == [r.trainings[0].weights for r in through.records]


def test_moon_resumes_with_its_previous_models(tiny, tmp_path) -> None:
    def setup():
        return tiny(algorithm={"method": "moon"}, selection={"method": "random", "clients_per_round": 12})

    through = muster.run(setup(), workers=0)
    muster.run(setup(), workers=0, out=tmp_path / "run", observers=[StopAfterOne()])
    resumed = muster.run(setup(), workers=0, out=tmp_path / "run", resume=True)
    np.testing.assert_array_equal(resumed.parameters, through.parameters)


@pytest.mark.parametrize("method", ["scaffold", "feddyn"])
def test_halves_of_a_method_are_refused_before_round_one(tiny, method) -> None:
    with pytest.raises(ConfigError, match=method):
        muster.run(tiny(aggregation={"method": method}), workers=0)
    with pytest.raises(ConfigError, match=method):
        muster.run(tiny(algorithm={"method": method}), workers=0)


def test_long_movements_are_clipped_in_any_method(tiny) -> None:
    free, clipped = (
        muster.run(tiny(rounds=1, aggregation={"method": "simprox", **more}), workers=0)
        for more in ({}, {"clip_norm": 1e-3})
    )
    start = muster.run(tiny(rounds=1, aggregation={"method": "simprox", "server_lr": 1e-12}), workers=0).parameters
    assert np.linalg.norm(free.parameters - start) > 0.1
    assert np.linalg.norm(clipped.parameters - start) <= 1.001e-3
