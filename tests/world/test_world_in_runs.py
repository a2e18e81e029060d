"""Devices and availability as parts of a run."""

import json
from itertools import pairwise

import pytest

from muster.experiment import run


def seconds(tiny, **changes):
    result = run(tiny(rounds=2, **changes), workers=0)
    return result.ledger.total().virtual_seconds


def test_a_larger_model_takes_longer_on_a_phone(tiny):
    phones = {"method": "phones"}
    small, large = (seconds(tiny, devices=phones, model={"name": "mlp", "hidden": [n]}) for n in (16, 256))
    assert large > 4 * small


def test_without_flops_only_the_message_grows(tiny):
    plain = {"method": "lognormal", "megabytes_down": 1e9, "megabytes_up": 1e9}
    small, large = (seconds(tiny, devices=plain, model={"name": "mlp", "hidden": [n]}) for n in (16, 256))
    assert large == pytest.approx(small, rel=1e-3)


def test_the_older_name_means_the_same(tiny):
    assert seconds(tiny, devices={"model": "lognormal"}) == seconds(tiny, devices={"method": "lognormal"})


def test_devices_of_a_trace(tiny, tmp_path):
    file = tmp_path / "trace.json"
    file.write_text(json.dumps([{"id": 1, "ms_per_sample": 50.0, "kbps": 1000.0}]))
    devices = {"method": "trace", "file": str(file)}
    fast = seconds(tiny, devices=devices)
    file.write_text(json.dumps([{"id": 1, "ms_per_sample": 50.0, "kbps": 500.0}]))
    assert fast < seconds(tiny, devices=devices) < 2 * fast


def test_availability_by_time_moves_with_the_clock(tiny):
    result = run(tiny(availability={"method": "rhythm"}, devices={"method": "phones"}), workers=0)
    assert all(later.began == earlier.ended for earlier, later in pairwise(result.records))


@pytest.mark.parametrize(
    "devices", [{"method": "phones", "connection": "varying"}, {"method": "lognormal", "jitter": 0.1}]
)
def test_durations_that_vary_differ_from_round_to_round(tiny, devices):
    result = run(tiny(devices=devices, selection={"clients_per_round": 12}, rounds=3), workers=0)
    assert len({record.ended - record.began for record in result.records}) == 3
