"""The benchmark of many short runs works, small."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sweep import REPOSITORY, Cost, cost_table, evaluation_table, kills, kills_text, problem, shares


def test_shares_of_a_run_are_parts_of_it():
    found = shares([replace(experiment, rounds=2) for experiment in problem("digits", 1)])
    assert 0 < found.evaluation < found.whole
    assert 0 < found.training < found.whole - found.evaluation
    assert "| digits | now |" in evaluation_table({("digits", "now"): found})


@pytest.mark.parametrize(("seconds", "word"), [(0.31, "reached"), (0.52, "**not reached**")])
def test_the_aim_is_about_what_training_does_not_take(seconds, word):
    row = cost_table({"now": Cost(seconds, 7.0, 4.0)}, training=0.12).splitlines()[2]
    assert f"| {seconds:.2f} | {seconds - 0.12:.2f} | {word} |" in row


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sweep_of_many_short_runs_survives_five_kills_with_the_bits_of_single_runs():
    found = kills(REPOSITORY / "src", runs=48, compared=8)
    assert (found.complete, found.wrong_rounds) == (48, 0)
    assert found.resumed > 0, "at least one kill hit a run"
    assert found.same == found.compared == 8
    assert "48 complete, 0 with a round missing" in kills_text(found)
