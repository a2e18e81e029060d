"""Filters of the client's side on a federation: nodes send what is left, and say which filter changed it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import muster
from muster.config.identity import client_fingerprint
from muster.core.errors import ConfigError
from muster.flower.client_app import make_client_app
from muster.flower.server_app import run_on_grid

CLIP = {"method": "clip", "norm": 0.05, "side": "client"}


def test_nodes_filter_before_they_send(six, grid_of):
    experiment = six(rounds=3, filters=[CLIP])
    local, remote = muster.run(experiment, workers=0), run_on_grid(grid_of(experiment), experiment)
    # The model is sent, origin + movement, and rounded there: nearly the same bits.
    np.testing.assert_allclose(remote.parameters, local.parameters, atol=1e-6)
    for one, other in zip(local.records, remote.records, strict=True):
        (here,), (there,) = one.trainings, other.trainings
        assert here.filtered == there.filtered
        assert here.filtered["client clip"]["changed"] == len(here.clients)
    assert local.ledger.total_disclosed() == remote.ledger.total_disclosed()


def test_a_filter_that_changes_nothing_leaves_the_same_bits(six, grid_of, assert_same):
    experiment = six(rounds=2, filters=[CLIP | {"norm": 1e6}])
    local = muster.run(experiment, workers=0)
    assert_same(local, run_on_grid(grid_of(experiment), experiment))
    assert np.array_equal(local.parameters, muster.run(replace(experiment, filters=[]), workers=0).parameters)


def test_server_and_nodes_must_agree_on_the_clients_filters(six, grid_of):
    plain, clipped = six(rounds=1, flower={"wait": 0.5}), six(rounds=1, flower={"wait": 0.5}, filters=[CLIP])
    with pytest.raises(muster.MusterError):
        run_on_grid(grid_of(plain, app=make_client_app(plain)), clipped)
    on_server = six(filters=[CLIP | {"side": "server"}])
    assert client_fingerprint(on_server.described()) == client_fingerprint(plain.described()), (
        "the server's own business"
    )
    assert client_fingerprint(clipped.described()) != client_fingerprint(plain.described())


def test_with_secure_aggregation_only_clients_may_filter(six, grid_of):
    secure = six(rounds=1, flower={"secure_aggregation": True}, filters=[CLIP])
    assert run_on_grid(grid_of(secure), secure).complete
    on_server = replace(secure, filters=[CLIP | {"side": "server"}])
    with pytest.raises(ConfigError, match="the filter 'clip' does not work with secure aggregation"):
        run_on_grid(grid_of(on_server), on_server)
