"""On a federation noise protects: it is the node's own, and the owner says how much there must be."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

import muster
from muster.core.errors import ConfigError
from muster.core.parameters import ParameterSpec, SpecEntry
from muster.engine.task import ClientTask, Place
from muster.flower import wire
from muster.flower.limits import Limits
from muster.flower.server_app import run_on_grid
from muster.flower.wire import Order, WireError
from muster.privacy.noise import private
from muster.signals.labels import LabelHistogram
from muster.signals.losses import Loss
from muster.training.base import Plain
from muster.updates.update_noise import UpdateNoise

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


# --- noise on model updates --------------------------------------------------------------------------------------

NOISE = {"method": "update-noise", "norm": 1.0, "epsilon": 1.0, "delta": 1e-5}
OWNER = {"max-epsilon": 1.0}


def updates_of(grid: Any, experiment: Any) -> tuple[dict[int, np.ndarray], muster.Result]:
    """Every model that left a node."""
    models: dict[int, np.ndarray] = {}

    def keep(reply: Message) -> Message:
        if reply.metadata.message_type == wire.TRAIN and reply.has_content():
            client = int(reply.content.config_records[wire.RECORD]["client"])
            models[client] = wire.arrays_of(reply.content, [wire.MODEL], SIZE)[wire.MODEL]
        return reply

    grid.change = dict.fromkeys(grid.contexts, keep)
    return models, run_on_grid(grid, experiment)


#: Parameters of the model of these tests.
SIZE = 64 * 16 + 16 + 16 * 10 + 10


def failures(result: muster.Result) -> list[str]:
    return [why for record in result.records for training in record.trainings for why in training.failed.values()]


def test_noise_on_updates_is_the_nodes_own_on_a_federation_and_repeatable_in_simulation(six, grid_of):
    noisy = six(rounds=1, filters=[NOISE])
    one, _ = updates_of(grid_of(noisy, **OWNER), noisy)
    other, result = updates_of(grid_of(noisy, **OWNER), noisy)
    assert len(one) == 5
    assert one.keys() == other.keys()
    for client, model in one.items():
        assert not np.isclose(model, other[client], atol=1e-3).mean() > 0.01
    simulated = [muster.run(noisy, workers=0) for _ in range(2)]
    assert np.array_equal(simulated[0].parameters, simulated[1].parameters)
    assert result.ledger.privacy.spent() == simulated[0].ledger.privacy.spent()
    assert result.ledger.privacy.total() == (1.0, 1e-5)


@pytest.mark.parametrize(
    ("filters", "owner", "said"),
    [
        ([], OWNER, "wants noise on model updates, and the filters of clients are: none"),
        ([{"method": "clip", "norm": 1.0, "side": "client"}], OWNER, "filters of clients are: client clip"),
        ([{"method": "clip", "norm": 1.0, "side": "client"}, NOISE], OWNER, "client clip, client update-noise"),
        ([NOISE | {"epsilon": 1.5}], OWNER, "model updates are asked for with an epsilon of 1.5"),
        ([NOISE | {"delta": 1e-3}], OWNER, "model updates are asked for with a delta of 0.001"),
        ([NOISE], OWNER | {"max-update-epsilon": 0.5}, "an epsilon of 1"),
        ([NOISE], {"max-update-epsilon": 0.5}, "an epsilon of 1"),
        ([NOISE], {"epsilon-budget": 0.5, "epsilon-book": "is not looked at"}, "an epsilon of 1"),
    ],
)
def test_a_training_without_the_noise_that_the_owner_wants_is_refused_on_the_node(
    six, grid_of, filters, owner, said
):
    experiment = six(rounds=1, filters=filters)
    models, result = updates_of(grid_of(experiment, **owner), experiment)
    assert not models
    assert len(failures(result)) == 5
    assert all(said in why for why in failures(result))


@pytest.mark.parametrize(
    ("filters", "owner"),
    [
        ([NOISE], OWNER),
        ([NOISE | {"epsilon": 8.0}], OWNER | {"max-update-epsilon": 8.0}),
        ([], OWNER | {"allow-updates": True}),
        ([], {}),
    ],
)
def test_a_training_with_the_noise_that_the_owner_wants_is_done(six, grid_of, filters, owner):
    experiment = six(rounds=1, filters=filters)
    models, result = updates_of(grid_of(experiment, **owner), experiment)
    assert len(models) == 5
    assert not failures(result)


def test_a_second_vector_without_noise_does_not_leave(six, grid_of):
    scaffold = six(rounds=1, filters=[NOISE], aggregation={"method": "scaffold"}, algorithm={"method": "scaffold"})
    models, result = updates_of(grid_of(scaffold, **OWNER), scaffold)
    assert not models
    assert all("'control_change' would have none" in why for why in failures(result))


def test_running_statistics_do_not_leave_whatever_the_server_has_checked():
    spec = ParameterSpec((SpecEntry("weight", (4,), 0, 4),), buffers=(SpecEntry("bn.mean", (2,), 4, 6),))
    with pytest.raises(WireError, match="running statistics"):
        Limits.of(OWNER).check_update([UpdateNoise(1.0, 1.0)], Plain(), spec)
    with pytest.raises(WireError, match="norm is inf"):
        Limits.of(OWNER).check_update([UpdateNoise(float("inf"), 1.0)], Plain(), spec)


def test_updates_count_in_the_nodes_own_account(six, grid_of, tmp_path):
    """Two trainings are paid for, the third is not."""
    experiment = six(rounds=3, filters=[NOISE], selection={"method": "random", "clients_per_round": 6})
    grid, book = grid_of(experiment), tmp_path / "book.json"
    first = min(grid.contexts)
    grid.contexts[first].node_config |= {"epsilon-budget": 2.0, "epsilon-book": str(book)}
    result = run_on_grid(grid, experiment)
    (why,) = failures(result)
    assert "has told all that its owner allows: with this answer epsilon would be 3" in why
    assert json.loads(book.read_text()) == {"1.0": 2}
    assert len(result.records[2].trainings[0].clients) == 5


def test_an_owner_says_one_thing_about_updates():
    with pytest.raises(ConfigError, match="max-update-epsilon and allow-updates"):
        Limits.of({"max-update-epsilon": 1.0, "allow-updates": True})
