"""What watching costs, from rounds and the moments at which watching began and ended."""

from __future__ import annotations

import numpy as np
import pytest

from ui import watched_against_alone


def rounds(cost):
    """A round ends every tenth of a second; its processor time is told by when it ends."""
    ends = np.arange(1, 121) / 10
    return np.column_stack([ends, np.cumsum([cost(end) for end in ends])])


SWITCHES = np.arange(1, 12) + 0.05


def watched(end):
    return int(end - 0.05) % 2 == 1


def test_a_run_that_watching_slows_by_a_tenth():
    found = watched_against_alone(rounds(lambda end: 0.011 if watched(end) else 0.010), SWITCHES)
    assert found["slower_by"] == found["median"] == pytest.approx(0.1)
    assert found["interval_95"] == pytest.approx([0.1, 0.1])
    assert found["stretches"] == 4


def test_a_machine_that_slows_down_is_not_taken_for_watching():
    found = watched_against_alone(rounds(lambda end: 0.010 + 0.001 * end), SWITCHES)
    assert abs(found["slower_by"]) < 0.001
