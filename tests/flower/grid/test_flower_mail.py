"""Sending and receiving over a grid: when letters go out, how long answers are waited for, what comes too late."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from muster.config.flower import FlowerOptions
from muster.core.arrays import Vector
from muster.engine.base import Engine, Failed, TrainOrder
from muster.engine.task import Place
from muster.experiment.parts import build_ingredients
from muster.flower.engine import FlowerEngine
from muster.flower.mail import Letter, Mail, NoAnswer
from muster.flower.strategy import RecordsEngine
from muster.server.limits import ClientLimits
from muster.updates.table import Updates


class Clock:
    """Time that passes only when somebody sleeps, or a test says so."""

    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def post(clock, fake_grid):
    """Three nodes, whose answers may be held back, and the mail to them."""

    def echo(message: Message, context) -> Message:
        return Message(RecordDict({"node": ConfigRecord({"id": context.node_id})}), reply_to=message)

    grid = fake_grid(echo, [{}, {}, {}])
    return grid, Mail(grid, deadline=10.0, poll=1.0, clock=clock, sleep=clock.sleep)


def letters(grid) -> dict[int, Letter]:
    return {client: Letter(node, "train", RecordDict()) for client, node in enumerate(sorted(grid.contexts))}


def held_back(grid, node: int) -> list[Message]:
    """The answers of a node, which are not delivered."""
    kept: list[Message] = []
    grid.change[node] = kept.append
    return kept


def test_sending_sends_and_receiving_receives(post):
    grid, mail = post
    sent = mail.send(letters(grid), "a")
    assert len(grid.log) == 3
    grid.online.clear()
    assert {client for client, answer in mail.receive(sent) if isinstance(answer, RecordDict)} == {0, 1, 2}
    assert len(grid.log) == 3


def test_the_time_for_an_answer_begins_when_the_letter_is_sent(post, clock):
    grid, mail = post
    held_back(grid, min(grid.contexts))
    sent = mail.send(letters(grid), "a")
    clock.sleep(7.0)
    answers = dict(mail.receive(sent))
    assert clock.time == 10.0
    assert answers.pop(0) == NoAnswer("no answer within 10 s")
    assert all(isinstance(answer, RecordDict) for answer in answers.values())


def test_a_server_that_was_busy_past_the_deadline_takes_what_is_there_and_waits_no_longer(post, clock):
    grid, mail = post
    held_back(grid, min(grid.contexts))
    sent = mail.send(letters(grid), "a")
    clock.sleep(30.0)
    answers = dict(mail.receive(sent))
    assert clock.time == 30.0
    assert [client for client, answer in answers.items() if isinstance(answer, NoAnswer)] == [0]


def test_an_answer_to_letters_that_are_still_waited_for_is_not_late_when_others_are_sent(post):
    grid, mail = post
    first = mail.send(letters(grid), "a")
    second = mail.send(letters(grid), "b")
    for sent in (first, second):
        assert all(isinstance(answer, RecordDict) for _, answer in mail.receive(sent))
    assert mail.events == []


def test_a_late_answer_is_dropped_and_told_once(post):
    grid, mail = post
    kept = held_back(grid, min(grid.contexts))
    assert dict(mail.exchange(letters(grid), "a"))[0] == NoAnswer("no answer within 10 s")
    grid.deliver(kept[0].metadata.reply_to_message_id, kept[0])
    grid.change.clear()
    answers = dict(mail.exchange(letters(grid), "b"))
    assert all(isinstance(answer, RecordDict) for answer in answers.values())
    mail.drop_late()
    assert mail.events == ["client 0 answered exchange a too late: dropped"]


def test_a_letter_to_a_node_that_is_gone_is_told_when_answers_are_received(post):
    grid, mail = post
    grid.online.discard(min(grid.contexts))
    answers = dict(mail.receive(mail.send(letters(grid), "a")))
    assert answers[0] == NoAnswer("the message could not be sent: its node is gone", gone=True)
    assert len(answers) == 3


# --- the engines -----------------------------------------------------------------------------------------


def order_to(engine: Engine, clients: list[int], iteration: int = 0, start: Vector | None = None) -> TrainOrder:
    parameters = engine.initial_parameters() if start is None else start
    return TrainOrder(np.array(clients), parameters, Place(0, iteration, iteration), lr=0.05)


def movements(engine: Engine) -> list[tuple[int, Vector]]:
    """What is collected, in its order; nobody fails."""
    rows = []
    for part in engine.collect():
        assert isinstance(part, Updates)
        rows += [(int(row.clients[0]), row.movements[0].copy()) for row in part]
    return rows


@pytest.fixture
def flower_engine(six, grid_of):
    """An engine for six clients, and its grid."""
    experiment = six()

    def make() -> tuple[FlowerEngine, Any]:
        grid = grid_of(experiment)
        options = FlowerOptions(deadline=5.0, poll=0.01)
        return FlowerEngine(grid, build_ingredients(experiment), options), grid

    return make


@pytest.fixture
def records_engine(fake_grid):
    """An engine for three nodes with a client app of their own, and its grid."""

    def train(message: Message, context: Any) -> Message:
        arrays = message.content["arrays"]
        moved = ArrayRecord({name: Array(a.numpy() + context.node_id) for name, a in arrays.items()})
        content = RecordDict({"arrays": moved, "metrics": MetricRecord({"num-examples": 4})})
        return Message(content, reply_to=message)

    def make() -> tuple[RecordsEngine, Any]:
        grid = fake_grid(train, [{}, {}, {}])
        engine = RecordsEngine(
            Mail(grid, deadline=5.0, poll=0.01),
            ArrayRecord(
                {"out.weight": Array(np.zeros((2, 3), np.float32)), "out.bias": Array(np.zeros(2, np.float32))}
            ),
            signals=(),
            federated_evaluation=True,
            weighted_by_key="num-examples",
            final_layer=None,
            train_config=ConfigRecord(),
            evaluate_config=ConfigRecord(),
            evaluate_fn=None,
            limits=ClientLimits(),
        )
        engine.wait_for_nodes(3, 1.0)
        return engine, grid

    return make


@pytest.fixture(params=["flower_engine", "records_engine"])
def make_engine(request):
    return request.getfixturevalue(request.param)


def test_start_sends_and_collect_only_receives(make_engine):
    engine, grid = make_engine()
    before = len(grid.log)
    engine.start(order_to(engine, [0, 2]))
    assert len(grid.log) == before + 2
    grid.online.clear()
    assert sorted(client for client, _ in movements(engine)) == [0, 2]
    assert len(grid.log) == before + 2


def test_what_was_started_before_anything_was_collected_comes_as_if_alone(make_engine):
    """The second training starts from another model, so a movement from the wrong start would be seen."""
    engine, _ = make_engine()
    first = order_to(engine, [0, 1, 2])
    second = order_to(engine, [0, 2], iteration=1, start=engine.initial_parameters() + np.float32(0.01))
    engine.start(first)
    engine.start(second)
    together = movements(engine)
    alone = []
    other, _ = make_engine()
    for order in (first, second):
        other.start(order)
        alone += movements(other)
    assert [client for client, _ in together] == [client for client, _ in alone]
    assert all(np.array_equal(a, b) for (_, a), (_, b) in zip(together, alone, strict=True))


def test_a_client_without_a_node_fails_when_it_is_collected(flower_engine):
    engine, grid = flower_engine()
    grid.online.discard(next(n for n, c in grid.contexts.items() if c.node_config["partition-id"] == 2))
    engine.start(order_to(engine, [0, 2]))
    failed = [answer for answer in engine.collect() if isinstance(answer, Failed)]
    assert failed == [Failed(2, "the message could not be sent: its node is gone")]


def test_late_answers_are_looked_for_until_nobody_would_send_them_any_more(post, clock):
    """A message lives for twice the deadline: what is late can come until then, and is forgotten after."""
    grid, mail = post
    silent = min(grid.contexts)
    kept = held_back(grid, silent)
    dict(mail.exchange(letters(grid), "a"))
    clock.time += 9.0
    grid.deliver(kept[0].metadata.reply_to_message_id, kept[0])
    mail.drop_late()
    assert mail.events == ["client 0 answered exchange a too late: dropped"]
    dict(mail.exchange(letters(grid), "b"))
    clock.time += 10.0
    mail.drop_late()  # nobody came, and the time is over
    asked_for: list[str] = []

    def pull(messages: list[str]) -> list[Message]:
        asked_for.extend(messages)
        return []

    mail.pull = pull
    mail.drop_late()
    assert asked_for == []


def test_a_late_answer_is_never_taken_for_one_of_the_next_exchange(post):
    grid, mail = post
    silent = min(grid.contexts)
    kept = held_back(grid, silent)
    dict(mail.exchange(letters(grid), "a"))
    # It comes after the next letters went out, while their answers are waited for.
    second = mail.send(letters(grid), "b")
    grid.deliver(kept[0].metadata.reply_to_message_id, kept[0])
    answers = dict(mail.receive(second))
    assert answers[0] == NoAnswer("no answer within 10 s")
    mail.drop_late()
    assert mail.events == ["client 0 answered exchange a too late: dropped"]
