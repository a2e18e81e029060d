"""Times of modelled devices."""

import dataclasses

import numpy as np
import pytest

from muster.core.errors import ConfigError
from muster.server.testing import FakeFederation
from muster.signals.device import DeviceTime


def test_times_as_modelled(make_client):
    client = make_client(device_times=np.array([0.5, 2.0, 1.0]))
    assert DeviceTime().measure(client).tolist() == [0.5, 2.0, 1.0]


def test_a_run_without_devices_is_refused(make_client):
    population = FakeFederation().population
    assert DeviceTime().unavailable(population) is None
    assert "[devices]" in DeviceTime().unavailable(dataclasses.replace(population, has_devices=False))
    with pytest.raises(ConfigError, match="devices"):
        DeviceTime().measure(make_client())
