"""From a run to the numbers that the papers' tables have."""

from __future__ import annotations

import math

import numpy as np

from muster.arrays import Floats
from muster.experiment.papers.entries import Value
from muster.ledger import Costs
from muster.report.compare.measures import Budget, curve, overhead, participation, value
from muster.result import Result

NAN = math.nan
#: The three accuracies that are always told apart.
ACCURACIES = {
    "accuracy": "pooled test set",
    "client_accuracy_mean": "mean over clients",
    "participant_accuracy": "participants",
}
_FAIRNESS = ("gini", "jain", "coverage", "longest_wait")
_OVERHEAD = ("extra_down", "extra_up", "samples_probed", "server_seconds")


def measured(result: Result, wanted: Value, last: int = 1) -> float:
    """A value of a run, in the published table's unit; NaN where the run does not have it."""
    found = _measured(result, wanted, last)
    return wanted.factor * found


def at_work(result: Result, wanted: Value, trainings: float, last: int = 1) -> float:
    """The value within an amount of client trainings; NaN for what is no metric over rounds."""
    if wanted.pick != "final":
        return NAN
    return wanted.factor * value(result, wanted.metric, last=last, within=Budget("client_trainings", trainings))


def _measured(result: Result, wanted: Value, last: int) -> float:
    if wanted.metric in Costs.__dataclass_fields__:
        return float(getattr(result.ledger.total(), wanted.metric))
    if wanted.metric in _FAIRNESS:
        return participation(result)[wanted.metric]
    if wanted.metric in _OVERHEAD:
        return float(getattr(overhead(result), wanted.metric))
    if wanted.metric == "selection_share":
        return selection_share(result, wanted.clients)
    if wanted.metric in ("least_selected", "most_selected"):
        counts = _counts(result)
        return float(counts.min() if wanted.metric == "least_selected" else counts.max())
    if wanted.metric == "clusters":
        return _picked(_clusters(result), wanted, last)
    return _picked(curve(result, wanted.metric)[1], wanted, last)


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
            return float(values[min(len(values), max(1, round(wanted.at * len(values)))) - 1])
        case _:
            return float(getattr(np, wanted.pick)(later))


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
