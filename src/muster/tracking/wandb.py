"""Weights & Biases: a run in the project, on this machine (offline) unless `WANDB_MODE` says otherwise."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar

from muster.tracking.base import Outcome, RunFacts, Tracker, trackers


@trackers.register("wandb")
class WeightsAndBiases(Tracker):
    """Weights & Biases, offline; send with `wandb sync tracking/wandb/offline-run-*`."""

    package: ClassVar[str] = "wandb"
    _run: Any

    def begin(self, run: RunFacts) -> None:
        wandb = self._import("wandb")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._run = wandb.init(
            project=self.project,
            name=run.title,
            id=run.fingerprint or None,
            resume="allow" if run.fingerprint else None,
            config=dict(run.config),
            dir=str(self.folder),
            mode=os.environ.get("WANDB_MODE", "offline"),
            settings=wandb.Settings(silent=True, console="off"),
        )
        # Rounds are the axis: W&B's own step counter refuses rounds that come again after a kill.
        self._run.define_metric("round")
        self._run.define_metric("*", step_metric="round")

    def log(self, round: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, "round": round})

    def end(self, outcome: Outcome) -> None:
        self._run.finish(exit_code=0 if outcome == "complete" else 1)
