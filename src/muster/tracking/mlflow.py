"""MLflow: a run in the experiment `project`, in `MLFLOW_TRACKING_URI` or a database in `FOLDER`."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any, ClassVar

from muster.tracking.base import Outcome, RunFacts, Tracker, trackers

_STATUS: dict[Outcome, str] = {"complete": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
#: The tag by which a resumed run is found again.
_TAG = "muster.fingerprint"
#: MLflow refuses longer values of parameters, and more parameters in one request.
_LONGEST, _MOST = 500, 100


@trackers.register("mlflow")
class MLflow(Tracker):
    """MLflow runs; look at them with `mlflow ui --backend-store-uri sqlite:///tracking/mlflow.db`."""

    package: ClassVar[str] = "mlflow"
    _client: Any
    _id: str

    def begin(self, run: RunFacts) -> None:
        entities = self._import("mlflow.entities")
        self._metric = entities.Metric
        uri = os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            uri = f"sqlite:///{(self.folder / 'mlflow.db').resolve()}"
        self._client = self._import("mlflow").MlflowClient(tracking_uri=uri)
        known = self._client.get_experiment_by_name(self.project)
        experiment = known.experiment_id if known else self._client.create_experiment(self.project)
        earlier = self._earlier(experiment, run) if run.done else None
        if earlier is not None:
            self._id = earlier
            self._client.update_run(self._id, status="RUNNING")
            return
        self._id = self._client.create_run(
            experiment, tags={_TAG: run.fingerprint}, run_name=run.title
        ).info.run_id
        params = [entities.Param(key, value[:_LONGEST]) for key, value in run.config.items()]
        for start in range(0, len(params), _MOST):
            self._client.log_batch(self._id, params=params[start : start + _MOST])

    def log(self, round: int, values: Mapping[str, float]) -> None:
        now = int(1000 * time.time())
        self._client.log_batch(self._id, metrics=[self._metric(k, v, now, round) for k, v in values.items()])

    def end(self, outcome: Outcome) -> None:
        self._client.set_terminated(self._id, _STATUS[outcome])

    def _earlier(self, experiment: str, run: RunFacts) -> str | None:
        found = self._client.search_runs(
            [experiment],
            filter_string=f"tags.\"{_TAG}\" = '{run.fingerprint}'",
            max_results=1,
            order_by=["attributes.start_time DESC"],
        )
        return found[0].info.run_id if found else None
