"""Methods that cluster leave their clusters in the round's record."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import muster
from muster.selection._clustering import note_clusters


@pytest.mark.parametrize("method", ["cluster", "astrafl", "hics", "hcsfed"])
def test_clusters_are_noted_for_every_client(tiny, method):
    result = muster.run(tiny(rounds=4, selection={"method": method, "clients_per_round": 5}), workers=0)
    noted = result.records[-1].notes["clusters"]
    assert len(noted) == 12
    assert set(noted) <= set(range(-1, 12))
    assert max(noted) >= 0


def test_clients_outside_have_no_cluster():
    view = SimpleNamespace(clients=5, notes={})
    note_clusters(view, np.array([4, 1, 2]), np.array([0, 2, 0]))
    assert view.notes["clusters"].tolist() == [-1, 0, 1, -1, 1]


def test_of_a_very_large_federation_nothing_is_noted():
    view = SimpleNamespace(clients=10_001, notes={})
    note_clusters(view, np.array([1]), np.array([0]))
    assert view.notes == {}
