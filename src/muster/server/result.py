"""The result of a run: parameters, metrics, who was selected, what it cost."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from muster.core.arrays import Vector
from muster.core.errors import ConfigError
from muster.core.parameters import ParameterSpec
from muster.selection.history import History
from muster.server.ledger import Costs, Ledger
from muster.server.origin import Provenance
from muster.server.record import GroupAccuracy, RoundRecord

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

#: Costs that are shown beside the metrics of each round, cumulated.
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


@dataclass(frozen=True)
class Result:
    """What `muster.run` gives back."""

    #: The final global model, flat.
    parameters: Vector
    records: list[RoundRecord]
    ledger: Ledger
    history: History
    spec: ParameterSpec
    #: All rounds were done (False: stopped early, can be resumed).
    complete: bool = True
    #: How to call it in tables and plots.
    name: str = ""
    #: The experiment's configuration as it was run.
    config: dict[str, Any] = field(default_factory=dict)
    #: Which run of which code it is, where that is known.
    provenance: Provenance = field(default_factory=Provenance)

    @cached_property
    def metrics(self) -> list[dict[str, float]]:
        """One row a round: `round`, `accuracy`, `loss`, …, and the work so far (`client_trainings`, …)."""
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
        """(round, client, reason) of every update that was refused or did not come."""
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

    def final(self, metric: str = "accuracy") -> float:
        """The last measured value of a metric; NaN when it never was."""
        values = self.series(metric)[1]
        return float(values[-1]) if len(values) else float("nan")

    def best(self, metric: str = "accuracy") -> float:
        values = self.series(metric)[1]
        return float(values.max()) if len(values) else float("nan")

    def to_pandas(self) -> pd.DataFrame:
        """The metrics as a table (needs pandas)."""
        try:
            import pandas as pd
        except ImportError as error:
            raise ConfigError("to_pandas() needs pandas", fix="pip install 'muster-fl[pandas]'") from error
        return pd.DataFrame(self.metrics)

    def plot(self, kind: str = "curves", *, path: Path | str | None = None, **options: Any) -> Figure:
        """A picture (docs/plots.md lists the kinds and their options); saved when a path is given."""
        # Looked up by name: pictures are made of results, so their room stands above this one.
        figure: Figure = import_module("muster.report.plots").draw(kind, [self], path=path, **options)
        return figure

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
            "best_accuracy": self.best() if self.records else float("nan"),
            "groups": [row._asdict() for row in self.groups],
            "costs": asdict(self.ledger.total()),
            "disclosed": self.ledger.total_disclosed(),
            "privacy": [asdict(spent) for spent in self.ledger.privacy.spent()],
            "rejected": len(self.rejected),
        }
