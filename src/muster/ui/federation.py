"""What a run's clients have, before any training: the numbers of `muster inspect`, for the page to draw."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock
from typing import Any

import numpy as np

from muster.config.experiment import from_dict
from muster.config.identity import CLIENT_SECTIONS
from muster.core.errors import ConfigError
from muster.experiment.inspection import inspect_experiment
from muster.heterogeneity.divergences import to_pooled
from muster.heterogeneity.inspection import Inspection, compared
from muster.league.evidence import recommended
from muster.report.inspection import (
    rows_of_divergences,
    rows_of_metrics,
    rows_of_sizes,
    rows_of_unusual,
    title,
)
from muster.results.files import to_json

#: Federations that are kept: their counts are small, but making them may take a while.
_KEPT = 8
#: Clients whose label mix is drawn; of more the page shows those that it is asked for.
MAX_CLIENTS = 5000


class Federations:
    """Inspections by what determines the clients' data, made one at a time."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, Inspection] = OrderedDict()
        self._lock = Lock()

    def inspection(self, config: dict[str, Any]) -> Inspection:
        """How heterogeneous the clients of a run are. Its data is divided again, as the run did it.

        Only what could be made is kept: data that was missing may be there the next time.
        """
        key = to_json([config.get(section) for section in (*CLIENT_SECTIONS, "selection")])
        with self._lock:
            if key not in self._known:
                self._known[key] = _inspected(config)
                while len(self._known) > _KEPT:
                    self._known.popitem(last=False)
            return self._known[key]


def _inspected(config: dict[str, Any]) -> Inspection:
    try:
        return recommended(inspect_experiment(from_dict(config)))
    except (KeyError, TypeError, ValueError, AttributeError) as error:  # parts that were objects made in Python
        raise ConfigError(
            f"what the clients of this run have cannot be made again here ({error})",
            fix="run `muster inspect` where its parts are known",
        ) from error


def as_data(inspection: Inspection) -> dict[str, Any]:
    """Everything that the view shows, in plain types."""
    counts = inspection.counts
    places, matrix = compared(counts)
    histograms = counts.histograms
    shown = counts.table[:MAX_CLIENTS]
    _, classes, attributes = counts.table.shape
    advised = [*inspection.advice]
    if inspection.recommendation is not None:
        advised.append(inspection.recommendation)
    return {
        "title": title(inspection),
        "metrics": rows_of_metrics(inspection),
        "divergences": rows_of_divergences(inspection),
        "sizes": rows_of_sizes(inspection),
        "unusual": rows_of_unusual(inspection),
        "chance": inspection.chance,
        "advice": [{"finding": advice.finding, "text": advice.text} for advice in advised],
        # Classes, and attribute values where there are some: classes alone would hide what predicts them.
        "groups": [counts.group_name(label, value) for label in range(classes) for value in range(attributes)],
        "clients": {
            "names": [counts.client(client) for client in range(len(shown))],
            "size": counts.sizes[:MAX_CLIENTS].tolist(),
            "class imbalance": np.round(inspection.triplets[:MAX_CLIENTS, 0], 4).tolist(),
            "attribute imbalance": np.round(inspection.triplets[:MAX_CLIENTS, 1], 4).tolist(),
            "spurious correlation": np.round(inspection.triplets[:MAX_CLIENTS, 2], 4).tolist(),
            "divergence": np.round(to_pooled(histograms)[:MAX_CLIENTS] / np.log(2), 4).tolist(),
        },
        "labels": shown.reshape(len(shown), -1).tolist(),
        "has_attributes": counts.has_attributes,
        "compared": {"clients": places.tolist(), "matrix": np.round(matrix, 3).tolist()},
    }


def client_facts(inspection: Inspection, clients: int) -> dict[str, list[Any]]:
    """Columns for the table of clients."""
    known = min(clients, inspection.clients)
    nothing: list[Any] = [None] * (clients - known)
    return {
        "samples": inspection.counts.sizes[:known].tolist() + nothing,
        "class imbalance": np.round(inspection.triplets[:known, 0], 4).tolist() + nothing,
    }


def label_mix(inspection: Inspection, client: int) -> dict[str, Any]:
    """The classes of one client beside those of all data."""
    histograms = inspection.counts.histograms
    pooled = histograms.sum(axis=0)
    return {
        "classes": [inspection.counts.class_name(label) for label in range(histograms.shape[1])],
        "own": histograms[client].tolist(),
        "all": (pooled / pooled.sum()).tolist(),
    }
