"""The result of a run: parameters, metrics, who was selected, what it cost."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from muster.core.arrays import Vector
from muster.core.errors import ConfigError
from muster.core.parameters import FlatModel, ParameterSpec
from muster.selection.history import History
from muster.server.ledger import Costs, Ledger
from muster.server.metrics import lower_is_better
from muster.server.origin import Origin
from muster.server.record import GroupAccuracy, RoundRecord

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

#: Cumulative costs that are shown beside the metrics of each round.
CUMULATED = (
    "client_trainings",
    "local_steps",
    "samples",
    "probe_samples",
    "bytes_down",
    "bytes_up",
    "virtual_seconds",
    "wasted_trainings",
    "wasted_seconds",
)


@dataclass(frozen=True, repr=False)
class Result:
    """What `muster.run` returns."""

    #: The final global model, flat.
    parameters: Vector
    records: list[RoundRecord]
    ledger: Ledger
    history: History
    spec: ParameterSpec
    #: All rounds were done (False: stopped early, can be resumed).
    complete: bool = True
    #: Its name in tables and plots.
    name: str = ""
    #: The experiment's configuration as it was run.
    config: dict[str, Any] = field(default_factory=dict)
    #: Which run of which code it is, where that is known.
    provenance: Origin = field(default_factory=Origin)
    #: The network that was trained, as it was before; None where it is not available (a result from a store).
    module: nn.Module | None = field(default=None, repr=False, compare=False)

    @cached_property
    def metrics(self) -> list[dict[str, float]]:
        """One row per round: `round`, `accuracy`, `loss`, …, and the work so far (`client_trainings`, …)."""
        rows, so_far = [], Costs()
        for record, costs in zip(self.records, self.ledger.rounds, strict=True):
            so_far = so_far + costs
            work = {name: getattr(so_far, name) for name in CUMULATED}
            rows.append({"round": record.round, **record.metrics, **work})
        return rows

    @property
    def selections(self) -> list[list[list[int]]]:
        """For each round, the client ids of each training."""
        return [[training.clients for training in record.trainings] for record in self.records]

    @property
    def groups(self) -> list[GroupAccuracy]:
        """Accuracy by (class, attribute) in the last evaluation; empty where the data has no attributes."""
        return next((record.groups for record in reversed(self.records) if record.groups), [])

    @property
    def rejected(self) -> list[tuple[int, int, str]]:
        """(round, client, reason) of every update that was refused or did not arrive."""
        return [
            (record.round, client, reason)
            for record in self.records
            for training in record.trainings
            for client, reason in (training.rejected | training.failed).items()
        ]

    def series(self, metric: str, per: str = "round") -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """A metric over rounds or over work, at the rounds where it was measured."""
        for key in (metric, per):
            if not any(key in row for row in self.metrics):
                known = sorted({key for row in self.metrics for key in row})
                raise ConfigError(f"unknown metric '{key}'", expected=", ".join(known))
        rows = [row for row in self.metrics if not math.isnan(row.get(metric, math.nan))]
        return np.array([row[per] for row in rows]), np.array([row[metric] for row in rows])

    @property
    def main_metric(self) -> str:
        """What a result is summed up by: `accuracy`, or where there is none `mae`, or else `loss`."""
        return next((name for name in ("accuracy", "mae") if self._measured(name)), "loss")

    def _measured(self, metric: str) -> bool:
        return any(not math.isnan(row.get(metric, math.nan)) for row in self.metrics)

    def final(self, metric: str | None = None) -> float:
        """The last measured value of a metric (None: of the `main_metric`); NaN when it never was."""
        values = self.series(metric or self.main_metric)[1]
        return float(values[-1]) if len(values) else float("nan")

    def best(self, metric: str | None = None) -> float:
        """The best measured value: the lowest of a loss or an error, the highest of anything else; NaN without."""
        metric = metric or self.main_metric
        values = self.series(metric)[1]
        if not len(values):
            return float("nan")
        return float(values.min() if lower_is_better(metric) else values.max())

    def to_pandas(self) -> pd.DataFrame:
        """The metrics as a table (needs pandas)."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ConfigError("to_pandas() needs pandas", fix="pip install 'muster-fl[pandas]'") from error
        return pd.DataFrame(self.metrics)

    def model(self, module: nn.Module | Callable[..., nn.Module] | None = None) -> nn.Module:
        """The trained network, ready to predict (in evaluation mode): a new one for each call.

        A result that comes from a store does not have the network itself: it is built from the config, or from
        `module`, where the experiment was given an object.
        """
        found = self.module if module is None else module
        if not isinstance(found, nn.Module):
            found = import_module("muster.experiment.networks").network_of(self, found)
        made: nn.Module = copy.deepcopy(found)
        flat = FlatModel(made)
        if [entry.shape for entry in flat.spec.entries] != [entry.shape for entry in self.spec.entries]:
            raise ConfigError(
                f"the network {type(made).__name__} has {flat.spec.size:,} numbers in other shapes than the "
                f"result, which has {self.spec.size:,}",
                fix="pass the network that was trained: result.model(MyNetwork())",
            )
        if flat.spec.frozen != self.spec.frozen:
            raise ConfigError(
                f"the frozen parts of the network {type(made).__name__} are not those of the training",
                fix="bring the pretrained files of that time back, or hand over the network that was trained",
            )
        flat.load(torch.from_numpy(np.array(self.parameters)))
        return made.eval()

    def plot(self, kind: str = "curves", *, path: Path | str | None = None, **options: Any) -> Figure:
        """A picture (docs/plots.md lists the kinds and their options); saved when a path is given."""
        # Looked up by name: pictures are made of results, so their room is above this one.
        figure: Figure = import_module("muster.report.plots").draw(kind, [self], path=path, **options)
        return figure

    def __repr__(self) -> str:
        """Short: the records of a long run would fill many screens."""
        state = "" if self.complete else ", not complete"
        score = f", {self.main_metric} {self.final():.4f}" if self._measured(self.main_metric) else ""
        return f"Result({self.name!r}: {len(self.records)} rounds{score}{state})"

    def _repr_html_(self) -> str:
        """What a notebook shows: a few numbers and a small picture."""
        shown: str = import_module("muster.report.notebook").result_html(self)
        return shown

    def save(self, folder: Path | str) -> None:
        """Write metrics, selections, ledger and parameters as plain files (CSV, JSON, NPY)."""
        import_module("muster.results.files").save_result(self, Path(folder))

    def summary(self) -> dict[str, Any]:
        """The facts of the run in one dict."""
        return {
            "name": self.name,
            "rounds": len(self.records),
            "complete": self.complete,
            "metrics": self.metrics[-1] if self.metrics else {},
            "best_accuracy": self.best("accuracy") if self.records else float("nan"),
            "groups": [row._asdict() for row in self.groups],
            "costs": asdict(self.ledger.total()),
            "disclosed": self.ledger.total_disclosed(),
            "privacy": [asdict(spent) for spent in self.ledger.privacy.spent()],
            "rejected": len(self.rejected),
        }
