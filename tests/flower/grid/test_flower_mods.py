"""Flower's mods for differential privacy: which compose with Muster's client app."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import LocalDpMod, fixedclipping_mod

from muster.flower import MusterStrategy
from muster.flower.client_app import make_client_app
from muster.flower.server_app import run_on_grid
from muster.selection.random import RandomSelection
from muster.server.loop import Observer
from muster.updates.table import Updates


class Lengths(Observer):
    """How far each update went."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def answered(self, answer) -> None:
        if isinstance(answer, Updates):
            self.seen += np.linalg.norm(answer.movements, axis=1).tolist()


@pytest.fixture
def experiment(six):
    return six(selection={"method": "random", "clients_per_round": 6}, rounds=2)


def test_local_noise_composes(experiment, grid_of):
    """Updates are clipped and get noise before they leave the client; orders and other messages pass."""
    plain, clipped, noisy = Lengths(), Lengths(), Lengths()
    run_on_grid(grid_of(experiment), experiment, observers=[plain])
    mod = LocalDpMod(clipping_norm=0.1, sensitivity=0.0, epsilon=1.0, delta=1e-5)
    app = make_client_app(experiment, mods=[mod])
    result = run_on_grid(grid_of(experiment, app=app), experiment, observers=[clipped])
    assert not result.rejected
    assert min(plain.seen) > 0.1
    assert max(clipped.seen) == pytest.approx(0.1, rel=1e-3)
    mod = LocalDpMod(clipping_norm=0.1, sensitivity=0.1, epsilon=1.0, delta=1e-5)
    app = make_client_app(experiment, mods=[mod])
    run_on_grid(grid_of(experiment, app=app), experiment, observers=[noisy])
    assert min(noisy.seen) > 1


def test_signals_in_updates_see_the_noisy_update(six, grid_of):
    """The server measures them on what it got, so nothing goes past the mod."""
    experiment = six(selection={"method": "terraform", "clients_per_round": 6, "min_clients": 2}, rounds=1)
    mod = LocalDpMod(clipping_norm=0.05, sensitivity=0.0, epsilon=1.0, delta=1e-5)
    result = run_on_grid(grid_of(experiment, app=make_client_app(experiment, mods=[mod])), experiment)
    assert np.nanmax(result.history.last("final_layer_norm")) <= 0.0501


def test_algorithms_that_send_more_than_the_model_do_not_compose(six, grid_of):
    """The mod objects to the second vector. Its error is addressed wrongly, so the server sees silence."""
    experiment = six(
        selection={"method": "random", "clients_per_round": 6},
        algorithm={"method": "scaffold"},
        aggregation={"method": "scaffold"},
        rounds=1,
        flower={"deadline": 0.5},
    )
    mod = LocalDpMod(clipping_norm=0.1, sensitivity=0.1, epsilon=1.0, delta=1e-5)
    result = run_on_grid(grid_of(experiment, app=make_client_app(experiment, mods=[mod])), experiment)
    assert len(result.rejected) == 6
    assert result.selections == [[[]]]


def test_central_clipping_needs_flowers_own_strategy(experiment, grid_of):
    """The mod waits for a norm from Flower's wrapper; without it every training fails, and says so."""
    app = make_client_app(experiment, mods=[fixedclipping_mod])
    result = run_on_grid(grid_of(experiment, app=app), experiment.with_options(["rounds=1"]))
    assert len(result.rejected) == 6
    assert "fixedclipping_mod" in result.rejected[0][2]


def test_central_clipping_composes_with_an_app_of_ones_own(grid_of):
    """With MusterStrategy the norm can be put where the mod looks for it."""
    app, lengths = ClientApp(), Lengths()

    @app.train(mods=[fixedclipping_mod])
    def train(message, context):
        arrays = message.content["arrays"].to_numpy_ndarrays()
        moved = ArrayRecord([array + 1 for array in arrays])
        return Message(RecordDict({"a": moved, "m": MetricRecord({"num-examples": 5})}), reply_to=message)

    strategy = MusterStrategy(
        RandomSelection(clients_per_round=3), federated_evaluation=False, observers=[lengths]
    )
    initial = ArrayRecord([np.zeros(100, dtype=np.float32)])
    result = strategy.start(
        grid_of(None, 3, app=app), initial, 1, train_config=ConfigRecord({"clipping_norm": 0.5})
    )
    assert not result.result.rejected
    assert lengths.seen == pytest.approx([0.5] * 3, rel=1e-3)
