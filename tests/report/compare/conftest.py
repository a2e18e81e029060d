"""Results that are made up, so that every number of a comparison can be computed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from muster.core.parameters import ParameterSpec
from muster.selection.history import History
from muster.server.ledger import MODEL_UPDATE, Costs, Ledger
from muster.server.record import RoundRecord, TrainingRecord
from muster.server.result import Result

CLIENTS = 4
#: Numbers of the model: 40 bytes.
PARAMETERS = 10


def made_up(
    name: str,
    seed: int,
    accuracies: Sequence[float],
    *,
    selections: Sequence[Sequence[int]] | None = None,
    costs: Costs | None = None,
    asks: Sequence[tuple[list[str], int, int]] = (),
    disclosed: dict[str, int] | None = None,
    metrics: dict[str, float] | None = None,
    complete: bool = True,
    **config: Any,
) -> Result:
    """A run with one round for each accuracy (NaN: not evaluated); every round costs the same."""
    selections = selections or [[0, 1]] * len(accuracies)
    trained = len(selections[0])
    costs = costs or Costs(trained, 2 * trained, 20 * trained, 0, 40 * trained, 40 * trained, 0.5, 0.0)
    records = [
        RoundRecord(number, [TrainingRecord(list(ids), [1 / len(ids)] * len(ids))], list(asks))
        for number, ids in enumerate(selections, start=1)
    ]
    history = History(CLIENTS)
    for number, (record, accuracy) in enumerate(zip(records, accuracies, strict=True)):
        record.metrics = {"accuracy": accuracy, "loss": 1 - accuracy, **(metrics or {})}
        history.trained(np.array(selections[number]), number)
    ledger = Ledger([costs] * len(records), [{MODEL_UPDATE: trained, **(disclosed or {})} for _ in records])
    settings = {"name": name, "seed": seed, "rounds": len(records), "selection": {"method": name}, **config}
    parameters = np.zeros(PARAMETERS, dtype=np.float32)
    return Result(parameters, records, ledger, history, ParameterSpec(()), complete, name, settings)


@pytest.fixture
def run_of():
    """Makes results of made-up runs."""
    return made_up
