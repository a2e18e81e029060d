"""`muster flower new`, then `flwr run` in simulation: 50 virtual nodes on Ray finish the quickstart."""

from __future__ import annotations

import os
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from typer.testing import CliRunner

import muster
from muster.cli.app import app
from muster.engine.flower.deploy.processes import free_port
from muster.experiment.quickstart import experiments
from muster.experiment.store import Store

pytestmark = [pytest.mark.flower, pytest.mark.timeout(600)]

SETTINGS = "partition.clients=50"


@pytest.fixture
def flower_home(tmp_path) -> Iterator[Path]:
    """A home of Flower whose connection `sim` is a local simulation; ends the SuperLink that `flwr run` leaves."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "config.toml").write_text('[superlink]\ndefault = "sim"\n\n[superlink.sim]\naddress = ":local:"\n')
    yield home
    ours = [process for process in psutil.process_iter() if _home_of(process) == str(home)]
    for process in ours:
        process.terminate()
    for process in psutil.wait_procs(ours, timeout=10)[1]:
        process.kill()


def _home_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("FLWR_HOME")
    except psutil.Error:
        return None


def test_fifty_virtual_nodes_finish_the_quickstart(tmp_path, flower_home):
    made = CliRunner().invoke(app, ["flower", "new", str(tmp_path / "quickstart-app"), "--set", SETTINGS])
    assert made.exit_code == 0, made.output
    environment = os.environ | {
        "FLWR_HOME": str(flower_home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "NO_PROXY": "localhost,127.0.0.1",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}",
    }
    federation = "num-supernodes=50 client-resources-num-cpus=1"
    ended = subprocess.run(
        ["flwr", "run", str(tmp_path / "quickstart-app"), "sim", "--stream", "--federation-config", federation],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert "50 of 50 clients are there" in ended.stdout + ended.stderr
    with Store(tmp_path / "quickstart-app" / "results") as store:
        (remote,) = store.results()
    quickstart = next(e for e in experiments(rounds=30) if e.name == "terraform")
    local = muster.run(quickstart.with_options([SETTINGS, "engine.kind=processes"]))
    assert remote.complete
    assert not remote.rejected
    assert remote.final() == local.final()
    assert np.array_equal(remote.parameters, local.parameters)
