"""Who is at work, by request."""

from __future__ import annotations

import numpy as np
import pytest

from muster.engine.base import TrainOrder
from muster.engine.task import Place
from muster.selection.base import Train
from muster.server.flights import Airspace, Dispatch
from muster.server.ledger import Load
from muster.world.clock import Trips


def airspace(*cohorts: list[int]) -> Airspace:
    """One request after the other, each to the model of its number."""
    space = Airspace()
    for version, cohort in enumerate(cohorts):
        clients = np.array(cohort)
        order = TrainOrder(clients, np.zeros(1, np.float32), Place(version, 0, 0), 0.1, lr_factors=clients / 10)
        request = Train(clients, weights=clients * 2.0, lr_factors=clients / 10)
        trips = Trips(np.ones(len(cohort)), np.ones(len(cohort), dtype=np.bool_), np.ones(len(cohort)))
        space.take_off(Dispatch(request, order, version, Load(1, 1)), 0.0, trips, np.zeros(len(cohort)))
    return space


@pytest.mark.parametrize("cohorts", [[], [[4, 1, 2]], [[4, 1], [7, 3, 0]], [[9], [8], [7]]])
def test_requests_and_staleness_are_those_of_each_client(cohorts):
    space = airspace(*cohorts)
    assert space.flights.requests == list(range(len(cohorts)))
    behind = [5 - number for number, cohort in enumerate(cohorts) for _ in cohort]
    assert space.staleness(space.flights, 5).tolist() == behind


def test_parts_have_what_each_request_says_about_its_clients():
    space = airspace([4, 1, 2], [7, 3])
    first, second = space.parts(space.flights.rows(np.array([0, 1, 4])))
    assert first.order.clients.tolist() == first.request.clients.tolist() == [1, 4]
    assert first.request.weights.tolist() == [2.0, 8.0]
    assert first.order.lr_factors.tolist() == [0.1, 0.4]
    assert second.order.clients.tolist() == [3]
    assert second.request.weights.tolist() == [6.0]


def test_a_request_whose_clients_have_all_landed_is_its_own_part():
    space = airspace([1, 2, 4])
    assert space.parts(space.flights) == [space.dispatch(0)]
    landed = space.land(np.array([2, 0, 1]))
    assert landed.clients.tolist() == [4, 1, 2]
    assert len(space) == 0
    space.forget()
    assert space.versions == 0
