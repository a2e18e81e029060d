"""Results that are made by hand, for tables and pictures whose numbers are known."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from muster.history import History
from muster.ledger import Costs, Ledger
from muster.parameters import ParameterSpec
from muster.record import RoundRecord, TrainingRecord
from muster.result import Result

#: A model of ten numbers.
MODEL_BYTES = 40


@pytest.fixture
def run_of():
    """Makes a run of four clients: two train in each round unless `selections` says otherwise."""

    def make(name, seed, accuracies, *, selections=None, costs=None, disclosed=None, **options) -> Result:
        selections = selections or [[0, 1]] * len(accuracies)
        result = _result(name, seed, accuracies, trainings=[[ids] for ids in selections], clients=4, **options)
        if costs is not None:
            result.ledger.rounds[:] = [costs] * len(accuracies)
        result.ledger.disclosed[:] = [dict(disclosed or {}) for _ in accuracies]
        return result

    return make


@pytest.fixture
def made():
    """Makes a run of six clients; `selections` has, for each round, the clients of each training."""

    def make(
        name="a", seed=0, accuracies=(0.2, 0.5, 0.8), *, selections=None, clients=6, seconds=0.0, **options
    ) -> Result:
        turns = range(len(accuracies))
        trainings = selections or [[[turn % clients, (turn + 2) % clients]] for turn in turns]
        result = _result(name, seed, accuracies, trainings=trainings, clients=clients, **options)
        for costs in result.ledger.rounds:
            costs.virtual_seconds = seconds
        return result

    return make


def _result(
    name: str,
    seed: int,
    accuracies: list[float],
    *,
    trainings: list[list[list[int]]],
    clients: int,
    metrics: dict[str, float] | None = None,
    asks: list[Any] | None = None,
    clusters: list[list[int]] | None = None,
    complete: bool = True,
    **config: Any,
) -> Result:
    history, records, costs = History(clients), [], []
    for number, (accuracy, own) in enumerate(zip(accuracies, trainings, strict=True)):
        measured = {"accuracy": accuracy, "loss": 1 - accuracy, **(metrics or {})}
        trained = [TrainingRecord(list(ids), [1 / len(ids)] * len(ids)) for ids in own]
        records.append(RoundRecord(number + 1, trained, list(asks or []), measured))
        if clusters is not None:
            records[-1].notes["clusters"] = list(clusters[number])
        for ids in own:
            history.trained(np.unique(ids), number)
        times = sum(map(len, own))
        costs.append(Costs(times, bytes_down=MODEL_BYTES * times, bytes_up=MODEL_BYTES * times))
    return Result(
        parameters=np.zeros(MODEL_BYTES // 4, dtype=np.float32),
        records=records,
        ledger=Ledger(costs, [{} for _ in costs]),
        history=history,
        spec=ParameterSpec(()),
        complete=complete,
        name=name,
        config={"name": name, "seed": seed, "rounds": len(accuracies), "selection": {"method": name}} | config,
    )
