"""MusterStrategy on a Flower app that knows nothing of Muster."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits
from torch import nn

from muster.aggregation.fedavg import FedAvg
from muster.aggregation.median import Median
from muster.aggregation.scaffold import Scaffold
from muster.core.errors import ConfigError, EngineError
from muster.flower import MusterStrategy
from muster.flower.records import spec_of_arrays, to_arrays, to_vector
from muster.pacing import Synchronous
from muster.pacing.buffered import Buffered
from muster.selection.base import Ask, Plan, Selector, Train, View
from muster.selection.power_of_choice import PowerOfChoice
from muster.selection.random import RandomSelection
from muster.selection.terraform import Terraform
from muster.server.limits import ClientLimits
from muster.server.loop import Observer
from muster.signals.losses import Loss
from muster.updates.attacks.ipm import InnerProductManipulation
from muster.updates.attacks.sign_flip import SignFlip
from muster.updates.clip import Clip
from muster.updates.guard import Guard

CLIENTS = 5
FEATURES, LABELS = load_digits(return_X_y=True)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.norm, self.out = nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.norm(self.hidden(x))))


def own_data(context: Context) -> tuple[torch.Tensor, torch.Tensor]:
    k = int(context.node_config["partition-id"])
    rows = slice(60 * k, 60 * k + 20 + 10 * k)
    return torch.tensor(FEATURES[rows], dtype=torch.float32) / 16, torch.tensor(LABELS[rows])


def loaded(message: Message) -> Net:
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return net


app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    net, (x, y) = loaded(message), own_data(context)
    optimizer = torch.optim.SGD(net.parameters(), lr=message.content["config"]["lr"])
    for _ in range(3):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(y), "train_loss": loss.item()})
    return Message(RecordDict({"model": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    net, (x, y) = loaded(message).eval(), own_data(context)
    with torch.no_grad():
        accuracy = (net(x).argmax(dim=1) == y).float().mean().item()
    metrics = MetricRecord({"num-examples": len(y), "accuracy": accuracy})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


@app.query("loss")
def loss(message: Message, context: Context) -> Message:
    net, (x, y) = loaded(message).eval(), own_data(context)
    with torch.no_grad():
        value = nn.functional.cross_entropy(net(x), y).item()
    return Message(RecordDict({"metrics": MetricRecord({"loss": value})}), reply_to=message)


@pytest.fixture
def initial():
    torch.manual_seed(0)
    return ArrayRecord(Net().state_dict())


@pytest.fixture
def grid(grid_of):
    return grid_of(None, CLIENTS, app=app)


CONFIG = ConfigRecord({"lr": 0.5})


def test_the_mean_is_that_of_the_models_weighted_by_examples(grid, initial):
    strategy = MusterStrategy(RandomSelection(clients_per_round=CLIENTS), FedAvg())
    end = strategy.start(grid, initial, num_rounds=1, train_config=CONFIG)
    trained = [m for m in grid.log if m.metadata.message_type == "train"]
    assert len(trained) == CLIENTS
    replies = [app(m, grid.contexts[m.metadata.dst_node_id]).content for m in trained]
    weights = np.array([reply["metrics"]["num-examples"] for reply in replies], dtype=float)
    for name, array in end.arrays.items():
        rows = np.stack([reply["model"][name].numpy() for reply in replies])
        if name.endswith("num_batches_tracked"):
            assert array.numpy() == 3
            continue
        mean = np.tensordot(weights / weights.sum(), rows, 1)
        assert np.allclose(array.numpy(), mean, atol=1e-6), name
        assert array.numpy().dtype == rows.dtype
    assert list(end.arrays) == list(initial)


def boasting(reply: Message) -> Message:
    if "model" in reply.content:
        reply.content.metric_records["metrics"]["num-examples"] = 10**9
    return reply


def test_a_node_that_states_a_huge_count_is_bounded(grid, initial):
    liar = min(grid.online)
    grid.change[liar] = boasting
    chosen = RandomSelection(clients_per_round=CLIENTS)
    free = MusterStrategy(chosen, FedAvg()).start(grid, initial, num_rounds=1, train_config=CONFIG)
    assert max(free.result.records[0].trainings[0].weights) > 0.999
    limited = MusterStrategy(chosen, FedAvg(), limits=ClientLimits(max_samples=10))
    record = limited.start(grid, initial, num_rounds=1, train_config=CONFIG).result.records[0]
    np.testing.assert_allclose(record.trainings[0].weights, 1 / CLIENTS)
    assert "client 0 states 1,000,000,000 samples and counts as 10" in record.events


def test_a_node_that_states_a_huge_count_does_not_decide_an_evaluation(grid, initial):
    def hopeless(reply: Message) -> Message:
        if reply.metadata.message_type == "evaluate":
            reply.content.metric_records["metrics"].update({"num-examples": 10**9, "accuracy": -5.0})
        return reply

    grid.change[min(grid.online)] = hopeless
    chosen = RandomSelection(clients_per_round=CLIENTS)
    found = [
        MusterStrategy(chosen, limits=limits).start(grid, initial, num_rounds=1, train_config=CONFIG).result
        for limits in (None, ClientLimits(max_samples=10))
    ]
    free, limited = (result.records[0].metrics["accuracy"] for result in found)
    assert free < -4.99
    assert -1 <= limited <= -0.2


def test_a_median_of_counts_that_are_not_known_yet_is_refused(grid, initial):
    strategy = MusterStrategy(RandomSelection(clients_per_round=2), limits=ClientLimits(max_samples_over_median=2))
    with pytest.raises(ConfigError, match="cannot bound sample counts by their median"):
        strategy.start(grid, initial)


@dataclass
class Levelling(Selector):
    """Every client has its own learning rate."""

    def round(self, fed: View) -> Plan:
        yield Train(fed.available, lr_factors=1.0 + fed.available)


def test_clients_are_told_learning_rates_of_their_own(grid, initial):
    MusterStrategy(Levelling(), min_nodes=CLIENTS).start(grid, initial, num_rounds=1, train_config=CONFIG)
    told = [m.content["config"]["lr"] for m in grid.log if m.metadata.message_type == "train"]
    assert sorted(told) == [0.5, 1.0, 1.5, 2.0, 2.5]


def test_learning_rates_of_their_own_need_an_app_that_is_told_one(grid, initial):
    with pytest.raises(ConfigError, match="individual learning rates"):
        MusterStrategy(Levelling()).start(grid, initial, num_rounds=1)


def test_three_rounds_learn_and_are_recorded(grid, initial):
    end = MusterStrategy(RandomSelection(clients_per_round=3), seed=1).start(grid, initial, 6, train_config=CONFIG)
    accuracies = end.result.series("accuracy")[1]
    assert len(accuracies) == 6
    assert accuracies[-1] > accuracies[0]
    assert all(len(round) == 1 and len(round[0]) == 3 for round in end.result.selections)
    rounds = {int(m.content["config"]["server-round"]) for m in grid.log if m.metadata.message_type == "train"}
    assert rounds == {1, 2, 3, 4, 5, 6}


def test_signals_in_updates_need_nothing_of_the_client(grid, initial):
    strategy = MusterStrategy(Terraform(clients_per_round=CLIENTS, min_clients=2), Median())
    end = strategy.start(grid, initial, num_rounds=2, train_config=CONFIG)
    assert any(len(round) > 1 for round in end.result.selections)
    assert np.isfinite(end.result.history.last("final_layer_norm")).all()


def test_a_signal_that_clients_do_not_answer_is_refused_before_round_1(grid, initial):
    with pytest.raises(ConfigError, match="need the signal 'loss'"):
        MusterStrategy(PowerOfChoice(clients_per_round=2)).start(grid, initial)
    assert not grid.log


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"selector": "terraform"}, "selector=…): 'terraform'"),
        ({"selector": PowerOfChoice}, "make one: PowerOfChoice(…)"),
        ({"selector": PowerOfChoice(2), "aggregator": "simprox"}, "aggregator=…): 'simprox'"),
    ],
)
def test_what_is_no_method_is_refused_before_round_1(grid, initial, given, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        MusterStrategy(**given).start(grid, initial)
    assert not grid.log


class Worst(Selector):
    """Asks for losses without declaring that it will."""

    def round(self, fed: View) -> Plan:
        losses = yield Ask(fed.available, (Loss(),))
        yield Train(losses.clients[:2])


def test_a_signal_that_was_not_declared_is_refused_before_it_is_asked_for(grid, initial):
    with pytest.raises(ConfigError, match="need the signal 'loss'"):
        MusterStrategy(Worst()).start(grid, initial)
    assert not grid.log
    end = MusterStrategy(Worst(), signals=["loss"]).start(grid, initial, num_rounds=1, train_config=CONFIG)
    assert end.result.complete


def test_a_signal_that_clients_answer_can_be_used(grid, initial):
    strategy = MusterStrategy(PowerOfChoice(clients_per_round=2), signals=["loss"])
    end = strategy.start(grid, initial, num_rounds=2, train_config=CONFIG)
    assert np.isfinite(end.result.history.last("loss")).sum() >= 2


def test_aggregation_that_needs_another_client_is_refused(grid, initial):
    with pytest.raises(ConfigError, match="needs clients that run scaffold"):
        MusterStrategy(RandomSelection(clients_per_round=2), Scaffold()).start(grid, initial)


def test_filters_of_the_server_act_on_updates(grid, initial):
    start = to_vector(initial, spec := spec_of_arrays(initial))
    strategy = MusterStrategy(RandomSelection(clients_per_round=CLIENTS), FedAvg(), filters=[Clip(norm=0.01)])
    end = strategy.start(grid, initial, num_rounds=1, train_config=CONFIG)
    (training,) = end.result.records[0].trainings
    assert training.filtered == {"clip": {"seen": CLIENTS, "changed": CLIENTS, "refused": 0}}
    moved = (to_vector(end.arrays, spec) - start)[spec.trainable]
    assert 0 < np.linalg.norm(moved) <= 0.01 * (1 + 1e-5)


def test_the_guard_refuses_updates_that_are_too_long(grid, initial):
    strategy = MusterStrategy(RandomSelection(clients_per_round=CLIENTS), guard=Guard(max_norm=1e-3))
    end = strategy.start(grid, initial, num_rounds=1, train_config=CONFIG)
    assert [client for _, client, reason in end.result.rejected if "beyond the bound" in reason] == [
        *range(CLIENTS)
    ]


def test_attackers_that_act_together_are_drawn_among_the_nodes(grid, initial):
    attack = InnerProductManipulation(share=0.4)
    strategy = MusterStrategy(RandomSelection(clients_per_round=CLIENTS), Median(), filters=[attack])
    end = strategy.start(grid, initial, num_rounds=1, train_config=CONFIG)
    assert end.result.records[0].trainings[0].filtered["ipm"] == {"seen": CLIENTS, "changed": 2, "refused": 0}


@pytest.mark.parametrize("step", [Clip(norm=1.0, side="client"), SignFlip(clients=(0,))], ids=["clip", "attack"])
def test_filters_of_the_client_are_refused_before_round_1(grid, initial, step):
    strategy = MusterStrategy(RandomSelection(clients_per_round=2), filters=[step], min_nodes=CLIENTS + 1)
    with pytest.raises(ConfigError, match="acts on clients, and your own client app does not run it"):
        strategy.start(grid, initial)
    assert not grid.log


def test_only_the_synchronous_pacing_is_kept(grid, initial):
    select = RandomSelection(clients_per_round=2)
    with pytest.raises(ConfigError, match="cannot keep the pacing 'buffered'"):
        MusterStrategy(select, pacing=Buffered(in_flight=2), min_nodes=CLIENTS + 1).start(grid, initial)
    assert not grid.log
    end = MusterStrategy(select, pacing=Synchronous()).start(grid, initial, 1, train_config=CONFIG)
    assert end.result.complete


def test_the_server_may_evaluate(grid, initial):
    seen = []

    def judge(round: int, arrays: ArrayRecord) -> MetricRecord:
        seen.append(round)
        return MetricRecord({"accuracy": 0.25 * round})

    strategy = MusterStrategy(RandomSelection(clients_per_round=2), federated_evaluation=False)
    end = strategy.start(grid, initial, 2, train_config=CONFIG, evaluate_fn=judge)
    assert seen == [1, 2]
    assert end.result.final() == 0.5
    assert not [m for m in grid.log if m.metadata.message_type == "evaluate"]


@pytest.mark.parametrize("said", [np.nan, np.inf, 1e300, None])
def test_one_client_does_not_take_a_metric_from_the_others(grid, initial, said):
    """None: it leaves the metric out."""
    strategy = MusterStrategy(RandomSelection(clients_per_round=CLIENTS))

    def change(reply: Message) -> Message:
        if reply.metadata.message_type == "evaluate":
            metrics = reply.content.metric_records["metrics"]
            if said is None:
                del metrics["accuracy"]
            else:
                metrics["accuracy"] = said
        return reply

    grid.change[min(grid.online)] = change
    end = strategy.start(grid, initial, 1, train_config=CONFIG)
    assert 0 < end.result.final() <= 1
    refused = [e for e in end.result.records[0].events if "did not evaluate: its metric 'accuracy' is" in e]
    assert len(refused) == (said is not None)


#: An array whose bytes say that they are 2^46 numbers.
ENDLESS = Array(np.zeros(10, np.float32))
ENDLESS.data = ENDLESS.data.replace(b"(10,), }" + b" " * 12, b"(70368744177664,), }")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda c: c["metrics"].pop("num-examples"), "num-examples"),
        (lambda c: c["model"].pop("out.bias"), "not those of the model"),
        (lambda c: c["model"].update({"out.bias": Array(np.zeros(3, np.float32))}), "shape"),
        (lambda c: c["model"].update({"out.bias": Array(np.full(10, np.nan, np.float32))}), "non-finite"),
        (lambda c: c["model"].update({"out.bias": ENDLESS}), "turns out to be float32 of shape"),
    ],
    ids=["no examples", "array missing", "wrong shape", "not finite", "endless"],
)
def test_bad_replies_are_recorded_and_the_run_goes_on(grid, initial, spoil, why):
    def change(reply: Message) -> Message:
        if "model" in reply.content:
            spoil(reply.content)
        return reply

    bad = min(grid.online)
    grid.change[bad] = change
    end = MusterStrategy(RandomSelection(clients_per_round=CLIENTS)).start(grid, initial, 2, train_config=CONFIG)
    assert [(round, client) for round, client, reason in end.result.rejected if why in reason] == [(1, 0), (2, 0)]
    assert end.result.selections == [[[1, 2, 3, 4]]] * 2


def test_newcomers_get_ids_behind_the_others(grid, initial):
    class Join(Observer):
        def round_ended(self, record, ledger) -> None:
            if record.round == 1:
                grid.add(app, {"partition-id": CLIENTS}, node=1)

    strategy = MusterStrategy(RandomSelection(clients_per_round=CLIENTS + 1), observers=[Join()])
    with pytest.raises(EngineError, match="5 of 6 nodes are there"):
        replace(strategy, wait=0.1).start(grid, initial, 2, train_config=CONFIG)
    strategy.selector = RandomSelection(clients_per_round=CLIENTS)
    end = strategy.start(grid, initial, 8, train_config=CONFIG)
    assert end.result.history.clients == CLIENTS + 1
    assert end.result.history.trainings[CLIENTS] > 0


def test_without_nodes_it_says_so(grid, initial):
    grid.online.clear()
    with pytest.raises(EngineError, match=r"0 of 2 nodes are there after 0\.2 s"):
        MusterStrategy(RandomSelection(clients_per_round=2), wait=0.2).start(grid, initial)


def test_arrays_make_a_round_trip(initial):
    spec = spec_of_arrays(initial)
    assert spec.final_layer_name == "out"
    assert [entry.name for entry in spec.buffers] == ["norm.running_mean", "norm.running_var"]
    assert [entry.name for entry in spec.counters] == ["norm.num_batches_tracked"]
    dtypes = {name: str(array.dtype) for name, array in initial.items()}
    back = to_arrays(to_vector(initial, spec), spec, dtypes)
    for name in initial:
        assert np.array_equal(back[name].numpy(), initial[name].numpy())
        assert back[name].dtype == initial[name].dtype


def test_a_named_final_layer_must_exist(initial):
    with pytest.raises(ConfigError, match="no layer 'head'"):
        spec_of_arrays(initial, "head")
