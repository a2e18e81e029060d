"""Cluster selection."""

import numpy as np
import pytest

from muster.core.errors import ConfigError
from muster.selection.cluster import Cluster, centrality


@pytest.mark.parametrize(
    "options",
    [{}, {"groups": "silhouette", "pick": "medoid"}, {"groups": 5, "features": "update"}],
)
def test_contract(keeps_contract, options):
    keeps_contract(lambda: Cluster(clients_per_round=4, **options), 4)


def one_hot(labels):
    return {"label_histogram": 10.0 * np.eye(4)[labels] + 0.01}


@pytest.mark.parametrize(("sizes", "slots"), [((6, 4, 2), [3, 2, 1]), ((1, 1, 10), [1, 1, 4])])
def test_worked_examples(federation, sizes, slots):
    labels = np.repeat([0, 1, 2], sizes)
    fed = federation(12, script=one_hot(labels))
    for played in fed.run(Cluster(clients_per_round=6), 5):
        assert np.bincount(labels[played.trained]).tolist() == slots


def test_silhouette_finds_the_groups(federation):
    labels = np.repeat([0, 1, 2, 3], (4, 3, 3, 2))
    fed = federation(12, script=one_hot(labels))
    for played in fed.run(Cluster(clients_per_round=4, groups="silhouette"), 3):
        assert labels[played.trained].tolist() == [0, 1, 2, 3]


def test_fewer_slots_than_groups(federation):
    labels = np.repeat([0, 1, 2], 4)
    fed = federation(12, script=one_hot(labels))
    for played in fed.run(Cluster(clients_per_round=2), 5):
        assert len(set(labels[played.trained])) == 2


def test_members_of_a_group_are_equally_likely(federation):
    fed = federation(6, script=one_hot(np.repeat([0, 1], 3)))
    fed.run(Cluster(clients_per_round=2, groups=2), 500)
    np.testing.assert_allclose(fed.history.trainings / 500, 1 / 3, atol=0.08)


def test_the_medoid_is_the_most_central(federation):
    histograms = np.array([[10, 0, 0, 0], [9, 3, 0, 0], [7, 7, 0, 0], [0, 0, 5, 5], [0, 0, 4, 5], [0, 0, 1, 9]])
    assert centrality(histograms[:3].astype(float)).tolist()[0] == 1
    fed = federation(6, script={"label_histogram": histograms})
    for played in fed.run(Cluster(clients_per_round=2, groups=2, pick="medoid"), 3):
        assert played.trained.tolist() == [1, 4]


def test_updates_are_compared_by_their_last_layer(federation):
    def update(clients, round):
        return np.eye(16)[clients % 2] + 0.01

    fed = federation(8, script={"final_layer_update": update})
    selector = Cluster(clients_per_round=4, groups=2, features="update")
    while len(selector.state_dict()["_updates"]["clients"]) < 8:
        fed.play(selector)
    for played in fed.run(selector, 10):
        assert np.bincount(played.trained % 2).tolist() == [2, 2]


def test_clients_without_a_histogram_are_a_group_of_their_own(federation):
    fed = federation(8, script=one_hot(np.repeat([0, 1], 4)))
    for played in fed.run(Cluster(clients_per_round=3), 10, nan={"label_histogram": [0, 5]}):
        assert len({0, 5} & set(played.trained)) == 1


def test_bad_options_are_refused(federation):
    with pytest.raises(ConfigError):
        Cluster(clients_per_round=4, groups=0).check(federation(10).population)
