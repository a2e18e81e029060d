"""A grid without a network: messages go to client apps in this process, as bytes and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Context, Error, Message, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Answer = Callable[[Message, Context], Message]


class FakeGrid(Grid):
    """Nodes are (client app, context) pairs; tests may take nodes away, delay answers or change them."""

    def __init__(
        self, app: Answer, node_configs: Iterable[dict[str, Any]], run_config: dict[str, Any] | None = None
    ):
        self.apps: dict[int, Answer] = {}
        self.contexts: dict[int, Context] = {}
        self.online: set[int] = set()
        self.log: list[Message] = []
        #: node → what becomes of its reply; None: silence.
        self.change: dict[int, Callable[[Message], Message | None]] = {}
        self._replies: dict[str, Message] = {}
        self._run_config = run_config or {}
        self._count = 0
        for config in node_configs:
            self.add(app, config)

    def add(self, app: Answer, config: dict[str, Any], node: int | None = None) -> int:
        # Node ids neither start at zero nor follow the order of the partitions.
        node = 9000 - 7 * len(self.contexts) if node is None else node
        self.apps[node], self.contexts[node] = app, self.context(node, config)
        self.online.add(node)
        return node

    def context(self, node: int, config: dict[str, Any]) -> Context:
        return Context(1, node, dict(config), RecordDict(), dict(self._run_config))

    def restart(self, node: int) -> None:
        """What a SuperNode forgets when it restarts."""
        self.contexts[node] = self.context(node, self.contexts[node].node_config)

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        return None

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise AssertionError("deprecated")

    def get_node_ids(self) -> list[int]:
        return sorted(self.online)

    def push_messages(self, messages: Iterable[Message]) -> list[str | None]:
        ids: list[str | None] = []
        for message in messages:
            self._count += 1
            message.metadata.__dict__["_message_id"] = f"m{self._count}"
            self.log.append(message)
            node = message.metadata.dst_node_id
            if node not in self.online:
                ids.append(None)
                continue
            ids.append(message.metadata.message_id)
            reply = self._answer(node, message)
            if reply is not None:
                self._replies[message.metadata.message_id] = reply
        return ids

    def deliver(self, message_id: str, reply: Message) -> None:
        """A reply that comes late."""
        self._replies[message_id] = reply

    def _answer(self, node: int, message: Message) -> Message | None:
        # Over the wire and back: what cannot be serialised must not work here either.
        message.content = recorddict_from_proto(recorddict_to_proto(message.content))
        try:
            reply = self.apps[node](message, self.contexts[node])
        except ValueError as error:
            reply = Message(Error(2, str(error)), reply_to=message)
        change = self.change.get(node)
        reply = reply if change is None else change(reply)
        if reply is not None and not reply.has_error():
            reply.content = recorddict_from_proto(recorddict_to_proto(reply.content))
        return reply

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        # Last come first: nobody may rely on an order.
        found = [id for id in reversed(list(message_ids)) if id in self._replies]
        return [self._replies.pop(id) for id in found]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        raise AssertionError("polls every three seconds")


@pytest.fixture(autouse=True)
def _task(monkeypatch):
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture
def fake_grid():
    return FakeGrid


@pytest.fixture
def grid_of():
    """A grid with one node for each partition of an experiment."""
    from muster.flower.client_app import make_client_app

    def make(experiment: Any, clients: int = 6, app: Answer | None = None, **config: Any) -> FakeGrid:
        app = app or make_client_app(experiment)
        return FakeGrid(app, [{"partition-id": k, "num-partitions": clients, **config} for k in range(clients)])

    return make


#: The methods that must give the same bits on a federation as in the local engine.
METHODS: dict[str, dict[str, Any]] = {
    "random": {"selection": {"method": "random", "clients_per_round": 3}},
    "power-of-choice": {"selection": {"method": "power-of-choice", "clients_per_round": 3}},
    "terraform": {"selection": {"method": "terraform", "clients_per_round": 6, "min_clients": 2}},
    "probe-fairness": {"selection": {"method": "probe-fairness", "clients_per_round": 3}},
    "diversity-score": {"selection": {"method": "diversity-score", "clients_per_round": 3}},
    # Digits have no attributes: clients estimate them, as the method does where none are known.
    "feddiverse": {
        "selection": {"method": "feddiverse", "clients_per_round": 3, "biased_steps": 4, "attribute_steps": 2}
    },
    "simprox": {
        "selection": {"method": "random", "clients_per_round": 5},
        "aggregation": {"method": "simprox"},
        "algorithm": {"method": "fedprox", "mu": 0.1},
    },
}


@pytest.fixture
def six(tiny):
    """Makes experiments on digits, divided over six clients."""

    def make(**changes: Any) -> Any:
        # One client after the other, as on nodes: the vectorised engine sums in another order.
        federation = {
            "partition": {"scheme": "dirichlet", "clients": 6, "alpha": 0.5},
            "engine": {"kind": "inline"},
        }
        return tiny(**federation | changes)

    return make


@pytest.fixture(params=METHODS)
def federation_experiment(request, six):
    """Five rounds of each method."""
    return six(rounds=5, **METHODS[request.param])


@pytest.fixture
def assert_same():
    """Two results are the same but for the time: parameters and metrics to the bit, selections, disclosures."""

    def measured(result: Any) -> str:
        return str([{k: v for k, v in row.items() if k != "virtual_seconds"} for row in result.metrics])

    def compare(local: Any, remote: Any) -> None:
        assert np.array_equal(local.parameters, remote.parameters)
        assert local.selections == remote.selections
        assert measured(local) == measured(remote)
        assert local.ledger.total_disclosed() == remote.ledger.total_disclosed()

    return compare
