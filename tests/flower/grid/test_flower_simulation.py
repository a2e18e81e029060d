"""`muster flower new`, then `flwr run` in simulation: 50 virtual nodes on Ray finish the quickstart."""

from __future__ import annotations

import json
import os
import shutil
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
from muster.experiment.quickstart import experiments
from muster.flower.deploy.processes import free_port
from muster.results.store import Store

pytestmark = [pytest.mark.flower, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
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


def flwr_run(app_folder: Path, home: Path, nodes: int, *more: str) -> str:
    """What `flwr run` in simulation says."""
    environment = os.environ | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "NO_PROXY": "localhost,127.0.0.1",
        "OMP_NUM_THREADS": "1",
        "PATH": f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}",
    }
    federation = f"num-supernodes={nodes} client-resources-num-cpus=1"
    ended = subprocess.run(
        ["flwr", "run", str(app_folder), "sim", "--stream", "--federation-config", federation, *more],
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    return ended.stdout + ended.stderr


def test_fifty_virtual_nodes_finish_the_quickstart(tmp_path, flower_home):
    made = CliRunner().invoke(app, ["flower", "new", str(tmp_path / "quickstart-app"), "--set", SETTINGS])
    assert made.exit_code == 0, made.output
    said = flwr_run(tmp_path / "quickstart-app", flower_home, 50)
    assert "50 of 50 clients are there" in said
    with Store(tmp_path / "quickstart-app" / "results") as store:
        (remote,) = store.results()
    quickstart = next(e for e in experiments(rounds=30) if e.name == "terraform")
    local = muster.run(quickstart.with_options([SETTINGS, "engine.kind=processes"]))
    assert remote.complete
    assert not remote.rejected
    assert remote.final() == local.final()
    assert np.array_equal(remote.parameters, local.parameters)


def test_an_app_of_ones_own_selects_with_muster(tmp_path, flower_home):
    """The example of the documentation: a Flower app whose server starts `MusterStrategy`."""
    example = tmp_path / "own-flower-app"
    shutil.copytree(ROOT / "examples" / "own-flower-app", example)
    flwr_run(example, flower_home, 20, "--run-config", f'out="{tmp_path / "out"}"')
    selections = json.loads((tmp_path / "out" / "selections.json").read_text())
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert len(selections) == summary["rounds"] == 5
    assert summary["rejected"] == 0
    assert summary["best_accuracy"] > 0.3
