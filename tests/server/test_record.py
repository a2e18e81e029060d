"""The record of a round: what it says about itself, and that it comes back from JSON as it was."""

from __future__ import annotations

import json

import numpy as np
import pytest

from muster.server.record import Flown, GroupAccuracy, Observed, Report, RoundRecord, TrainingRecord


def full() -> RoundRecord:
    training = TrainingRecord(
        clients=[1, 4],
        weights=[0.25, 0.75],
        rejected={7: "non-finite values"},
        failed={9: "gone"},
        left_out=[2],
        filtered={"clip": {"seen": 4, "changed": 1, "refused": 0}},
        flown=Flown([1, 4], [0.0, 1.0], [2.0, 3.0], [0, 1], ["used", "used"]),
    )
    return RoundRecord(
        3,
        [training],
        [(["loss"], 5, 4)],
        {"accuracy": 0.5},
        [GroupAccuracy(0, 1, 0.75, 8)],
        {"clusters": [0, 1]},
        ["client 3 joined"],
        began=1.5,
        ended=4.5,
        observed=Observed([1.5, 2.0], [6], [[2, 3]]),
    )


def test_a_record_comes_back_from_json():
    record = full()
    again = RoundRecord.from_state(json.loads(json.dumps(record.state_dict())))
    assert again == record
    assert isinstance(again.groups[0], GroupAccuracy)
    assert again.asks[0] == (["loss"], 5, 4)


def test_what_single_clients_said_is_kept_elsewhere():
    record = full()
    record.reports = [Report(0, True, np.array([1]), {"loss": np.array([0.5], dtype=np.float32)})]
    record.client_accuracy = np.array([0.5], dtype=np.float32)
    state = record.state_dict()
    assert not {"reports", "client_accuracy"} & set(state)
    assert len(record.reports) == 1, "the record itself keeps them"
    assert record.client_accuracy is not None


def test_only_a_round_in_real_time_has_something_observed():
    assert "observed" in full().state_dict()
    assert "observed" not in RoundRecord(1).state_dict()
    assert RoundRecord.from_state(RoundRecord(1).state_dict()).observed is None


@pytest.mark.parametrize(
    ("training", "only_waited", "failed"),
    [
        ({}, True, True),
        ({"clients": [1], "weights": [1.0]}, False, False),
        ({"failed": {1: "gone"}}, False, True),
        ({"rejected": {1: "too long"}}, False, True),
        ({"left_out": [1]}, False, True),
    ],
)
def test_a_round_has_failed_only_if_a_training_ended_in_it(training, only_waited, failed):
    made = TrainingRecord(**{"clients": [], "weights": []} | training)
    record = RoundRecord(1, [TrainingRecord([], []), made])
    assert (record.only_waited, record.failed) == (only_waited, failed)


def test_a_round_without_a_training_has_failed_and_waited_for_nothing():
    assert (RoundRecord(1).only_waited, RoundRecord(1).failed) == (False, True)
