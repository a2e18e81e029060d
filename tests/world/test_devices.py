"""The model of client devices."""

import numpy as np
import pytest

from muster.core.errors import ConfigError
from muster.world.devices import Devices, Lognormal, from_config


def test_times_are_amounts_over_speeds():
    devices = Devices(speed=np.array([10.0, 20.0]), down=np.array([100.0, 50.0]), up=np.array([25.0, 10.0]))
    times = devices.times(np.array([1, 0]), np.array([40, 5]), 200, 100)
    np.testing.assert_allclose(times, [[4.0, 2.0, 10.0], [2.0, 0.5, 4.0]])


def test_the_median_and_spread_are_those_that_were_asked_for():
    devices = Lognormal(samples_per_second=300, compute_spread=0.5).draw(50_000, seed=1)
    assert np.median(devices.speed) == pytest.approx(300, rel=0.02)
    assert np.log(devices.speed).std() == pytest.approx(0.5, rel=0.02)
    assert abs(np.corrcoef(np.log(devices.up), np.log(devices.down))[0, 1]) < 0.02


def test_seeded_and_stable_when_clients_join():
    few, more, other = (Lognormal().draw(n, seed) for n, seed in ((5, 1), (9, 1), (5, 2)))
    np.testing.assert_array_equal(few.speed, more.speed[:5])
    np.testing.assert_array_equal(few.up, more.up[:5])
    assert (few.speed != other.speed).all()


def test_no_spread_means_all_alike():
    devices = from_config({"model": "lognormal", "compute_spread": 0, "samples_per_second": 40}, 4, 0)
    assert devices.speed.tolist() == [40.0] * 4


@pytest.mark.parametrize(
    "options",
    [
        {"model": "magic"},
        {"samples_per_second": 0},
        {"network_spread": -1},
        {"nonsense": 1},
        {"megabytes_up": "x"},
    ],
)
def test_mistakes_are_named(options):
    with pytest.raises(ConfigError):
        from_config(options, 3, 0)
