"""The methods that know about time, on real clients: the same bits however a run is carried out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import muster
from muster.aggregation.fedavg import FedAvg
from muster.engine.trial import TrialEngine
from muster.selection.oort import Oort
from muster.selection.pisces import Pisces
from muster.server import Server
from muster.server.loop import Observer
from muster.world.availability.base import Availability

SELECTIONS: dict[str, dict[str, Any]] = {
    "oort": {},
    "oort, profiled": {"speed": "profiled", "pacer_step": 1},
    "fedcs": {"candidates": 1.0, "deadline": 3.0, "uploads": "together", "clients_per_round": 3},
    "refl": {"first_estimate": 5.0, "target": "adaptive"},
    "tifl": {"tiers": 2, "interval": 2},
    "pisces": {"credits": 1, "compared_least": 3, "neighbours": 2, "radius": 0.2},
}
PACINGS: dict[str, dict[str, Any]] = {
    "over-select": {"factor": 1.5},
    "deadline": {"seconds": 0.6, "late": "use"},
    "buffered": {"in_flight": 6, "k": 2},
    "pisces": {"in_flight": 6, "bound": 2.0},
}


def experiment(tiny, selection, pacing, rounds=8):
    return tiny(
        rounds=rounds,
        selection={"method": selection.split(",")[0], "clients_per_round": 3} | SELECTIONS[selection],
        pacing={"method": pacing} | PACINGS[pacing],
        devices={"method": "lognormal", "samples_per_second": 300.0, "jitter": 0.3},
        availability={"method": "rhythm"},
    )


class StopAfter(Observer):
    def __init__(self, rounds):
        self.left = rounds

    def wants_stop(self):
        self.left -= 1
        return self.left <= 0


@pytest.mark.parametrize("pacing", PACINGS)
@pytest.mark.parametrize("selection", SELECTIONS)
def test_stopped_and_resumed_with_clients_under_way(tiny, tmp_path, selection, pacing):
    whole = muster.run(experiment(tiny, selection, pacing), workers=0)
    muster.run(experiment(tiny, selection, pacing), workers=0, out=tmp_path, observers=[StopAfter(3)])
    # Starting workers takes longer than the run: once for each method.
    workers = 2 if pacing == "buffered" else 0
    rest = muster.run(experiment(tiny, selection, pacing), workers=workers, out=tmp_path, resume=True)
    assert whole.parameters.tobytes() == rest.parameters.tobytes()
    assert whole.selections == rest.selections
    assert [r.ended for r in whole.records] == [r.ended for r in rest.records]
    assert [r.notes for r in whole.records] == [r.notes for r in rest.records]
    assert whole.records[-1].ended > 0
    # FedCS chooses clients that answer in time.
    if pacing != "over-select" and not selection.startswith("fedcs"):
        flown = [t.flown for r in whole.records for t in r.trainings]
        assert max(s for f in flown for s in f.staleness) > 0, "some answers were late"


class Nobody(Availability):
    """Nobody in the second round."""

    def available(self, moment, clients, seed):
        return np.arange(0 if moment == 1 else clients)


@pytest.mark.parametrize("selector", [Oort(clients_per_round=3), Pisces(clients_per_round=3)])
def test_a_round_without_anybody_is_a_failed_round(selector):
    result = Server(selector, FedAvg(), TrialEngine(8), availability=Nobody()).run(4)
    assert [record.failed for record in result.records] == [False, True, False, False]
