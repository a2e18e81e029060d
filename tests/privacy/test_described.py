"""Signals as plain data: what is built again is the same signal with the same noise."""

from __future__ import annotations

import json

import pytest

from muster.core.errors import ConfigError
from muster.privacy.described import described, rebuilt
from muster.privacy.noise import private
from muster.signals.base import Signal, signals

CLASSES = 7
HISTOGRAM = signals.build("label_histogram", {})


@pytest.mark.parametrize(
    "signal",
    [
        HISTOGRAM,
        private(HISTOGRAM, "laplace", 0.5, 0.0, CLASSES),
        private(HISTOGRAM, "gaussian", 2.0, 1e-5, CLASSES),
        private(signals.build("label_entropy", {}), "laplace", 1.0, 0.0, CLASSES),
    ],
    ids=["exact", "laplace", "gaussian", "entropy"],
)
def test_a_signal_comes_back_as_it_was(signal: Signal) -> None:
    travelled = json.loads(json.dumps(described(signal)))
    assert rebuilt(travelled, CLASSES) == signal


def test_a_description_names_the_noise() -> None:
    assert described(HISTOGRAM) == {"name": "label_histogram", "options": {}}
    assert described(private(HISTOGRAM, "gaussian", 2.0, 1e-5, CLASSES)) == {
        "name": "label_histogram",
        "options": {},
        "noise": {"mechanism": "gaussian", "epsilon": 2.0, "delta": 1e-5},
    }


def test_a_description_cannot_lower_the_bound_that_scales_the_noise() -> None:
    entry = described(private(HISTOGRAM, "laplace", 0.5, 0.0, CLASSES))
    entry["noise"]["bound"] = {"l1": 0.0, "l2": 0.0}
    assert rebuilt(entry, CLASSES) == private(HISTOGRAM, "laplace", 0.5, 0.0, CLASSES)


def test_nothing_but_a_registered_signal_can_be_named() -> None:
    with pytest.raises(ConfigError, match=r"os\.system"):
        rebuilt({"name": "os.system", "options": {}}, CLASSES)
