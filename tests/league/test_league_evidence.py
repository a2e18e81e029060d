"""Advice from the league: the nearest problems, what helped there, and silence where nothing is near."""

from __future__ import annotations

import math

import numpy as np
import pytest

from muster.core.errors import ConfigError
from muster.heterogeneity.inspection import inspect
from muster.heterogeneity.profile import NEAR, STEPS, distance, profile, steps_apart
from muster.heterogeneity.tables import Counts
from muster.league.evidence import (
    Evidence,
    Tried,
    evidence_from,
    recommend,
    recommended,
    shipped_evidence,
    write_evidence,
)
from muster.league.gains import Gain
from muster.selection.base import selectors


def federation(clients: int = 20, skewed: bool = True):
    rows = [[90, 10], [10, 90]] if skewed else [[50, 50]]
    table = np.array(rows * (clients // len(rows)))[:, :, None]
    return inspect(Counts("made", table, has_attributes=False), cohort=5)


def tried(name: str, moved: float = 0.0, **gains: tuple[float, float, float]) -> Tried:
    """A problem so many steps from the federation."""
    own = profile(federation())
    own["CCI"] += moved * STEPS["CCI"]
    named = {method.replace("_", "-"): Gain(*gain) for method, gain in gains.items()}
    return Tried(name, "selection", "random", 5, own, named)


def evidence(*problems: Tried) -> Evidence:
    return Evidence("league", "full", "0.2.0", problems)


GOOD, BAD, UNSURE = (0.02, 0.01, 0.03), (-0.02, -0.03, -0.01), (0.01, -0.01, 0.03)


def test_distances_are_in_steps():
    own, other = profile(federation()), profile(federation(200))
    assert own.keys() == STEPS.keys()
    assert distance(own, own) == 0
    apart = steps_apart(own, other)
    assert apart["log10 of clients"] == pytest.approx(2.0), "ten times as many are two steps"
    assert apart["cohort, share of clients"] == pytest.approx((0.25 - 0.025) / 0.25)
    assert distance(own, other) == pytest.approx(math.hypot(2.0, 0.9))


def test_methods_are_named_that_helped_nearby_with_their_numbers():
    found = recommend(
        federation(),
        evidence(
            tried("far", NEAR + 1, oort=GOOD),
            tried("second", 1.0, hics=UNSURE, terraform=BAD, fedcbs=GOOD, oort=BAD),
            tried("first", 0.5, hics=GOOD, terraform=GOOD, fedcbs=UNSURE, oort=BAD),
        ),
    )
    assert found.finding == "On the federation most like this, `hics` beat random"
    assert found.header == ("method", "first", "second"), "the nearest first, and none that is far"
    assert found.rows == (("hics", "+2.0 [+1.0, +3.0]", "+1.0 [−1.0, +3.0]"),)
    assert "first (0.5 steps away); second (1.0 steps away)" in found.text
    assert "5 seeds, scale 'full'" in found.text


def test_where_nobody_helped_it_says_so():
    found = recommend(federation(), evidence(tried("first", 0.5, hics=UNSURE, oort=BAD)))
    assert found.finding == "No selection method clearly beat random on federations like this"
    assert "Largest mean gain: `hics`, +1.0 [−1.0, +3.0] in first." in found.text
    assert not found.rows


def test_a_single_seed_shows_nothing():
    alone = Gain(0.5, math.nan, math.nan)
    assert not alone.clearly_better
    assert not alone.clearly_worse
    assert str(alone) == "+50.0"


def test_nothing_near_gives_no_names():
    found = recommend(federation(), evidence(tried("far", NEAR + 1, hics=GOOD)))
    assert "nothing like this" in found.finding
    assert "far, 3.0 steps away" in found.text
    assert "differ most in CCI" in found.text
    assert "hics" not in found.text


def test_clients_that_are_alike_get_no_method():
    found = recommend(federation(skewed=False), evidence(tried("first", 0.5, hics=GOOD)))
    assert found.finding == "No selection method is recommended"
    assert "no selection can change it" in found.text


def test_without_results_it_says_so():
    assert "no results" in recommend(federation(), evidence()).text


def test_aggregation_is_no_selection():
    other = Tried("first", "aggregation", "fedavg", 5, profile(federation()), {"median": Gain(*GOOD)})
    assert "median" not in recommend(federation(), evidence(other)).text


def test_evidence_is_written_and_read(tmp_path):
    known = evidence(tried("first", 0.5, hics=GOOD, oort=(0.1, math.nan, math.nan)))
    text = write_evidence(known, tmp_path / "evidence.json").read_text()
    again = evidence_from(text, "evidence.json")
    assert again.problems[0].gains["hics"] == Gain(*GOOD)
    assert math.isnan(again.problems[0].gains["oort"].low)
    assert distance(again.problems[0].profile, known.problems[0].profile) < 1e-3
    for broken in ("", "[]", "{}", text.replace('"gains"', '"wins"'), text.replace('"low"', '"lowest"')):
        with pytest.raises(ConfigError, match=r"evidence\.json is not what a league writes"):
            evidence_from(broken, "evidence.json")


def test_what_is_shipped_is_sound():
    shipped = shipped_evidence()
    assert len(shipped.problems) >= 8
    for problem in shipped.problems:
        assert problem.profile.keys() == STEPS.keys()
        if problem.compares == "selection":
            assert {*problem.gains, problem.baseline} <= set(selectors.names())
    inspection = recommended(federation())
    assert inspection.recommendation is not None
    assert inspection.advice == federation().advice
