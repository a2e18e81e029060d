"""Back-up and restore as the deployment guide says: copies made in use are whole, nodes stay registered."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")
from muster.experiment import run
from muster.flower.deploy.driver import run_on_link
from muster.flower.deploy.federation import LocalFederation
from muster.server.loop import Observer

pytestmark = [pytest.mark.flower, pytest.mark.timeout(600)]

SCRIPT = Path(__file__).parents[3] / "examples" / "deployment" / "backup.sh"


class AfterTheFirstRound(Observer):
    """Makes the back-up while everything is running, and ends the run."""

    def __init__(self, state: Path, target: Path) -> None:
        self.state, self.target = state, target

    def wants_stop(self) -> bool:
        return True

    def round_ended(self, record, ledger) -> None:
        environment = os.environ | {"STATE": str(self.state), "PYTHON": sys.executable}
        ended = subprocess.run(
            ["sh", str(SCRIPT), str(self.target)], env=environment, capture_output=True, text=True, check=True
        )
        self.copy = Path(ended.stdout.strip())


def test_a_federation_goes_on_from_its_back_up(task, tmp_path):
    state = tmp_path / "state"
    state.mkdir()
    experiment = task("rounds=3", "partition.clients=2", "selection.clients_per_round=2", out="state/runs")
    with LocalFederation(tmp_path / "federation", 2, database=state / "superlink.db") as federation:
        backup = AfterTheFirstRound(state, tmp_path / "backups")
        stopped = run_on_link(experiment, federation.link, [backup])
        assert not stopped.complete
        assert {path.name for path in backup.copy.iterdir()} == {"superlink.db", "runs"}
        assert backup.copy.stat().st_mode & 0o077 == 0

        federation.superlink.kill()
        shutil.rmtree(state)
        shutil.copytree(backup.copy, state)
        federation.restart_superlink()
        resumed = task(*experiment.settings, out="state/runs", resume=True)
        result = run_on_link(resumed, federation.link)
    assert result.complete
    assert np.array_equal(result.parameters, run(experiment.experiment).parameters)
