"""The door: who is believed, what is said of the others, and how much of it."""

from __future__ import annotations

import numpy as np
import pytest

from muster.engine.trial import TrialEngine
from muster.server.door import BelievableReports, admitted, told
from muster.signals.base import Replies
from muster.signals.labels import LabelHistogram
from muster.signals.losses import Loss, TrainLoss
from muster.signals.updates import FinalLayerNorm
from muster.updates.table import Updates

POPULATION = TrialEngine(10, classes=2).population


def test_who_is_not_believed_is_missing_from_every_column():
    losses, counts = np.array([0.5, -1.0, 2.0, np.nan]), np.array([[1, 2], [3, 4], [5, 6], [-7, 8]])
    replies = Replies(np.array([2, 4, 7, 9]), {"loss": losses, "label_histogram": counts.astype(float)})
    kept, refused = admitted(replies, (Loss(), LabelHistogram()), POPULATION)
    assert kept.clients.tolist() == [2, 7]
    assert kept["loss"].tolist() == [0.5, 2.0]
    assert kept["label_histogram"].tolist() == [[1, 2], [5, 6]]
    # Of two lies the one about the first signal is told.
    assert list(refused) == [4, 9]
    assert refused[4].startswith("its 'loss' is -1,")
    assert refused[9].startswith("its 'loss' is nan,")


def test_who_is_believed_is_not_copied():
    replies = Replies(np.array([1]), {"loss": np.array([0.5])})
    assert admitted(replies, (Loss(),), POPULATION) == (replies, {})
    nobody = Replies(np.array([], dtype=np.int64), {"loss": np.array([])})
    assert admitted(nobody, (Loss(),), POPULATION) == (nobody, {})


def test_too_few_numbers_are_no_answer():
    replies = Replies(np.array([3, 5]), {"label_histogram": np.ones((2, 3))})
    kept, refused = admitted(replies, (LabelHistogram(),), POPULATION)
    assert len(kept) == 0
    assert refused == dict.fromkeys((3, 5), "its 'label_histogram' has 3 numbers, expected 2")


@pytest.mark.parametrize(("count", "lines"), [(0, 0), (1, 1), (8, 8), (9, 1)])
def test_refusals_are_told_one_by_one_until_there_are_too_many(count, lines):
    said = told(dict.fromkeys(range(10, 10 + count), "its 'loss' is inf"))
    assert len(said) == lines
    if count:
        assert "client 10 was not believed: its 'loss' is inf" in said[0]
    if count > lines:
        assert said[0].startswith(f"{count} clients were not believed")


def test_reports_of_a_training_go_through_the_same_door():
    reports = {
        "train_loss": np.array([[0.5], [np.inf], [1.0]]),
        "final_layer_norm": np.array([[1.0], [-1.0], [-2.0]]),
    }
    sent = Updates.from_movements(np.zeros((3, 2)), clients=np.array([4, 6, 8]), reports=reports)
    result = BelievableReports((TrainLoss(), FinalLayerNorm()), POPULATION).apply(sent, None, None)
    assert result.updates.clients.tolist() == [4]
    assert result.refused[6].startswith("its 'train_loss' is inf")
    assert result.refused[8].startswith("its 'final_layer_norm' is -2")
