"""Metrics of the global model. Four accuracies are distinguished, because they answer different questions:

- `accuracy`: on the pooled global test set;
- `client_accuracy_*`: on every client's own test data;
- `participant_accuracy`: on the test data of this round's participants only, which favours methods whose last
  training was on the very clients that are then tested;
- `last_iteration_accuracy`: on the test data of the clients of the round's last training. It is the one before
  where a round trains once; a method that trains again within the round has few, special clients there.

Where samples have no classes, the objective's own score takes the place of accuracy in all of them (`mae`,
`client_mae_mean`, …).
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from muster.core.arrays import Floats, Ints, Vector
from muster.engine.base import Evaluation, RowSums
from muster.server.record import GroupAccuracy
from muster.training.objectives import objectives

NAN = float("nan")
#: Of these less is better; of all others more is.
LOWER_IS_BETTER = ("loss", "validation_loss", "client_accuracy_std", "group_gap")
_ABOUT = re.compile(
    r"(?:client|participant|last_iteration|validation|worst_group)_(.+?)(?:_(?:mean|weighted|worst|worst_tenth))?"
)


def lower_is_better(metric: str) -> bool:
    """Whether less of a metric is better: as objectives declare it, whatever it is measured on."""
    if metric in LOWER_IS_BETTER or (metric.startswith("client_") and metric.endswith("_std")):
        return True
    about = _ABOUT.fullmatch(metric)
    names = {metric, about[1]} if about else {metric}
    return any(names & set(getattr(objectives.get(name), "errors", ())) for name in objectives)


def summarise_metrics(
    evaluation: Evaluation, participants: Ints, last_trained: Ints | None = None
) -> dict[str, float]:
    """One flat row of metrics. `last_trained`: who was in the round's last training; None: all `participants`."""
    if evaluation.measured is not None:
        return {"accuracy": NAN, "loss": NAN} | dict(evaluation.measured)
    row_sums = evaluation.row_sums
    if row_sums is not None and not row_sums.objective.class_labels:
        return _own_metrics(evaluation, row_sums, participants, last_trained)
    total = int(evaluation.confusion.sum())
    if not total:  # none evaluated: a federation's clients may all be away
        return {"accuracy": NAN, "loss": NAN}
    row = {
        "accuracy": float(np.trace(evaluation.confusion) / total),
        "loss": evaluation.loss_sum / total,
    }
    row |= macro_scores(evaluation.confusion)
    row |= client_scores(evaluation, participants, last_trained)
    if evaluation.group_correct is not None and evaluation.group_count is not None:
        row |= group_scores(evaluation.group_correct, evaluation.group_count)
    if (kept := evaluation.validation) is not None:
        row |= {"validation_accuracy": kept.correct / kept.count, "validation_loss": kept.loss_sum / kept.count}
    if row_sums is not None:
        row |= _plain_numbers(row_sums.objective.scores(row_sums.total))
    return row


def _own_metrics(
    evaluation: Evaluation, row_sums: RowSums, participants: Ints, last_trained: Ints | None
) -> dict[str, float]:
    """The metrics of an objective without classes."""
    objective, count = row_sums.objective, row_sums.total[0]
    if not count:
        return {"accuracy": NAN, "loss": NAN}
    row = {"accuracy": NAN, "loss": float(evaluation.loss_sum / count)}
    row |= _plain_numbers(objective.scores(row_sums.total))
    score, less = objective.score, objective.score in objective.errors
    own = np.asarray(objective.scores(row_sums.clients)[score], dtype=np.float64)
    pooled = float(objective.scores(row_sums.clients.sum(axis=0))[score])
    row |= spread_scores(score, own, pooled, participants, last_trained, less=less)
    if row_sums.groups is not None:
        groups = objective.scores(row_sums.groups[row_sums.groups[:, 0] > 0])[score]
        worst = float(groups.max() if less else groups.min())
        row |= {f"worst_group_{score}": worst, "group_gap": abs(float(groups.mean()) - worst)}
    if (kept := evaluation.validation) is not None:
        row |= {"validation_loss": kept.loss_sum / kept.count}
        if kept.total is not None:
            scores = _plain_numbers(objective.scores(kept.total))
            row |= {f"validation_{name}": value for name, value in scores.items()}
    return row


def _plain_numbers(scores: dict[str, Any]) -> dict[str, float]:
    return {name: float(value) for name, value in scores.items()}


def macro_scores(confusion: Ints) -> dict[str, float]:
    """Precision, recall and F1, averaged over the classes that occur in the test set; 0/0 counts as 0."""
    hits = np.diag(confusion).astype(np.float64)
    predicted, actual = confusion.sum(axis=0), confusion.sum(axis=1)
    precision = _ratio(hits, predicted)
    recall = _ratio(hits, actual)
    f1 = _ratio(2 * precision * recall, precision + recall)
    present = actual > 0
    return {
        "precision": float(precision[present].mean()),
        "recall": float(recall[present].mean()),
        "f1": float(f1[present].mean()),
    }


def client_scores(
    evaluation: Evaluation, participants: Ints, last_trained: Ints | None = None
) -> dict[str, float]:
    """Accuracy on clients' own test data: mean, spread, worst; of the participants only; of the last trained."""
    count = evaluation.client_count
    accuracies = np.where(count > 0, _ratio(evaluation.client_correct.astype(np.float64), count), NAN)
    pooled = float(evaluation.client_correct.sum() / count.sum()) if count.any() else NAN
    return spread_scores("accuracy", accuracies, pooled, participants, last_trained)


def spread_scores(
    score: str,
    values: Floats,
    pooled: float,
    participants: Ints,
    last_trained: Ints | None = None,
    *,
    less: bool = False,
) -> dict[str, float]:
    """A score of every client (NaN: not tested) as mean, spread and worst; `less` of it is better, or more."""
    tested = ~np.isnan(values)
    if not tested.any():
        names = ("mean", "weighted", "std", "worst", "worst_tenth")
        return {f"client_{score}_{name}": NAN for name in names} | {
            f"participant_{score}": NAN,
            f"last_iteration_{score}": NAN,
        }
    own = values[tested]

    def mean_of(clients: Ints) -> float:
        counted = clients[tested[clients]] if len(clients) else clients
        return float(values[counted].mean()) if len(counted) else NAN

    worst = (np.sort(own)[::-1] if less else np.sort(own))[: max(1, len(own) // 10)]
    return {
        f"client_{score}_mean": float(own.mean()),
        f"client_{score}_weighted": pooled,
        f"client_{score}_std": float(own.std()),
        f"client_{score}_worst": float(worst[0]),
        f"client_{score}_worst_tenth": float(worst.mean()),
        f"participant_{score}": mean_of(participants),
        f"last_iteration_{score}": mean_of(participants if last_trained is None else last_trained),
    }


def client_accuracies(evaluation: Evaluation) -> Vector | None:
    """Accuracy, or the objective's score, on each client's own test data, NaN for clients without any.

    None when no client has any.
    """
    count, row_sums = evaluation.client_count, evaluation.row_sums
    if not count.any():
        return None
    if row_sums is not None and not row_sums.objective.class_labels:
        return np.asarray(row_sums.objective.scores(row_sums.clients)[row_sums.objective.score], dtype=np.float32)
    return np.where(count > 0, _ratio(evaluation.client_correct.astype(np.float64), count), NAN).astype(np.float32)


def group_scores(correct: Ints, count: Ints) -> dict[str, float]:
    """Accuracy of the worst (class, attribute) group among those that occur, and its distance from the mean."""
    present = count > 0
    accuracies = _ratio(correct.astype(np.float64), count)[present]
    worst = float(accuracies.min())
    return {"worst_group_accuracy": worst, "group_gap": float(accuracies.mean()) - worst}


def group_table(evaluation: Evaluation) -> list[GroupAccuracy]:
    """Accuracy of every (class, attribute) group that occurs in the test set; empty without attributes."""
    correct, count = evaluation.group_correct, evaluation.group_count
    if correct is None or count is None:
        return []
    accuracies = _ratio(correct.astype(np.float64), count)
    return [
        GroupAccuracy(label, attribute, float(accuracies[label, attribute]), int(count[label, attribute]))
        for label, attribute in np.argwhere(count > 0).tolist()
    ]


def _ratio(numerator: Floats, denominator: Ints | Floats) -> Floats:
    return np.divide(numerator, denominator, out=np.zeros(numerator.shape), where=denominator > 0)
