"""The benchmark of many short runs works, small."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sweep import (
    PAGE,
    REPOSITORY,
    RESULTS,
    Cost,
    cost_table,
    evaluation_table,
    kills,
    kills_text,
    page,
    problem,
    shares,
)


def test_shares_of_a_run_are_parts_of_it():
    found = shares([replace(experiment, rounds=2) for experiment in problem("digits", 1)])
    assert 0 < found.evaluation < found.whole
    assert 0 < found.training < found.whole - found.evaluation
    assert "| digits | now |" in evaluation_table({("digits", "now"): found})


@pytest.mark.parametrize(("seconds", "word"), [(0.31, "reached"), (0.52, "**not reached**")])
def test_the_aim_is_about_what_training_does_not_take(seconds, word):
    row = cost_table({"now": Cost(seconds, 0.12, 7.0, 4.0)}).splitlines()[2]
    assert row == f"| now | 4.00 | {seconds:.2f} | 0.12 | {seconds - 0.12:.2f} | {word} | 7.0 |"


def test_the_page_has_medians_with_the_conditions_of_each_part():
    about = {"command": "python benchmarks/sweep.py", "date": "today", "machine": "a machine", "load": 0.25}
    times = [{"a_run": a_run, "training": 0.1, "the_sweep": 5.0, "alone": 4.0} for a_run in (0.9, 0.3, 0.2)]
    parts = [{"training": 0.5, "evaluation": 0.25, "whole": 1.0}]
    text = page(
        {
            "cost": {"conditions": about, "rows": [["now", times]]},
            "evaluation": {"conditions": about, "rows": [["digits", "now", parts]]},
        }
    )
    assert "| now | 4.00 | 0.30 | 0.10 | 0.20 | reached | 5.0 |" in text
    assert "| digits | now | 250 | 25 % | 500 | 50 % |" in text
    assert text.count("`python benchmarks/sweep.py`, today; a machine; load at the start 0.2.") == 2
    assert "kill" not in text


def test_the_documentation_has_what_was_measured():
    assert page(json.loads(RESULTS.read_text(encoding="utf-8"))) in PAGE.read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_sweep_of_many_short_runs_survives_five_kills_with_the_bits_of_single_runs():
    found = kills(REPOSITORY / "src", runs=48, compared=8)
    assert (found.complete, found.wrong_rounds) == (48, 0)
    assert found.resumed > 0, "at least one kill hit a run"
    assert found.same == found.compared == 8
    assert "48 complete, 0 with a round missing" in kills_text(found)
