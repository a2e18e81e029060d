"""Accuracy by (class, attribute): in the records, in the result, in the files, after resume."""

import json

import numpy as np
import pytest

import muster
from muster.engine.base import Evaluation
from muster.server.loop import Observer
from muster.server.metrics import group_table
from muster.server.record import GroupAccuracy, RoundRecord

SHAPES = {"source": "spurious-shapes", "samples": 400, "test_samples": 80}


class StopAfterFirst(Observer):
    def wants_stop(self):
        return True


def evaluation(correct, count) -> Evaluation:
    nothing = np.zeros(0)
    return Evaluation(np.eye(2, dtype=np.int64), 0.0, nothing, nothing, nothing, correct, count)


def test_the_table_has_a_row_for_every_group_that_occurs():
    correct, count = np.array([[9, 0], [3, 0]]), np.array([[10, 0], [4, 5]])
    assert group_table(evaluation(correct, count)) == [(0, 0, 0.9, 10), (1, 0, 0.75, 4), (1, 1, 0.0, 5)]
    assert group_table(evaluation(None, None)) == []


def test_results_have_the_groups_of_the_last_evaluation(tiny, tmp_path):
    result = muster.run(tiny(data=SHAPES, evaluation={"every": 2}, rounds=4), workers=0, out=tmp_path)
    assert [len(record.groups) for record in result.records] == [0, 4, 0, 4]
    assert result.groups == result.records[-1].groups
    assert sum(row.samples for row in result.groups) == 80
    assert min(row.accuracy for row in result.groups) == pytest.approx(result.final("worst_group_accuracy"))
    saved = json.loads((tmp_path / "summary.json").read_text())["groups"]
    assert [GroupAccuracy(**row) for row in saved] == result.groups


def test_data_without_attributes_has_no_groups(tiny):
    assert muster.run(tiny(rounds=1), workers=0).groups == []


def test_groups_survive_stop_and_resume(tiny, tmp_path):
    whole = muster.run(tiny(data=SHAPES), workers=0)
    muster.run(tiny(data=SHAPES), workers=0, out=tmp_path, observers=[StopAfterFirst()])
    rest = muster.run(tiny(data=SHAPES), workers=0, out=tmp_path, resume=True)
    assert [record.groups for record in rest.records] == [record.groups for record in whole.records]
    assert isinstance(rest.records[0].groups[0], GroupAccuracy)


def test_records_from_before_there_were_groups_can_be_read():
    old = RoundRecord(1).state_dict()
    for later in ("groups", "notes", "events", "began", "ended"):
        del old[later]
    assert RoundRecord.from_state(old) == RoundRecord(1)
