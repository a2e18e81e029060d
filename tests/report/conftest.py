"""Results that are made by hand, for tables and pictures whose numbers are known."""

from __future__ import annotations

import numpy as np
import pytest

from muster.history import History
from muster.ledger import Costs, Ledger
from muster.parameters import ParameterSpec
from muster.record import RoundRecord, TrainingRecord
from muster.result import Result


@pytest.fixture
def made():
    """Makes a result from accuracies (one a round) and selections (for each round, the clients of each training)."""
    return make_result


def make_result(
    name="a",
    seed=0,
    accuracies=(0.2, 0.5, 0.8),
    selections=None,
    clients=6,
    virtual_seconds=0.0,
    client_accuracy=None,
    clusters=None,
    complete=True,
    **config,
) -> Result:
    selections = selections or [[[round % clients, (round + 2) % clients]] for round in range(len(accuracies))]
    history, records, costs = History(clients), [], []
    for number, (accuracy, trainings) in enumerate(zip(accuracies, selections, strict=True)):
        record = RoundRecord(
            number + 1,
            [TrainingRecord(list(ids), [1 / len(ids)] * len(ids)) for ids in trainings],
            metrics={"accuracy": accuracy, "loss": 1 - accuracy},
        )
        if clusters is not None:
            record.notes["clusters"] = list(clusters[number])
        if client_accuracy is not None:
            record.client_accuracy = np.array(client_accuracy, dtype=np.float32)
        for ids in trainings:
            history.trained(np.array(ids), number)
        trained = sum(map(len, trainings))
        costs.append(
            Costs(
                client_trainings=trained,
                bytes_down=1000 * trained,
                bytes_up=1000 * trained,
                virtual_seconds=virtual_seconds,
            )
        )
        records.append(record)
    settings = {"name": name, "seed": seed, "rounds": len(accuracies), "data": {"source": "digits"}, **config}
    return Result(
        parameters=np.zeros(4, dtype=np.float32),
        records=records,
        ledger=Ledger(costs, [{} for _ in costs]),
        history=history,
        spec=ParameterSpec(()),
        complete=complete,
        name=name,
        config=settings,
    )
