"""Nodes that state more than they have: counts are bounded, and checked against what nodes are seen to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, Message

from muster.config.flower import FlowerOptions
from muster.core.errors import ConfigError, EngineError
from muster.data.federated import Samples
from muster.engine.base import TrainOrder
from muster.engine.task import Place
from muster.experiment.parts import build_ingredients
from muster.flower import wire
from muster.flower.client_app import make_client_app
from muster.flower.engine import FlowerEngine
from muster.flower.server_app import run_on_grid
from muster.flower.wire import Scores, number_bytes
from muster.server.record import RoundRecord

OWN = {
    "data": {"source": "own", "shape": [5], "classes": 3},
    "partition": {},
    "selection": {"method": "random", "clients_per_round": 3},
    "flower": {"nodes": 3, "evaluate": "clients", "poll": 0.01, "wait": 0.5},
}
LIAR = "b"


def own_clients(context):
    rng = np.random.default_rng(int(context.node_config["seed"]))
    labels = rng.integers(0, 3, 40)
    features = (rng.normal(size=(40, 5)) + 4 * np.eye(5)[labels]).astype(np.float32)
    return Samples(features, labels), Samples(features[:10], labels[:10])


def grid_with_a_liar(grid_of, experiment, change):
    """Three nodes with 40 samples each, of which the second changes its replies."""
    app = make_client_app(experiment, client_data=own_clients)
    grid = grid_of(None, 0, app=app)
    for number, name in enumerate(["a", LIAR, "c"]):
        node = grid.add(app, {"name": name, "seed": number})
        if name == LIAR:
            grid.change[node] = change
    return grid


def claiming(size: int, **in_training: int):
    """Replies of a node that introduces itself with another number of samples."""

    def change(reply: Message) -> Message:
        record: Any = reply.content[wire.RECORD]
        if reply.metadata.message_type == wire.REGISTER:
            record["size"] = size
        elif reply.metadata.message_type == wire.TRAIN:
            record.update(in_training)
        return reply

    return change


def test_a_huge_count_is_seen_through_by_the_work_that_it_would_take(tiny, grid_of):
    experiment = tiny(rounds=2, **OWN)
    result = run_on_grid(grid_with_a_liar(grid_of, experiment, claiming(10**9)), experiment)
    assert [(round, client) for round, client, _ in result.rejected] == [(1, 1), (2, 1)]
    assert "it trained on 40 samples, but the number it states amounts to 1e+09" in result.rejected[0][2]
    for record in result.records:
        assert record.trainings[0].clients == [0, 2]


def test_a_consistent_liar_is_bounded_by_the_median(tiny, grid_of):
    """It claims as much work as its count asks for: only a bound on counts or weights helps."""
    free = tiny(rounds=1, **OWN)
    lie = claiming(10**9, samples=10**9, steps=10**9 // free.training["batch_size"])
    weights = run_on_grid(grid_with_a_liar(grid_of, free, lie), free).records[0].trainings[0].weights
    assert weights[1] > 0.999
    limited = tiny(rounds=1, limits={"max_samples_over_median": 2}, **OWN)
    record = run_on_grid(grid_with_a_liar(grid_of, limited, lie), limited).records[0]
    np.testing.assert_allclose(record.trainings[0].weights, [0.25, 0.5, 0.25])
    assert "client 1 states 1,000,000,000 samples and counts as 80" in record.events
    capped = tiny(rounds=1, aggregation={"method": "fedavg", "max_weight": 0.4}, **OWN)
    record = run_on_grid(grid_with_a_liar(grid_of, capped, lie), capped).records[0]
    np.testing.assert_allclose(record.trainings[0].weights, [0.3, 0.4, 0.3])


def test_beyond_the_absolute_bound_a_node_is_not_taken_in_and_that_is_said(tiny, grid_of):
    section = {"limits": {"max_samples": 1000}}
    experiment = tiny(rounds=1, **OWN, **section)
    grid = grid_with_a_liar(grid_of, experiment, claiming(1001))
    with pytest.raises(EngineError, match="2 of 3 nodes are ready") as caught:
        run_on_grid(grid, experiment)
    assert "states 1001 samples, more than limits.max_samples = 1000: refused" in str(caught.value)
    fewer = {"selection": {"method": "random", "clients_per_round": 2}, "flower": {**OWN["flower"], "nodes": 2}}
    two = tiny(rounds=1, **{**OWN, **fewer}, **section)
    result = run_on_grid(grid_with_a_liar(grid_of, two, claiming(1001)), two)
    assert result.history.clients == 2
    assert any("limits.max_samples" in event for event in result.records[0].events)


def test_the_bound_holds_for_test_samples_too(tiny, grid_of):
    """Where clients evaluate, each counts as much as the test samples that it states."""
    experiment = tiny(rounds=1, limits={"max_samples": 1000}, **OWN)

    def change(reply: Message) -> Message:
        if reply.metadata.message_type == wire.REGISTER:
            reply.content.config_records[wire.RECORD]["tested"] = 10**9
        return reply

    with pytest.raises(EngineError, match=r"states 1000000000 samples, more than limits\.max_samples = 1000"):
        run_on_grid(grid_with_a_liar(grid_of, experiment, change), experiment)


def test_one_node_does_not_decide_an_evaluation(tiny, grid_of):
    """It states a million test samples, all of them wrong; the others have ten each."""
    wrong = np.array([[0, 10**6, 0], [0, 0, 0], [0, 0, 0]])

    def change(reply: Message) -> Message:
        record: Any = reply.content[wire.RECORD]
        if reply.metadata.message_type == wire.REGISTER:
            record["tested"] = 10**6
        elif reply.metadata.message_type == wire.EVALUATE:
            record.update(Scores(wrong, 3e6).to_fields())
        return reply

    def last(**limits: float) -> RoundRecord:
        experiment = tiny(rounds=1, limits=limits, **OWN)
        return run_on_grid(grid_with_a_liar(grid_of, experiment, change), experiment).records[0]

    assert last().metrics["accuracy"] < 1e-4
    bounded = last(max_samples_over_median=2)
    others = bounded.metrics["accuracy"] * 40 / 20
    assert 0.25 < others <= 1.0
    assert others * 20 == pytest.approx(round(others * 20))
    assert "client 1 states 1,000,000 test samples and counts as 20" in bounded.events
    assert bounded.client_accuracy[1] == 0.0


def test_samples_need_the_steps_to_train_on_them(tiny, grid_of):
    """FedNova, and signals per step, would take few steps for a client that goes far with each."""
    experiment = tiny(rounds=1, training={"batch_size": 7}, **OWN)
    result = run_on_grid(grid_with_a_liar(grid_of, experiment, claiming(40, steps=5)), experiment)
    assert "it trained on 40 samples in 5 steps, but a step has at most 7" in result.rejected[0][2]


@pytest.mark.parametrize("claimed", [1e17, 1e-300, 1.0])
def test_local_work_must_be_what_the_steps_add_up_to(tiny, grid_of, claimed):
    """FedNova multiplies everybody's movements by the mean work, and each client's by the inverse of its own."""
    training = {"lr": 0.1, "momentum": 0.5, "epochs": 2, "batch_size": 7}
    experiment = tiny(rounds=2, aggregation={"method": "fednova"}, training=training, **OWN)

    def change(reply: Message) -> Message:
        if reply.metadata.message_type == wire.TRAIN:
            record: Any = reply.content[wire.RECORD]
            record["values"] = number_bytes(np.array([claimed]))
        return reply

    result = run_on_grid(grid_with_a_liar(grid_of, experiment, change), experiment)
    assert [record.trainings[0].clients for record in result.records] == [[0, 2]] * 2
    assert f"its 'local_progress' is {claimed:g}, but its steps amount to 2" in result.rejected[0][2]


@pytest.mark.parametrize("credit", ["batches", "epoch"])
@pytest.mark.parametrize("optimizer_state", ["fresh", "kept"])
def test_honest_work_after_a_probe_is_believed(six, grid_of, credit, optimizer_state):
    probe = {"credit": credit, "optimizer_state": optimizer_state}
    experiment = six(
        selection={"method": "probe-fairness", "clients_per_round": 3, **probe},
        aggregation={"method": "fednova"},
        algorithm={"method": "fedprox", "mu": 0.1},
        training={"lr": 0.05, "momentum": 0.9, "epochs": 2, "batch_size": 8, "weight_decay": 0.01},
    )
    result = run_on_grid(grid_of(experiment), experiment)
    assert not result.rejected
    assert all(record.trainings[0].clients for record in result.records)


def test_after_a_probe_the_rest_of_the_training_is_still_due(six, grid_of):
    selection = {"method": "probe-fairness", "clients_per_round": 6}
    experiment = six(selection=selection, training={"lr": 0.05, "epochs": 3, "batch_size": 8})
    grid = grid_of(experiment)

    def change(reply: Message) -> Message:
        if reply.metadata.message_type == wire.TRAIN:
            reply.content.config_records[wire.RECORD].update(samples=0, steps=0)
        return reply

    grid.change[grid.get_node_ids()[0]] = change
    result = run_on_grid(grid, experiment)
    assert {why.split(",")[0] for _, _, why in result.rejected} == {
        "its answer was refused: it trained on 0 samples"
    }


def test_steps_of_a_probe_that_nobody_asked_for_are_no_excuse(tiny, grid_of):
    experiment = tiny(rounds=1, **OWN)
    grid = grid_with_a_liar(grid_of, experiment, claiming(10**6, credited_steps=3))
    result = run_on_grid(grid, experiment)
    assert "a probe that was not asked for" in result.rejected[0][2]


def test_label_counts_must_add_up_to_the_stated_samples(tiny, grid_of):
    changes = {**OWN, "selection": {"method": "fedcbs", "clients_per_round": 2}}
    experiment = tiny(rounds=2, **changes)

    def change(reply: Message) -> Message:
        if reply.metadata.message_type == "query.label_histogram":
            record: Any = reply.content[wire.RECORD]
            record["values"] = number_bytes(np.array([1e12, 0.0, 0.0]))
        return reply

    result = run_on_grid(grid_with_a_liar(grid_of, experiment, change), experiment)
    said = [event for record in result.records for event in record.events if "adds up to" in event]
    assert said[0] == (
        "client 1 was asked in vain: its answer was refused: its 'label_histogram' adds up to 1e+12 samples, "
        "but it claims to have 40"
    )
    assert result.history.failures[1] >= 1


def test_an_answer_weighs_what_its_client_stated_when_it_got_the_order(tiny, grid_of):
    """A count that is stated while the answer is under way was not checked against its work."""
    experiment = tiny(rounds=1, **OWN)
    grid = grid_with_a_liar(grid_of, experiment, lambda reply: reply)
    options = FlowerOptions(**OWN["flower"])
    engine = FlowerEngine(grid, build_ingredients(experiment), options)
    order = TrainOrder(np.arange(3), engine.initial_parameters(), Place(0, 0, 0), lr=0.1)
    engine.start(order)
    engine._registry.sizes[1] = 10**9
    assert engine.population.sizes[1] == 10**9
    assert [int(part.sizes[0]) for part in engine.collect()] == [40, 40, 40]


def test_a_control_variate_that_is_no_number_does_not_reach_the_others(tiny, grid_of):
    """Every later order carries the mean of all variates: one NaN would end the training of all."""
    scaffold = {"aggregation": {"method": "scaffold"}, "algorithm": {"method": "scaffold"}}
    experiment = tiny(rounds=3, **OWN, **scaffold)

    def change(reply: Message) -> Message:
        if reply.metadata.message_type == wire.TRAIN:
            arrays = reply.content.array_records[wire.ARRAYS]
            arrays["control_change"] = Array(np.full_like(arrays["control_change"].numpy(), np.nan))
        return reply

    result = run_on_grid(grid_with_a_liar(grid_of, experiment, change), experiment)
    assert [record.trainings[0].clients for record in result.records] == [[0, 2]] * 3
    assert {why for _, _, why in result.rejected} == {
        "its 'control_change' has numbers that are not within ±1e+18"
    }


def test_no_server_can_spoil_a_nodes_data(six, grid_of):
    experiment = six(filters=[{"method": "label-flip", "clients": [1]}])
    with pytest.raises(ConfigError, match="simulate it with `muster run`"):
        run_on_grid(grid_of(six()), experiment)
