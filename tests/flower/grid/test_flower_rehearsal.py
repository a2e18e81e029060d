"""A rehearsal: a Flower app with its own strategy or Muster's, in one process."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg as FlowersFedAvg
from flwr.supercore.task_identity import TaskIdentity

from muster.core.errors import ConfigError
from muster.flower import MusterStrategy, rehearse
from muster.selection.random import RandomSelection

client_app = ClientApp()


@client_app.train()
def train(message, context):
    """Moves the model to the node's number; one node always fails."""
    number = context.node_config["partition-id"]
    if number == context.node_config.get("broken"):
        raise RuntimeError("out of order")
    context.state["count"] = MetricRecord(
        {"times": context.state.metric_records.get("count", {"times": 0})["times"] + 1}
    )
    arrays = ArrayRecord({"weight": torch.full((2, 3), float(number))})
    metrics = MetricRecord({"num-examples": 10, "times": context.state["count"]["times"]})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@client_app.evaluate()
def evaluate(message, context):
    content = RecordDict({"metrics": MetricRecord({"num-examples": 10, "accuracy": 0.5})})
    return Message(content, reply_to=message)


def served(strategy, nodes=6, rounds=2, **options):
    ends = []
    app = ServerApp()

    @app.main()
    def main(grid, context):
        arrays = ArrayRecord({"weight": torch.zeros(2, 3)})
        ends.append(
            (strategy.start(grid, arrays, num_rounds=rounds, train_config=ConfigRecord({"lr": 1.0})), context)
        )

    rehearse(app, client_app, nodes, **options)
    return ends[0]


def weight(arrays) -> float:
    return float(arrays["weight"].numpy()[0, 0])


@pytest.mark.flower
@pytest.mark.parametrize(
    "strategy",
    [FlowersFedAvg(min_available_nodes=6), MusterStrategy(RandomSelection(6))],
    ids=["Flower's", "Muster's"],
)
def test_every_node_is_there_with_its_own_configuration(strategy):
    end, _ = served(strategy)
    assert weight(end.arrays) == pytest.approx(np.mean(range(6)))


@pytest.mark.flower
def test_the_server_gets_the_run_s_configuration_and_the_result_is_named():
    end, context = served(MusterStrategy(RandomSelection(3)), run_config={"rounds": 7})
    assert context.run_config == {"rounds": 7}
    assert end.result.name == "random"
    assert end.result.final("accuracy") == 0.5


@pytest.mark.flower
def test_a_node_that_fails_is_recorded_and_the_others_go_on():
    end, _ = served(MusterStrategy(RandomSelection(6)), rounds=1, node_config={"broken": 5})
    ((_, _, reason),) = end.result.rejected
    assert "RuntimeError: out of order" in reason
    assert weight(end.arrays) == pytest.approx(np.mean(range(5)))


@pytest.mark.flower
def test_what_a_node_keeps_lasts_as_long_as_the_rehearsal():
    counts = []
    app = ServerApp()

    @app.main()
    def main(grid, context):
        for _ in range(3):
            content = RecordDict({"config": ConfigRecord({})})
            (reply,) = grid.send_and_receive([Message(content, grid.get_node_ids()[0], "train")])
            counts.append(reply.content["metrics"]["times"])

    rehearse(app, client_app, 2)
    assert counts == [1, 2, 3]


@pytest.mark.flower
def test_nothing_is_left_behind_and_no_nodes_are_refused(monkeypatch):
    monkeypatch.setattr(TaskIdentity, "_run_id", None)
    served(MusterStrategy(RandomSelection(2)), nodes=2, rounds=1)
    assert TaskIdentity._run_id is None
    with pytest.raises(ConfigError, match="0 nodes"):
        rehearse(ServerApp(), client_app, 0)


@pytest.mark.flower
def test_the_words_of_an_error_reply_reach_the_server():
    app = ClientApp()

    @app.train()
    def refuse(message, context):
        return Message(Error(1000, "the owner says no"), reply_to=message)

    heard = []
    server = ServerApp()

    @server.main()
    def main(grid, context):
        asked = Message(RecordDict(), grid.get_node_ids()[0], "train")
        heard.extend(grid.send_and_receive([asked]))

    rehearse(server, app, 1)
    assert [(reply.error.code, reply.error.reason) for reply in heard] == [(1000, "the owner says no")]
