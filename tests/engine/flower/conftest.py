"""A real federation for all tests that need one: a SuperLink with TLS and node authentication, six warm nodes."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr")
from muster.engine.flower.deploy.driver import Task
from muster.engine.flower.deploy.federation import LocalFederation

NODES = 6
CONFIG = f"""
rounds = 5
[data]
source = "digits"
[partition]
scheme = "dirichlet"
clients = {NODES}
alpha = 0.5
[model]
name = "mlp"
hidden = [16]
[training]
lr = 0.1
batch_size = 16
[selection]
method = "random"
clients_per_round = 4
[aggregation]
method = "fedavg"
[engine]
workers = 0
[flower]
deadline = 60.0
"""


@pytest.fixture(scope="session")
def federation(tmp_path_factory):
    """Shared by all tests, so none may leave it other than it was."""
    with LocalFederation(tmp_path_factory.mktemp("federation"), NODES) as running:
        yield running


@pytest.fixture
def task(tmp_path):
    """Makes an experiment on digits with six clients; settings are `section.key=value`."""
    config = tmp_path / "experiment.toml"
    config.write_text(CONFIG)

    def make(*settings: str, out: str = "out", resume: bool = False) -> Task:
        return Task(config, tmp_path / out, list(settings), resume=resume)

    return make
