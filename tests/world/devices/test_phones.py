"""Real phones: the shipped table, who gets what, and how long it takes them."""

import numpy as np
import pytest

from muster.core.errors import ConfigError
from muster.core.randomness import generator
from muster.world.devices import device_models, from_config, phones
from muster.world.devices.phones import REFERENCE_FLOPS, Drawn, Phones, tables


def draw(clients=1000, seed=0, flops=1e8, **options):
    return from_config({"method": "phones"} | options, clients, seed, lambda: flops)


def test_the_shipped_tables():
    known = tables()
    assert len(known.phones) == len(known.milliseconds) == 952
    assert known.networks.shape == (19, 4)
    assert (known.milliseconds > 0).all()
    assert (known.networks > 0).all()


def test_a_phone_that_needs_the_reference_time_for_the_reference_work():
    known = tables()
    fast = known.phones.index("Xiaomi Redmi K60 Pro")
    devices = draw(3, flops=3 * REFERENCE_FLOPS, only=["Xiaomi Redmi K60 Pro"])
    seconds = devices.times(np.array([1]), 10, 0, 0)[0]
    # Ten samples that cost three reference passes each, forward and backward.
    np.testing.assert_allclose(seconds, [0, 10 * 3 * known.milliseconds[fast] / 1000, 0])


def test_a_larger_model_takes_longer_and_a_larger_message_too():
    who = np.arange(50)
    small = draw(50, flops=1e8).times(who, 10, 1e6, 1e6)
    large = draw(50, flops=5e8).times(who, 10, 3e6, 2e6)
    np.testing.assert_allclose(large, small * [3, 5, 2])


def test_declared_costs_need_no_counting():
    def count():
        raise AssertionError("counted")

    devices = from_config({"method": "phones", "flops_per_sample": 1e8}, 5, 0, count)
    np.testing.assert_array_equal(devices.speed[np.arange(5)], draw(5).speed[np.arange(5)])


def test_every_client_draws_from_its_own_stream():
    phone, network = Drawn(200, 4, 952, word=0).all, Drawn(200, 4, 19, word=1).all
    for client in (0, 17, 199):
        own = generator(4, "devices", client).bit_generator.seed_seq.generate_state(4, np.uint64)
        assert phone[client] == int(own[0]) * 952 >> 64
        assert network[client] == int(own[1]) * 19 >> 64
    np.testing.assert_array_equal(Drawn(50, 4, 952, word=0).all, phone[:50])
    assert (Drawn(200, 5, 952, word=0).all != phone).any()


def test_of_very_many_clients_only_those_are_drawn_that_are_looked_at(monkeypatch):
    monkeypatch.setattr(phones, "MANY", 100)
    few, many = np.array([3, 999, 17]), np.arange(400)
    for word, kinds in ((0, 952), (1, 19)):
        drawn, whole = Drawn(1000, 4, kinds, word), Drawn(1000, 4, kinds, word).all
        before = drawn[few]
        assert "all" not in vars(drawn)
        np.testing.assert_array_equal(drawn[many], whole[many])
        assert "all" in vars(drawn)
        for found in (before, drawn[few]):
            np.testing.assert_array_equal(found, whole[few])
            assert found.dtype == whole.dtype


def test_phones_and_connections_are_equally_likely_and_independent():
    phone, network = Drawn(100_000, 0, 952, word=0).all, Drawn(100_000, 0, 19, word=1).all
    assert len(np.unique(phone)) == 952
    counts = np.bincount(network, minlength=19)
    assert abs(counts / 100_000 - 1 / 19).max() < 0.004  # more than five standard deviations
    assert abs(np.corrcoef(phone, network)[0, 1]) < 0.02


def test_three_bytes_a_client():
    devices = draw(10_000)
    assert devices.down.kinds is devices.up.kinds
    assert devices.speed.kinds.all.nbytes + devices.down.kinds.all.nbytes == 30_000
    assert len(devices) == 10_000


def test_jitter_belongs_to_round_exchange_and_client():
    devices, who = draw(5000, jitter=0.3), np.arange(5000)
    steady = devices.times(who, 10, 1e6, 1e6)
    first = devices.times(who, 10, 1e6, 1e6, exchange=(2, 1))
    np.testing.assert_array_equal(devices.times(who[40:60], 10, 1e6, 1e6, exchange=(2, 1)), first[40:60])
    assert (devices.times(who, 10, 1e6, 1e6, exchange=(2, 2))[:, 1] != first[:, 1]).all()
    np.testing.assert_array_equal(first[:, [0, 2]], steady[:, [0, 2]])
    logarithms = np.log(first[:, 1] / steady[:, 1])
    assert logarithms.std() == pytest.approx(0.3, rel=0.05)
    assert abs(np.median(logarithms)) < 0.03


def test_varying_connections_have_the_measured_mean_and_spread():
    devices = draw(19, connection="varying")
    mean, spread = tables().networks[devices.down.kinds[np.array([0])][0], :2]
    speeds = np.array(
        [1e6 / devices.times(np.array([0]), 1, 1e6, 1e6, exchange=(r, 0))[0, 0] for r in range(4000)]
    )
    assert speeds.mean() / 125 == pytest.approx(mean, rel=0.05)
    assert speeds.std() / 125 == pytest.approx(spread, rel=0.1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"only": ["Samsung Galaxy S32"]}, "unknown phone 'Samsung Galaxy S32'.*\n.*Samsung Galaxy S"),
        ({"jitter": -1}, "devices.jitter"),
        ({"reference_flops": 0}, "devices.reference_flops"),
        ({"flops_per_sample": float("nan")}, "devices.flops_per_sample"),
        ({"connection": "wobbly"}, "devices.connection"),
    ],
)
def test_mistakes_are_named(options, words):
    with pytest.raises(ConfigError, match=words):
        draw(3, **options)


def test_an_unknown_cost_is_asked_for():
    with pytest.raises(ConfigError, match="flops_per_sample"):
        from_config({"method": "phones"}, 3, 0)


def test_names():
    assert device_models.names() == ["lognormal", "phones", "trace"]
    assert isinstance(device_models.build("phones", {}), Phones)
    with pytest.raises(ConfigError, match="unknown device model 'fones'"):
        from_config({"method": "fones"}, 3, 0)
    with pytest.raises(ConfigError, match="two models"):
        from_config({"method": "phones", "model": "lognormal"}, 3, 0)


@pytest.mark.bench
def test_twenty_million_clients():
    devices = draw(20_000_000)
    assert len(devices) == 20_000_000
