"""TensorBoard: one folder of event files per run, in `FOLDER/tensorboard`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from muster.tracking.base import Outcome, RunFacts, Tracker, trackers


@trackers.register("tensorboard")
class TensorBoard(Tracker):
    """TensorBoard event files; look at them with `tensorboard --logdir tracking/tensorboard`."""

    package: ClassVar[str] = "tensorboard"
    _writer: Any

    def begin(self, run: RunFacts) -> None:
        writer = self._import("torch.utils.tensorboard").SummaryWriter
        # Rounds that a killed process had shown but not saved are run again: the old ones are hidden.
        self._writer = writer(str(self.folder / "tensorboard" / run.slug), purge_step=run.done + 1)
        rows = "\n".join(f"| {key} | {value} |" for key, value in run.config.items())
        self._writer.add_text("config", f"| key | value |\n|---|---|\n{rows}", run.done)

    def log(self, round: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name.replace(" ", "_"), value, round)
        self._writer.flush()

    def end(self, outcome: Outcome) -> None:
        self._writer.close()
