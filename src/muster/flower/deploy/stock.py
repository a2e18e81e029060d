"""An experiment with Flower's own processes and public commands only: any version, but slower."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from muster.core.errors import EngineError
from muster.experiment.runner import checked_folder
from muster.flower.deploy.driver import Task
from muster.flower.deploy.federation import LocalFederation
from muster.results.store import Store
from muster.server.result import Result

#: Seconds between two checks of the store, and of the run's state.
_LOOK, _ASK = 0.5, 15.0


def run_stock(task: Task, federation: LocalFederation, tell: Callable[[int, int], None]) -> Result:
    """Run an experiment through `flwr run`; `tell(rounds done, rounds)` hears about progress."""
    folder, experiment = checked_folder(task.store or task.out), task.experiment
    with tempfile.TemporaryDirectory(prefix="muster-app-") as place, Store(folder) as store:
        app, resume = task.write_app(Path(place)), json.dumps(task.resume)
        answer = federation.flwr("run", str(app), "--run-config", f"resume={resume}", "--format", "json")
        flower_run, done = str(json.loads(answer)["run-id"]), 0
        try:
            while (state := _state(federation, flower_run)) is None:
                asked = time.monotonic()
                while time.monotonic() - asked < _ASK:
                    found = store.runs(fingerprint=experiment.fingerprint)
                    if found and found[0].done != done:
                        done = found[0].done
                        tell(done, experiment.rounds)
                    if done == experiment.rounds:
                        break
                    time.sleep(_LOOK)
        except BaseException:
            federation.flwr("stop", flower_run)
            raise
        if state != "finished:completed":
            raise EngineError(
                f"the run ended as '{state}':\n{federation.flwr('log', flower_run, '--show')[-2000:]}"
            )
        result = store.result(experiment.fingerprint)
    if len(result.records) > done:  # it ended between two looks at the store
        tell(len(result.records), experiment.rounds)
    result.save(task.out)
    return result


def _state(federation: LocalFederation, run: str) -> str | None:
    """How a run has ended; None while it has not."""
    (found,) = json.loads(federation.flwr("ls", "--run-id", run, "--format", "json"))["runs"]
    state = str(found["status"])
    return state if state.startswith("finished") else None
