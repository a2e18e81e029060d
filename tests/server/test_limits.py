"""Bounds on what clients state: sample counts and numbers that rank them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import muster
from muster.aggregation.fedavg import FedAvg
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.engine.base import Failed
from muster.engine.trial import TrialEngine
from muster.engine.wrapped import WrappedEngine
from muster.selection.base import Plan, Selector, Train, View
from muster.selection.random import RandomSelection
from muster.server.limits import ClientLimits, bounded
from muster.server.loop import Server
from muster.signals.base import Replies
from muster.signals.labels import LabelHistogram
from muster.signals.losses import Loss
from muster.updates.table import Updates

SIZES = np.array([100, 120, 10**9, 80, 90, 110])


def test_counts_are_bounded_by_a_number_and_by_a_multiple_of_the_median():
    assert ClientLimits().counted(SIZES) is SIZES
    assert ClientLimits(max_samples=110).counted(SIZES).tolist() == [100, 110, 110, 80, 90, 110]
    assert ClientLimits(max_samples_over_median=2).counted(SIZES).tolist() == [100, 120, 210, 80, 90, 110]
    both = ClientLimits(max_samples=200, max_samples_over_median=2)
    assert both.counted(SIZES).max() == 200
    assert len(both.counted(SIZES[:0])) == 0
    assert ClientLimits(max_samples_over_median=1).counted(np.array([1])).tolist() == [1]


def test_a_multiple_of_a_median_below_zero_is_not_below_all_others():
    """A loss of one's own may be negative: as far above its median as above the opposite."""
    assert bounded(np.array([-3.0, -2.0, -1.0, 1e9]), None, 3.0).tolist() == [-3.0, -2.0, -1.0, 1.5]


@pytest.mark.parametrize(
    ("section", "key"),
    [
        ({"max_samples": 0}, "max_samples"),
        ({"max_samples_over_median": 0.5}, "max_samples_over_median"),
        ({"signal_quantile": 1.0}, "signal_quantile"),
        ({"signal_over_median": float("inf")}, "signal_over_median"),
        ({"max_sample": 3}, "max_samples"),
    ],
)
def test_mistakes_are_named(tiny, section, key):
    with pytest.raises(ConfigError, match=key):
        muster.run(tiny(limits=section), workers=0)


class Sees(Selector):
    """Notes which sizes it is shown."""

    def round(self, fed: View) -> Plan:
        fed.notes["sizes"] = fed.sizes.copy()
        yield Train(fed.available)


def test_the_bounded_count_is_what_selection_and_aggregation_see_and_it_is_recorded():
    engine, limits = TrialEngine(len(SIZES), sizes=SIZES), ClientLimits(max_samples_over_median=2)
    result = Server(Sees(), FedAvg(), engine, limits=limits).run(2)
    counted = limits.counted(SIZES)
    for record in result.records:
        assert record.notes["sizes"] == counted.tolist()
        np.testing.assert_allclose(record.trainings[0].weights, counted / counted.sum())
        assert record.events == ["client 2 states 1,000,000,000 samples and counts as 210"]


def test_without_limits_the_liar_has_all_the_weight():
    result = Server(RandomSelection(clients_per_round=6), FedAvg(), TrialEngine(6, sizes=SIZES)).run(1)
    assert result.records[0].trainings[0].weights[2] > 0.999999


def test_limits_that_bind_nobody_leave_the_same_bits_and_an_empty_section_the_same_fingerprint(tiny):
    free, loose = tiny(), tiny(limits={"max_samples": 10**6})
    assert np.array_equal(muster.run(free, workers=0).parameters, muster.run(loose, workers=0).parameters)
    assert free.fingerprint == tiny(limits={}).fingerprint != loose.fingerprint


class Restating(WrappedEngine):
    """Client 2 states a huge count while its answer is under way."""

    later = False

    @property
    def population(self) -> Population:
        known = self.inner.population
        return replace(known, sizes=SIZES) if self.later else known

    def collect(self) -> Iterator[Updates | Failed]:
        for part in self.inner.collect():
            self.later = True
            yield part
        self.later = False


def test_a_count_that_is_stated_after_the_order_does_not_weigh_its_answer():
    honest = np.array([100, 120, 100, 80, 90, 110])
    engine = Restating(TrialEngine(len(SIZES), sizes=honest))
    record = Server(RandomSelection(clients_per_round=6), FedAvg(), engine).run(1).records[0]
    np.testing.assert_allclose(record.trainings[0].weights, honest / honest.sum())


def test_the_ends_of_every_range_are_allowed_or_not_as_the_message_says():
    for allowed in (
        {"max_samples": 1},
        {"max_samples_over_median": 1.0},
        {"signal_over_median": 1.0},
        {"signal_quantile": 0.001},
        {"signal_quantile": 0.999},
    ):
        ClientLimits(**allowed).check()
    for refused in (
        {"max_samples_over_median": 0.999},
        {"max_samples_over_median": float("inf")},
        {"max_samples_over_median": float("nan")},
        {"signal_over_median": 0.999},
        {"signal_quantile": 0.0},
        {"signal_quantile": float("nan")},
    ):
        with pytest.raises(ConfigError, match=f"limits.{next(iter(refused))}"):
            ClientLimits(**refused).check()


def test_nobody_counts_as_nobody():
    """A median of one half would take away every sample."""
    assert ClientLimits(max_samples_over_median=1).counted(np.array([0, 1])).tolist() == [0, 1]
    assert ClientLimits(max_samples_over_median=2.5).counted(np.array([3, 3, 9])).tolist() == [3, 3, 7]


def test_only_numbers_that_rank_clients_are_brought_down():
    said = Replies(np.arange(4), {"loss": np.array([1.0, 2, 3, 99]), "label_histogram": np.array([1.0, 2, 3, 99])})
    signals = (Loss(), LabelHistogram())
    assert ClientLimits().believed(said, signals) is said
    for limits, largest in ((ClientLimits(signal_quantile=0.8), 3.0), (ClientLimits(signal_over_median=2), 5.0)):
        believed = limits.believed(said, signals)
        assert believed["loss"].tolist() == [1, 2, 3, largest]
        assert believed["label_histogram"].tolist() == [1, 2, 3, 99]
        assert believed.clients.tolist() == [0, 1, 2, 3]


def test_a_median_of_zero_lets_nobody_rank_above_it():
    assert bounded(np.array([0.0, 0.0, 5.0]), None, 3.0).tolist() == [0.0, 0.0, 0.0]
