"""The memory of wide vectors."""

import numpy as np

from muster.selection import _vectors
from muster.signals.base import Replies


def replies(clients, rows):
    return Replies(np.array(clients, dtype=np.int64), {"x": np.array(rows, dtype=float)})


def test_later_reports_replace_earlier_ones_and_strangers_are_zero():
    memory = _vectors.nothing()
    _vectors.remember(memory, replies([7, 2], [[1, 2], [3, 4]]), "x")
    _vectors.remember(memory, replies([5, 7], [[5, 6], [7, 8]]), "x")
    assert memory["clients"].tolist() == [2, 5, 7]
    assert _vectors.recall(memory, np.array([7, 0, 2])).tolist() == [[7, 8], [0, 0], [3, 4]]
    assert _vectors.knows(memory, np.array([7, 0, 2])).tolist() == [True, False, True]


def test_rows_that_are_not_numbers_are_left_out():
    memory = _vectors.nothing()
    _vectors.remember(memory, replies([0, 1], [[1, 2], [3, 4]]), "x")
    _vectors.remember(memory, replies([0, 3], [[np.nan, 2], [np.inf, 1]]), "x")
    assert memory["clients"].tolist() == [0, 1]
    assert memory["rows"].tolist() == [[1, 2], [3, 4]]


def test_first_reports_can_be_kept():
    memory = _vectors.nothing()
    _vectors.remember(memory, replies([1], [[1, 2]]), "x", keep_first=True)
    _vectors.remember(memory, replies([1, 4], [[9, 9], [3, 4]]), "x", keep_first=True)
    assert memory["rows"].tolist() == [[1, 2], [3, 4]]


def test_signals_of_one_number_and_no_answers_at_all():
    memory = _vectors.nothing()
    _vectors.remember(memory, replies([], []), "x")
    assert _vectors.recall(memory, np.arange(3)).shape == (3, 0)
    _vectors.remember(memory, replies([1], [4.0]), "x")
    assert _vectors.recall(memory, np.arange(3)).tolist() == [[0], [4], [0]]
