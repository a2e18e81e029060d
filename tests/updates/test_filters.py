"""Filters: what happens to updates on their way, in a stated order, and what is booked of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from muster.core.errors import ConfigError
from muster.core.parameters import ParameterSpec, SpecEntry
from muster.updates.clip import Clip
from muster.updates.filters import Filter, Filtered, Tally, named, passed_through, without
from muster.updates.guard import Guard
from muster.updates.table import Updates

SPEC = ParameterSpec((SpecEntry("weight", (4,), 0, 4),), buffers=(SpecEntry("mean", (2,), 4, 6),))


def no_draws(name):
    raise AssertionError(f"{name} drew")


def through(updates: Updates, *steps: Filter, draws=lambda name: no_draws) -> tuple[Filtered, Tally]:
    tally = Tally()
    return passed_through(tuple(named(steps)), updates, SPEC, draws, tally), tally


def test_clip_shortens_the_trainable_part_only():
    sent = Updates.from_movements([[30, 40, 0, 0, 100, 100], [3, 4, 0, 0, 100, 100], [0, 0, 0, 0, 1, 1]])
    result, tally = through(sent, Clip(10))
    expected = [[6, 8, 0, 0, 100, 100], [3, 4, 0, 0, 100, 100], [0, 0, 0, 0, 1, 1]]
    np.testing.assert_allclose(result.updates.movements, expected)
    assert tally.summary() == {"clip": {"seen": 3, "changed": 1, "refused": 0}}


@given(hnp.arrays(np.float32, (3, 6), elements=st.floats(-1e6, 1e6, width=32)), st.floats(0.01, 100))
@settings(max_examples=60, deadline=None)
def test_clipped_movements_keep_their_direction(movements, norm):
    before = movements[:, :4].astype(np.float64)
    clipped = through(Updates.from_movements(movements.copy()), Clip(norm))[0].updates.movements[:, :4]
    lengths = np.linalg.norm(before, axis=1)
    wanted = before * np.minimum(1, norm / np.maximum(lengths, 1e-300))[:, None]
    np.testing.assert_allclose(clipped, wanted, rtol=1e-5, atol=1e-6 * norm)


def test_a_row_that_one_filter_refuses_is_not_shown_to_the_next():
    movements = np.zeros((3, 6), dtype=np.float32)
    movements[1, 0], movements[2, 0] = np.nan, 50
    result, tally = through(Updates.from_movements(movements, clients=np.array([7, 3, 5])), Guard(), Clip(10))
    assert result.refused == {3: "non-finite values"}
    assert result.updates.clients.tolist() == [7, 5]
    assert tally.summary() == {
        "Guard": {"seen": 3, "changed": 0, "refused": 1},
        "clip": {"seen": 2, "changed": 1, "refused": 0},
    }


def test_a_second_filter_of_a_kind_is_booked_apart_and_nothing_is_booked_for_what_did_nothing():
    _, tally = through(Updates.from_movements([[30, 40, 0, 0, 0, 0]]), Clip(20), Clip(10), Clip(15))
    assert list(tally.summary()) == ["clip", "clip 2"]


def test_draws_come_from_the_clients_own_stream():
    @dataclass(frozen=True)
    class Noise(Filter):
        def apply(self, updates, spec, draws):
            for row, client in enumerate(updates.clients.tolist()):
                updates.movements[row, spec.trainable] += draws(client).normal(size=4)
            return Filtered(updates, changed=len(updates))

    def noisy(clients):
        zeros = np.zeros((len(clients), 6), dtype=np.float32)
        sent = Updates.from_movements(zeros, clients=np.array(clients))
        made = through(sent, Noise(), draws=lambda name: np.random.default_rng)[0]
        return dict(zip(clients, made.updates.movements, strict=True))

    together, apart = noisy([4, 9]), noisy([9]) | noisy([4])
    for client, movement in together.items():
        assert np.array_equal(movement, apart[client])


def test_without_objections_nothing_is_copied():
    sent = Updates.from_movements(np.zeros((2, 6)))
    assert without(sent, {}).updates is sent


@pytest.mark.parametrize("norm", [0.0, -1.0, np.nan])
def test_bad_norms_are_named(norm):
    with pytest.raises(ConfigError, match=f"norm is {norm}"):
        Clip(norm).check(None)
