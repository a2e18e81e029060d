"""Metrics of the global model. Four accuracies are told apart, because they answer different questions:

- `accuracy`: on the pooled global test set;
- `client_accuracy_*`: on every client's own test data;
- `participant_accuracy`: on the test data of this round's participants only, which favours methods whose last
  training was on the very clients that are then tested;
- `last_iteration_accuracy`: on the test data of the clients of the round's last training. It is the one before
  where a round trains once; a method that trains again within the round has few, special clients there.
"""

from __future__ import annotations

import numpy as np

from muster.core.arrays import Floats, Ints, Vector
from muster.engine.base import Evaluation
from muster.server.record import GroupAccuracy

NAN = float("nan")
#: Of these less is better; of all others more is.
LOWER_IS_BETTER = ("loss", "validation_loss", "client_accuracy_std", "group_gap")


def summarise_metrics(
    evaluation: Evaluation, participants: Ints, last_trained: Ints | None = None
) -> dict[str, float]:
    """One flat row of metrics. `last_trained`: who was in the round's last training; None: all `participants`."""
    if evaluation.measured is not None:
        return {"accuracy": NAN, "loss": NAN} | dict(evaluation.measured)
    total = int(evaluation.confusion.sum())
    if not total:  # nobody evaluated: a federation's clients may all be away
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
    return row


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
    tested = evaluation.client_count > 0
    if not tested.any():
        names = ("mean", "weighted", "std", "worst", "worst_tenth")
        return {f"client_accuracy_{name}": NAN for name in names} | {
            "participant_accuracy": NAN,
            "last_iteration_accuracy": NAN,
        }
    accuracies = _ratio(evaluation.client_correct.astype(np.float64), evaluation.client_count)
    own = accuracies[tested]

    def mean_of(clients: Ints) -> float:
        counted = clients[tested[clients]] if len(clients) else clients
        return float(accuracies[counted].mean()) if len(counted) else NAN

    worst = np.sort(own)[: max(1, len(own) // 10)]
    return {
        "client_accuracy_mean": float(own.mean()),
        "client_accuracy_weighted": float(evaluation.client_correct.sum() / evaluation.client_count.sum()),
        "client_accuracy_std": float(own.std()),
        "client_accuracy_worst": float(own.min()),
        "client_accuracy_worst_tenth": float(worst.mean()),
        "participant_accuracy": mean_of(participants),
        "last_iteration_accuracy": mean_of(participants if last_trained is None else last_trained),
    }


def client_accuracies(evaluation: Evaluation) -> Vector | None:
    """Accuracy on each client's own test data, NaN for clients without; None when no client has any."""
    count = evaluation.client_count
    if not count.any():
        return None
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
