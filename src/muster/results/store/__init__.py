"""The results store: one SQLite file `muster.db` in a workspace folder, with everything about its runs.

Several processes may use it at once. Reading returns full `muster.Result`s, wherever they were made:

    with Store("runs") as store:
        for run in store.runs(sweep="digits"):
            print(run.fingerprint, run.name, run.seed, run.status)
        results = store.results(sweep="digits", where={"partition.alpha": 0.3})
"""

from __future__ import annotations

from muster.results.store.recorder import Recorder
from muster.results.store.runs import Event, Run
from muster.results.store.store import DATABASE, Store, plain_folder, workspace

__all__ = ["DATABASE", "Event", "Recorder", "Run", "Store", "plain_folder", "workspace"]
