"""On a federation noise protects: it is the node's own, and the owner says how much there must be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

import muster
from muster.engine.task import ClientTask, Place
from muster.flower import wire
from muster.flower.limits import Limits
from muster.flower.server_app import run_on_grid
from muster.flower.wire import Order, WireError
from muster.privacy.noise import private
from muster.signals.labels import LabelHistogram
from muster.signals.losses import Loss

ASKED = "query.label_histogram"


@pytest.fixture
def experiment(six) -> Callable[..., Any]:
    def make(**privacy: Any) -> Any:
        return six(rounds=1, selection={"method": "diversity-score", "clients_per_round": 3}, privacy=privacy)

    return make


def told(grid: Any, experiment: Any) -> tuple[dict[int, np.ndarray], muster.Result]:
    """What every client answered about its labels."""
    answers: dict[int, np.ndarray] = {}

    def keep(reply: Message) -> Message:
        if reply.metadata.message_type == ASKED and reply.has_content():
            record = reply.content.config_records[wire.RECORD]
            answers[int(record["client"])] = np.frombuffer(record["values"], dtype="<f8")
        return reply

    grid.change = dict.fromkeys(grid.contexts, keep)
    return answers, run_on_grid(grid, experiment)


def test_a_server_cannot_subtract_what_a_node_adds(experiment, grid_of):
    """The same config and seed, twice: in simulation the same noise, on a federation another one each time."""
    noisy = experiment(epsilon=1.0)
    one, result = told(grid_of(noisy), noisy)
    other, _ = told(grid_of(noisy), noisy)
    assert sorted(one) == sorted(other) == [0, 1, 2, 3, 4, 5]
    for client in one:
        assert not np.array_equal(one[client], other[client])
        assert one[client].sum() == pytest.approx(other[client].sum())  # the size, which the server knows
    simulated = [muster.run(noisy) for _ in range(2)]
    assert np.array_equal(simulated[0].parameters, simulated[1].parameters)
    assert "with noise" in str(result.ledger.total_disclosed())


def test_without_noise_a_federation_tells_what_a_simulation_tells(experiment, grid_of, assert_same):
    """Only the noise is the node's own: everything else is as it was."""
    plain = experiment()
    answers, result = told(grid_of(plain), plain)
    again, _ = told(grid_of(plain), plain)
    assert all(np.array_equal(answers[client], again[client]) for client in answers)
    assert_same(muster.run(plain), result)


def order_for(signal: Any) -> Order:
    task = ClientTask.of("ask", 0, Place(0, 0, 0), lr=0.1, signals=(signal,))
    return Order("abc", "partition-id=0", task)


@pytest.mark.parametrize(
    ("signal", "said"),
    [
        (LabelHistogram(), "tells nothing without noise, and 'label_histogram'"),
        (Loss(), "tells nothing without noise, and 'loss'"),
        (private(LabelHistogram(), "laplace", 1.5, 0.0, 10), "an epsilon of 1.5"),
        (private(LabelHistogram(), "laplace", float("inf"), 0.0, 10), "an epsilon of inf"),
        (private(LabelHistogram(), "laplace", float("nan"), 0.0, 10), "an epsilon of nan"),
        (private(LabelHistogram(), "laplace", -1.0, 0.0, 10), "an epsilon of -1"),
        (private(LabelHistogram(), "laplace", 0.0, 0.0, 10), "an epsilon of 0"),
        (private(LabelHistogram(), "gaussian", 1.0, 0.9, 10), "a delta of 0.9"),
        (private(LabelHistogram(), "nothing", 1.0, 0.9, 10), "a delta of 0.9"),
    ],
)
def test_an_owner_who_wants_noise_gets_it_or_nothing_leaves(signal, said):
    limits = Limits.of({"max-epsilon": 1.0})
    with pytest.raises(WireError, match=said):
        limits.check_order(order_for(signal))
    Limits.of({}).check_order(order_for(signal))  # nobody asked for noise


def test_noise_as_the_owner_wants_it_passes():
    limits = Limits.of({"max-epsilon": 1.0, "max-delta": 1e-4})
    limits.check_order(order_for(private(LabelHistogram(), "laplace", 1.0, 0.0, 10)))
    limits.check_order(order_for(private(LabelHistogram(), "gaussian", 0.5, 1e-4, 10)))


def test_a_request_with_too_little_noise_is_refused_on_the_node(experiment, grid_of):
    asking = experiment(epsilon=2.0)
    answers, result = told(grid_of(asking, **{"max-epsilon": 1.0}), asking)
    assert not answers
    refused = [event for record in result.records for event in record.events if "epsilon of 2" in event]
    assert len(refused) == 6
    enough = experiment(epsilon=1.0)
    assert len(told(grid_of(enough, **{"max-epsilon": 1.0}), enough)[0]) == 6
