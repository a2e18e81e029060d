"""Which settings determine a result: fingerprints, cases of a comparison and paces say the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from muster.config.experiment import Experiment
from muster.config.identity import CLIENT_SECTIONS, client_fingerprint, determining, fingerprint, pace_kind
from muster.results.cases import cases
from muster.results.settings import own_settings

PLAIN = Experiment(engine={"kind": "processes"}).described()

#: The same run: other habits, another engine with the same arithmetic, or stored before there was a choice.
SAME = {
    "inline": Experiment(engine={"kind": "inline"}).described(),
    "workers": Experiment(engine={"kind": "processes", "workers": 3}).described(),
    "flower": Experiment(engine={"kind": "processes"}, flower={"nodes": 3}).described(),
    "checkpoint": Experiment(engine={"kind": "processes"}, checkpoint={"every": 5}).described(),
    "name": {**PLAIN, "name": "another"},
    "before privacy": {key: value for key, value in PLAIN.items() if key != "privacy"},
}
OTHER = {
    "vectorised": Experiment(engine={"kind": "vectorised"}).described(),
    "auto": Experiment().described(),
    "rounds": {**PLAIN, "rounds": 7},
    "selection": {**PLAIN, "selection": {"method": "random", "clients_per_round": 3}},
    "devices": {**PLAIN, "devices": {"speed": "lognormal"}},
    "privacy": {**PLAIN, "privacy": {"epsilon": 1.0}},
    "evaluation": {**PLAIN, "evaluation": {"every": 2}},
}


@pytest.mark.parametrize("config", SAME.values(), ids=SAME.keys())
def test_compare_does_not_split_runs_that_share_a_fingerprint(made: Any, config: dict[str, Any]) -> None:
    assert fingerprint(config) == fingerprint(PLAIN)
    runs = [replace(made(), name="run", config=c) for c in (PLAIN, config)]
    assert len(cases(runs)) == 1
    assert own_settings(runs[1], runs) == {}
    other_seed = replace(runs[1], config={**config, "seed": 1})
    (case,) = cases([runs[0], other_seed])
    assert case.seeds == [0, 1]


@pytest.mark.parametrize("config", OTHER.values(), ids=OTHER.keys())
def test_compare_tells_runs_apart_that_have_different_fingerprints(made: Any, config: dict[str, Any]) -> None:
    assert fingerprint(config) != fingerprint(PLAIN)
    assert len(cases([replace(made(), name="run", config=c) for c in (PLAIN, config)])) == 2


def test_fingerprints_of_earlier_runs_still_hold() -> None:
    """Stores name runs by them: one that was begun before goes on, unless it relied on a changed default."""
    plain, vectorised, chosen = (
        Experiment(engine={"kind": kind}, training={"lr": 0.01, "batch_size": 64}).described()
        for kind in ("processes", "vectorised", "auto")
    )
    assert fingerprint(chosen) == "49e1b301c1b7bfe3"
    assert fingerprint(plain) == "ae40590d20c70c9e"
    assert fingerprint(vectorised) == "47b0c6c6313bf42d"
    assert client_fingerprint(plain) == "9bb77f201cda6729"
    assert Experiment().fingerprint != "7aff0573fb9bcaf0"


def test_clients_agree_on_a_part_of_what_determines_the_result() -> None:
    assert set(CLIENT_SECTIONS) <= set(determining(PLAIN))
    assert client_fingerprint(OTHER["selection"]) == client_fingerprint(PLAIN)
    assert client_fingerprint(OTHER["devices"]) != client_fingerprint(PLAIN)


def test_the_pace_depends_on_where_clients_run_and_not_on_the_seed() -> None:
    assert pace_kind({**PLAIN, "seed": 4, "rounds": 9, "name": "x"}) == pace_kind(PLAIN)
    assert pace_kind(SAME["workers"]) != pace_kind(PLAIN)
    assert pace_kind(SAME["flower"]) != pace_kind(PLAIN)
