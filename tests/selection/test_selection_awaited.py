"""Who is under way: what the history says of clients whose answers come in a later round."""

import numpy as np

from muster.selection._awaited import heard_of, none_awaited, sent_off, under_way, without
from muster.selection.history import History


def test_who_answers_fails_or_stays_away():
    history = History(8)
    history.trained(np.array([2, 5]), 0)
    history.failed(np.array([5]))
    awaited = sent_off(none_awaited(), np.array([5, 2]), history, np.array([0.5, 0.2]))
    awaited = sent_off(awaited, np.array([1, 7]), history, 9.0)
    assert len(heard_of(awaited, history).awaited) == 4, "what was before they set out is no news"
    history.failed(np.array([2, 7]))
    history.trained(np.array([5, 3]), 1)
    news = heard_of(awaited, history)
    assert (news.answered.tolist(), news.notes.tolist()) == ([5], [0.5])
    assert news.failed.tolist() == [2, 7]
    assert [column.tolist() for column in under_way(news.awaited)] == [[1], [9.0]]
    assert news.answered.dtype == news.failed.dtype == np.int64


def test_who_failed_before_it_answered_has_answered():
    """A question that it left open counts as a failure, the training after it does not."""
    history = History(3)
    awaited = sent_off(none_awaited(), np.array([1]), history)
    history.failed(np.array([1]))
    history.trained(np.array([1]), 0)
    news = heard_of(awaited, history)
    assert news.answered.tolist() == [1]
    assert not len(news.failed)


def test_who_is_idle_without_news_never_set_out():
    history = History(6)
    awaited = sent_off(none_awaited(), np.array([1, 3, 5]), history)
    history.trained(np.array([3]), 0)
    news = heard_of(awaited, history, idle=np.array([2, 3, 5]))
    assert news.answered.tolist() == [3]
    assert under_way(news.awaited)[0].tolist() == [1]
    assert len(heard_of(awaited, History(6), idle=np.zeros(0, dtype=np.int64)).awaited) == 3


def test_who_sets_out_again_is_awaited_once():
    history = History(4)
    awaited = sent_off(none_awaited(), np.array([1, 2]), history, 1.0)
    awaited = sent_off(awaited, np.array([2]), history, 2.0)
    assert [column.tolist() for column in under_way(awaited)] == [[1, 2], [1.0, 2.0]]
    assert under_way(without(awaited, np.array([2, 3])))[0].tolist() == [1]
