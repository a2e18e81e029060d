"""Blobs of the store: exact and compact."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from muster.results.store.codec import (
    pack_accuracies,
    pack_ids,
    pack_values,
    pack_weights,
    unpack_accuracies,
    unpack_ids,
    unpack_values,
    unpack_weights,
)


@given(st.lists(st.integers(0, 2**62)))
@settings(max_examples=60, deadline=None)
def test_ids_come_back(ids):
    assert unpack_ids(pack_ids(ids)).tolist() == ids


def test_ids_are_small():
    assert len(pack_ids(list(range(0, 10_000, 100)))) == 101
    assert len(pack_ids([])) == 1


@given(st.lists(st.floats(allow_nan=False)))
@settings(max_examples=40, deadline=None)
def test_weights_are_exact(weights):
    assert unpack_weights(pack_weights(weights)) == weights


@given(hnp.arrays(np.float32, hnp.array_shapes(min_dims=1, max_dims=2, min_side=1, max_side=5)))
@settings(max_examples=40, deadline=None)
def test_values_keep_their_shape(values):
    np.testing.assert_array_equal(unpack_values(pack_values(values)), values)
    assert unpack_values(pack_values(values)).shape == values.shape


@given(hnp.arrays(np.float32, st.integers(0, 300), elements=st.sampled_from([0.0, 0.25, 0.5, 1.0, np.nan])))
@settings(max_examples=40, deadline=None)
def test_accuracies_come_back_and_compress(values):
    np.testing.assert_array_equal(unpack_accuracies(pack_accuracies(values)), values)
    assert len(pack_accuracies(values)) <= 2 + 4 * len(values)
