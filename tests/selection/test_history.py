"""What the server remembers about clients."""

from __future__ import annotations

import numpy as np
import pytest

from muster.selection.history import NEVER, History


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_participation():
    history = History(4)
    history.trained(ids(0, 2), round=0)
    history.trained(ids(2), round=0)
    history.trained(ids(2, 3), round=1)
    assert history.trainings.tolist() == [1, 0, 3, 1]
    assert history.rounds.tolist() == [1, 0, 2, 1]
    assert history.last_round.tolist() == [0, NEVER, 1, 1]


def test_last_reports_keep_the_last_finite_value():
    history = History(3)
    assert np.isnan(history.last("loss")).all()
    history.reported("loss", ids(0, 1), np.array([1.0, 2.0]))
    history.reported("loss", ids(0, 2), np.array([np.nan, 3.0]))
    assert history.last("loss").tolist() == [1.0, 2.0, 3.0]


def test_wide_signals_are_left_to_the_methods_that_need_them():
    history = History(2)
    history.reported("update", ids(0), np.ones((1, 100)))
    assert history.state_dict()["signals"] == {}


def test_clients_that_join_have_never_taken_part():
    history = History(1)
    history.trained(ids(0), round=3)
    history.reported("loss", ids(0), np.array([1.0]))
    history.grow(3)
    assert history.last_round.tolist() == [3, NEVER, NEVER]
    assert np.isnan(history.last("loss")).tolist() == [False, True, True]


def test_failures_are_counted_and_views_cannot_be_changed():
    history = History(2)
    history.failed(ids(1, 1))
    assert history.failures.tolist() == [0, 2]
    for view in (history.trainings, history.rounds, history.last_round, history.failures, history.last("x")):
        if not np.isnan(view).any():
            with pytest.raises(ValueError, match="read-only"):
                view[0] = 9


def test_restored_state_is_the_same():
    history, copy = History(3), History(3)
    history.trained(ids(1), round=5)
    history.reported("loss", ids(1), np.array([0.5]))
    copy.load_state_dict(history.state_dict())
    assert copy.last_round.tolist() == history.last_round.tolist()
    assert np.array_equal(copy.last("loss"), history.last("loss"), equal_nan=True)


def test_a_snapshot_stays_as_it_is_and_may_go_its_own_way():
    history = History(3)
    history.trained(ids(1), round=0)
    history.reported("loss", ids(1), np.array([0.5]))
    before = history.snapshot()
    history.trained(ids(1, 2), round=1)
    history.reported("loss", ids(0), np.array([0.1]))
    history.failed(ids(0))
    before.trained(ids(0), round=7)
    assert before.last_round.tolist() == [7, 0, NEVER]
    assert before.failures.tolist() == [0, 0, 0]
    assert np.isnan(before.last("loss")).tolist() == [True, False, True]
    assert history.last_round.tolist() == [NEVER, 1, 1]
    assert history.last("loss")[:2].tolist() == [0.1, 0.5]


def test_a_history_that_was_kept_whole_is_still_read():
    counts = np.array([0, 2, 1])
    values = dict.fromkeys(("trainings", "rounds", "last_round", "failures"), counts)
    history = History(1)
    history.load_state_dict(values | {"signals": {"loss": np.array([np.nan, 0.5, 1.0])}})
    assert history.trainings.tolist() == [0, 2, 1]
    assert np.isnan(history.last("loss")).tolist() == [True, False, False]
