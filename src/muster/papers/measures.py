"""From a run to the numbers that the papers' tables have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from muster.config.experiment import from_dict
from muster.core.arrays import Floats
from muster.data.federated import FederatedData
from muster.data.partition.group_skew import named_tables
from muster.experiment.components import build_data
from muster.heterogeneity.metrics import summary
from muster.papers.entries import Value
from muster.papers.stand_ins import is_here
from muster.report.compare.measures import Budget, curve, overhead, participation, value
from muster.server.ledger import Costs
from muster.server.result import Result

NAN = math.nan
#: The four accuracies that are always told apart.
ACCURACIES = {
    "accuracy": "pooled test set",
    "client_accuracy_mean": "mean over clients",
    "participant_accuracy": "participants",
    "last_iteration_accuracy": "last iteration",
}
_COSTS = tuple(cost.name for cost in fields(Costs))
_FAIRNESS = ("gini", "jain", "coverage", "longest_wait")
_OVERHEAD = ("rounds_with_questions", "samples_probed", "server_seconds")


def measured(result: Result, wanted: Value, last: int = 1) -> float:
    """A value of a run, in the published table's unit; NaN where the run does not have it."""
    return wanted.factor * _measured(result, wanted, last)


def at_work(result: Result, wanted: Value, trainings: float, last: int = 1) -> float:
    """The last value within an amount of client trainings."""
    return wanted.factor * value(result, wanted.metric, last=last, within=Budget("client_trainings", trainings))


def _measured(result: Result, wanted: Value, last: int) -> float:
    metric = wanted.metric
    if metric in _OVERHEAD:
        return float(getattr(overhead(result), metric))
    if metric in _COSTS:
        return float(getattr(result.ledger.total(), metric))
    if metric in _FAIRNESS:
        return participation(result)[metric]
    match metric:
        case "extra_bytes":
            costs = overhead(result)
            return costs.extra_down + costs.extra_up
        case "selection_share":
            return selection_share(result, wanted.clients)
        case "least_selected":
            return float(_counts(result).min())
        case "most_selected":
            return float(_counts(result).max())
        case "clusters":
            return _picked(_clusters(result), wanted, last)
        case _:
            return _picked(curve(result, metric)[1], wanted, last)


def _picked(values: Floats, wanted: Value, last: int) -> float:
    """One number of a series over rounds. Statistics are of its later half: training has to get going first."""
    if not len(values):
        return NAN
    later = values[len(values) // 2 :]
    match wanted.pick:
        case "final":
            return float(values[-last:].mean())
        case "best":
            return float(values.max())
        case "at":
            return _after(values, wanted.at)
        case "overall":
            return float(values.mean())
        case "tenths":
            return float(np.mean([_after(values, tenth / 10) for tenth in range(1, 11)]))
        case _:
            return float(getattr(np, wanted.pick)(later))


def _after(values: Floats, share: float) -> float:
    """The evaluation after a share of the run."""
    return float(values[max(1, round(share * len(values))) - 1])


def selection_share(result: Result, clients: tuple[int, int]) -> float:
    """Share of all selections that went to the clients from the first to the last of a group."""
    counts = _counts(result)
    return float(counts[clients[0] : clients[1] + 1].sum() / max(1, counts.sum()))


def _counts(result: Result) -> Floats:
    """How often each client trained."""
    chosen = [client for trainings in result.selections for training in trainings for client in training]
    return np.bincount(np.array(chosen, dtype=np.int64), minlength=result.history.clients).astype(np.float64)


def _clusters(result: Result) -> Floats:
    """How many clusters the selector found in each round that tells."""
    labels = [record.notes["clusters"] for record in result.records if "clusters" in record.notes]
    return np.array([len({label for label in row if label >= 0}) for row in labels], dtype=np.float64)


def federations(sections: Mapping[str, Any], seeds: int) -> dict[int, dict[str, float]]:
    """What can be said about a federation before anything is trained, by seed; nothing without its data.

    Clients that are given as tables are the same for every seed, and need no data.
    """
    if "table" in sections["partition"]:
        return {0: summary(named_tables(sections["partition"]["table"]))}
    if not is_here(sections["data"]["source"]):
        return {}
    relevant = {key: sections[key] for key in ("data", "partition")}
    return {seed: _sizes(build_data(from_dict({**relevant, "seed": seed}))) for seed in range(seeds)}


def _sizes(data: FederatedData) -> dict[str, float]:
    known = (data.label_histograms > 0).sum(axis=1)
    return {
        "classes": float(data.dataset.classes),
        "fewest_classes": float(known.min()),
        "most_classes": float(known.max()),
        "smallest": float(data.sizes.min()),
        "largest": float(data.sizes.max()),
    }
