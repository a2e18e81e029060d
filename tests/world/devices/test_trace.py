"""Devices of a trace file."""

import json

import numpy as np
import pytest

from muster.core.errors import DataError
from muster.world.devices import from_config
from muster.world.devices.phones import REFERENCE_FLOPS

ENTRIES = [{"id": i, "ms_per_sample": 10.0 * (i + 1), "kbps": 800.0 * (i + 1)} for i in range(5)]


@pytest.fixture
def trace(tmp_path):
    def write(entries):
        path = tmp_path / "trace.json"
        path.write_text(entries if isinstance(entries, str) else json.dumps(entries))
        return str(path)

    return write


def draw(file, clients, seed=0, flops=REFERENCE_FLOPS, **options):
    return from_config({"method": "trace", "file": file} | options, clients, seed, lambda: flops)


def test_speeds_are_those_of_the_file(trace):
    devices = draw(trace(ENTRIES), 5, flops=2 * REFERENCE_FLOPS)
    times = devices.times(np.arange(5), 1, 1e5, 2e5)
    order = np.argsort(times[:, 1])
    # Twice the reference work: twice the file's milliseconds. 800 kbit/s are 100,000 bytes a second.
    np.testing.assert_allclose(times[order, 1], [0.02, 0.04, 0.06, 0.08, 0.1])
    np.testing.assert_allclose(times[order, 0], 1 / np.arange(1, 6))
    np.testing.assert_allclose(times[order, 2], 2 / np.arange(1, 6))


def test_devices_are_dealt_out_evenly_in_an_order_of_the_seed(trace):
    file = trace(ENTRIES)
    speeds = draw(file, 13).speed[np.arange(13)]
    np.testing.assert_array_equal(speeds[:5], speeds[5:10])
    assert len(set(speeds[:5])) == 5
    assert any((draw(file, 5, seed).speed[np.arange(5)] != speeds[:5]).any() for seed in (1, 2))


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ("", "is empty"),
        ("{", "is not JSON"),
        ("[]", "no devices"),
        ({"1": ENTRIES[0]}, "another layout"),
        ([{**ENTRIES[0], "kbps": -3}], "device 0 .*'kbps' is -3"),
        ([ENTRIES[0], {**ENTRIES[1], "ms_per_sample": 0}], "device 1 .*'ms_per_sample' is 0"),
        ([{"id": 9, "kbps": 3}], "device 9 .*'ms_per_sample' is missing"),
        ('[{"id": 1, "ms_per_sample": NaN, "kbps": 1}]', "not finite"),
    ],
)
def test_bad_files_are_named(trace, entries, words):
    with pytest.raises(DataError, match=words):
        draw(trace(entries), 3)


def test_a_missing_file_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("MUSTER_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"no trace file 'nowhere.json'.*devices/nowhere.json"):
        draw("nowhere.json", 3)


def test_files_are_found_with_the_data(tmp_path, monkeypatch):
    (tmp_path / "devices").mkdir()
    (tmp_path / "devices" / "some.json").write_text(json.dumps(ENTRIES))
    monkeypatch.setenv("MUSTER_DATA", str(tmp_path))
    assert len(draw("some.json", 3)) == 3
