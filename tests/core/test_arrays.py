"""Small helpers for arrays of ids."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from muster.core.arrays import among

IDS = st.lists(st.integers(0, 40), max_size=12)


@given(ids=IDS, others=IDS)
def test_among_says_what_isin_says(ids, others):
    ascending = np.unique(np.array(others, dtype=np.int64))
    wanted = np.isin(np.array(ids, dtype=np.int64), ascending)
    found = among(np.array(ids, dtype=np.int64), ascending)
    assert found.dtype == np.bool_
    assert found.tolist() == wanted.tolist()
