"""The Flower engine when things go wrong, and what it does beside training."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

import muster
from muster.core.errors import ConfigError, EngineError
from muster.data.federated import FederatedData, Index, Samples
from muster.engine.base import Failed
from muster.experiment.components import build_data
from muster.experiment.parts import Ingredients, local_engine
from muster.experiment.runner import run
from muster.flower import presence, wire
from muster.flower.client_app import experiment_of, make_client_app
from muster.flower.exchange import Exchanges
from muster.flower.presence import Presence
from muster.flower.server_app import run_on_grid
from muster.models import build_model
from muster.selection.base import Ask, Selector, Train
from muster.selection.high_loss import HighLoss
from muster.server.loop import Observer
from muster.signals.probe import ProbeNorm

EVERYBODY = {"method": "random", "clients_per_round": 6}


@pytest.fixture
def everybody(six):
    """All six clients train in every round."""
    return lambda **changes: six(**{"selection": EVERYBODY, "flower": {"deadline": 0.3, "poll": 0.01}, **changes})


class After(Observer):
    """Does something after a round."""

    def __init__(self, round: int, action) -> None:
        self.round, self.action = round, action

    def round_ended(self, record, ledger) -> None:
        if record.round == self.round:
            self.action()


def node_of(grid, partition: int) -> int:
    return next(n for n, c in grid.contexts.items() if c.node_config["partition-id"] == partition)


def events(result: muster.Result) -> list[str]:
    return [event for record in result.records for event in record.events]


def local_with_failures(experiment, failing: dict[int, set[int]]) -> muster.Result:
    """The local run in which the same clients failed: round (from 1) → clients."""

    def make_engine(ingredients: Ingredients):
        engine = local_engine(ingredients, 0)
        train = engine.train

        def failing_train(order):
            away = failing.get(order.place.round + 1, set())
            for answer in (row for part in train(order) for row in part):
                client = int(answer.clients[0])
                yield Failed(client, "away") if client in away else answer

        engine.train = failing_train
        return engine

    return run(experiment, make_engine=make_engine)


# --- faults ----------------------------------------------------------------------------------------------


def test_a_silent_client_is_a_recorded_failure(everybody, grid_of):
    experiment = everybody()
    grid = grid_of(experiment)
    silent = node_of(grid, 2)
    grid.change[silent] = lambda reply: None if "train" in reply.metadata.message_type else reply
    result = run_on_grid(grid, experiment)
    assert result.rejected == [(round, 2, "no answer within 0.3 s") for round in (1, 2, 3)]
    expected = local_with_failures(experiment, {1: {2}, 2: {2}, 3: {2}})
    assert np.array_equal(result.parameters, expected.parameters)
    assert result.selections == expected.selections


def test_late_answers_are_dropped_and_counted_once(everybody, grid_of):
    experiment = everybody()
    grid = grid_of(experiment)
    late = node_of(grid, 4)
    kept: list[Message] = []

    def hold_back(reply: Message) -> Message | None:
        if reply.metadata.message_type != "train" or kept:
            return reply
        kept.append(reply)
        return None

    grid.change[late] = hold_back
    deliver = After(1, lambda: grid.deliver(kept[0].metadata.reply_to_message_id, kept[0]))
    result = run_on_grid(grid, experiment, observers=[deliver])
    assert [(r, c) for r, c, _ in result.rejected] == [(1, 4)]
    assert any("client 4 answered exchange 0.0.0 too late: dropped" in event for event in events(result))
    expected = local_with_failures(experiment, {1: {4}})
    assert np.array_equal(result.parameters, expected.parameters)


def test_a_node_that_leaves_and_comes_back_keeps_its_id(everybody, grid_of):
    experiment = everybody(rounds=4)
    grid = grid_of(experiment)
    node = node_of(grid, 3)
    leave, back = After(1, lambda: grid.online.discard(node)), After(2, lambda: grid.online.add(node))
    result = run_on_grid(grid, experiment, observers=[leave, back])
    assert [len(round[0]) for round in result.selections] == [6, 5, 6, 6]
    assert 3 not in result.selections[1][0]
    assert "client 3 is gone" in events(result)
    assert "client 3 is there again" in events(result)


def test_a_node_with_a_new_id_and_the_old_identity_is_the_old_client(everybody, grid_of):
    experiment = everybody(rounds=4)
    grid = grid_of(experiment)
    app = make_client_app(experiment)

    def replace_node() -> None:
        grid.online.discard(node_of(grid, 3))
        grid.add(app, {"partition-id": 3}, node=77)

    result = run_on_grid(grid, experiment, observers=[After(2, replace_node)])
    # Introduced at the start of round 3; the answer is there at once, so nothing is missed.
    assert [len(round[0]) for round in result.selections] == [6, 6, 6, 6]
    assert "client 3 ('partition-id=3') is back as node 77" in events(result)
    assert np.array_equal(result.parameters, muster.run(experiment, workers=0).parameters)


def test_two_nodes_with_one_identity_are_refused_and_said(everybody, grid_of):
    experiment = everybody()
    grid = grid_of(experiment)
    app = make_client_app(experiment)
    result = run_on_grid(
        grid, experiment, observers=[After(1, lambda: grid.add(app, {"partition-id": 3}, node=77))]
    )
    said = [event for event in events(result) if "refused" in event]
    assert said == [f"node 77 claims to be 'partition-id=3', which node {node_of(grid, 3)} is: refused"]
    assert not any(m.metadata.dst_node_id == 77 and m.metadata.message_type == "train" for m in grid.log)


def test_a_node_whose_identity_has_changed_is_not_trained(everybody, grid_of):
    experiment = everybody()
    grid = grid_of(experiment)
    node = node_of(grid, 5)
    swap = After(1, lambda: grid.contexts[node].node_config.update({"partition-id": 0}))
    result = run_on_grid(grid, experiment, observers=[swap])
    assert [(r, c) for r, c, _ in result.rejected] == [(2, 5)]
    assert "the message is for 'partition-id=5'" in result.rejected[0][2]
    # It is asked who it is, and claims to be somebody who is there.
    assert 5 not in result.selections[2][0]
    assert any(f"node {node} claims to be 'partition-id=0'" in event for event in events(result))


def test_a_client_that_turns_out_to_be_another_in_the_middle_of_a_round_fails(six, grid_of):
    """Asked first, then trained: the second exchange must not trip over the node that is no longer believed."""
    experiment = six(selection={"method": "high-loss", "clients_per_round": 6}, rounds=2)
    grid = grid_of(experiment)
    node = node_of(grid, 5)

    class Everybody(HighLoss):
        """Trains all, whoever has answered."""

        def round(self, fed):
            yield Ask(fed.available, self.needs())
            yield Train(fed.available)

    mine = replace(experiment, selection=Everybody(clients_per_round=6))
    swap = After(1, lambda: grid.contexts[node].node_config.update({"partition-id": 0}))
    result = run_on_grid(grid, mine, observers=[swap])
    assert result.rejected == [(2, 5, "no node speaks for it any more")]


#: A vector whose bytes say that they are 2^46 numbers.
ENDLESS = Array(np.zeros(1210, np.float32))
ENDLESS.data = ENDLESS.data.replace(b"(1210,), }" + b" " * 10, b"(70368744177664,), }")


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda c, a: a.update({"model": Array(np.full(1210, np.nan, np.float32))}), "non-finite"),
        (lambda c, a: a.update({"model": Array(np.zeros(7, np.float32))}), r"shape \(7,\)"),
        (lambda c, a: a.update({"model": Array(np.zeros(1210, np.float64))}), "float64"),
        (lambda c, a: a.update({"more": Array(np.zeros(1210, np.float32))}), "holds the arrays"),
        (lambda c, a: c.update({"client": 0}), "as client 0"),
        (lambda c, a: c.update({"place": "9.9.9"}), "answers exchange 9.9.9"),
        (lambda c, a: c.update({"steps": 10**6}), "'steps' is 1000000"),
        (lambda c, a: c.update({"values": b"1234"}), "4 bytes"),
        (lambda c, a: c.clear(), "'version' is None"),
        (lambda c, a: c.update({"place": "x" * 90_000}), "answers exchange x+[.]{3}$"),
        (lambda c, a: a.update({"model": ENDLESS}), "turns out to be float32 of shape"),
    ],
)
def test_answers_that_cannot_be_used_are_recorded_and_the_run_goes_on(everybody, grid_of, spoil, why):
    experiment = everybody(rounds=2)
    grid = grid_of(experiment)

    def change(reply: Message) -> Message:
        if reply.metadata.message_type == "train":
            spoil(reply.content[wire.RECORD], reply.content[wire.ARRAYS])
        return reply

    grid.change[node_of(grid, 1)] = change
    result = run_on_grid(grid, experiment)
    assert [(r, c) for r, c, _ in result.rejected] == [(1, 1), (2, 1)]
    assert re.search(why, result.rejected[0][2])
    expected = local_with_failures(experiment, {1: {1}, 2: {1}})
    assert np.array_equal(result.parameters, expected.parameters)


@pytest.mark.parametrize("broken", [OverflowError, MemoryError, RecursionError, UnicodeEncodeError])
def test_an_answer_over_which_judging_breaks_is_one_clients_failure(everybody, grid_of, monkeypatch, broken):
    """Whatever a client finds to send next: the others train on."""
    experiment = everybody(rounds=1)
    grid = grid_of(experiment)
    judge = Exchanges._check_whose

    def break_over_client_1(engine, client, content, asked):
        if client == 1:
            raise broken("utf-8", "x", 0, 1, "?") if broken is UnicodeEncodeError else broken("boom")
        judge(engine, client, content, asked)

    monkeypatch.setattr(Exchanges, "_check_whose", break_over_client_1)
    result = run_on_grid(grid, experiment)
    assert result.rejected == [(1, 1, f"its answer was refused: it cannot be judged ({broken.__name__})")]


def test_an_introduction_over_which_judging_breaks_is_a_refused_node(everybody, grid_of, monkeypatch):
    experiment = everybody(rounds=1).with_options(["flower.nodes=5"])
    grid = grid_of(experiment)
    bad, read = node_of(grid, 1), Presence._introduction

    def break_over_one(presence, question, reply):
        if question.node == bad:
            raise OverflowError("boom")
        return read(presence, question, reply)

    monkeypatch.setattr(Presence, "_introduction", break_over_one)
    result = run_on_grid(grid, experiment)
    assert f"node {bad} was not admitted: OverflowError in its answer" in events(result)


def test_too_few_nodes_is_an_error_that_says_who_was_refused(everybody, grid_of):
    experiment = everybody(flower={"wait": 0.2, "poll": 0.01})
    grid = grid_of(experiment, clients=5)
    grid.add(make_client_app(experiment), {"partition-id": 17})
    with pytest.raises(EngineError, match="5 of 6 nodes are ready") as caught:
        run_on_grid(grid, experiment)
    assert "the node's partition-id is 17" in str(caught.value)


def test_a_node_that_does_not_say_who_it_is_is_asked_again(everybody, grid_of, monkeypatch):
    """It may have restarted with the question; other nodes are not asked twice."""
    monkeypatch.setattr(presence, "PATIENCE", 0.1)
    experiment = everybody()
    grid = grid_of(experiment)
    forgetful, heard = node_of(grid, 2), []

    def lose_the_first_two(reply: Message) -> Message | None:
        heard.append(reply)
        return reply if len(heard) > 2 else None

    grid.change[forgetful] = lose_the_first_two
    assert run_on_grid(grid, experiment).complete
    asked = [m.metadata.dst_node_id for m in grid.log if m.metadata.message_type == wire.REGISTER]
    assert asked.count(forgetful) == 3
    assert len(asked) == 5 + 3


def test_a_refused_node_is_not_asked_all_the_time(everybody, grid_of):
    experiment = everybody(flower={"wait": 0.5, "poll": 0.01})
    grid = grid_of(experiment, clients=5)
    stranger = grid.add(make_client_app(experiment), {"partition-id": 17})
    with pytest.raises(EngineError):
        run_on_grid(grid, experiment)
    assert [m.metadata.dst_node_id for m in grid.log].count(stranger) == 1


def test_fewer_nodes_than_clients_may_be_enough(everybody, grid_of):
    experiment = everybody(flower={"nodes": 4}, selection={"method": "random", "clients_per_round": 3})
    result = run_on_grid(grid_of(experiment, clients=4), experiment)
    assert {client for round in result.selections for client in round[0]} <= {0, 1, 2, 3}


def test_another_experiment_on_the_nodes_is_refused(everybody, grid_of):
    mine = everybody(flower={"wait": 0.2, "poll": 0.01})
    with pytest.raises(EngineError, match="different experiments"):
        run_on_grid(grid_of(everybody(seed=9)), mine)


def test_frozen_weights_do_not_travel_and_must_be_the_same_on_both_sides(everybody, grid_of, tmp_path):
    path = tmp_path / "pretrained.pt"
    model = {"name": "mlp", "hidden": [16], "weights": str(path), "freeze": "backbone"}
    mine = everybody(rounds=1, model=model, flower={"wait": 0.2, "poll": 0.01})

    def pretrain(seed: int) -> None:
        shape = build_data(everybody()).dataset.sample_shape
        torch.save(build_model("mlp", shape, 10, {"hidden": [16]}, seed=seed).state_dict(), path)

    pretrain(1)
    grid = grid_of(mine)
    result = run_on_grid(grid, mine)
    assert result.spec.size == 16 * 10 + 10
    # Here what is frozen is computed once, which may round in another way.
    np.testing.assert_allclose(result.parameters, run(mine, workers=0).parameters, atol=1e-5)
    # The nodes have built their network; the server builds another.
    pretrain(2)
    with pytest.raises(EngineError, match="different experiments"):
        run_on_grid(grid, mine)


# --- what clients keep -----------------------------------------------------------------------------------


def scaffold(six, **changes):
    return six(
        rounds=4,
        selection=EVERYBODY,
        algorithm={"method": "scaffold"},
        aggregation={"method": "scaffold"},
        flower={"deadline": 0.3, "poll": 0.01},
        **changes,
    )


def test_a_client_that_has_lost_its_state_goes_on_like_a_new_one_and_says_so(six, grid_of):
    experiment = scaffold(six)
    grid = grid_of(experiment)
    result = run_on_grid(grid, experiment, observers=[After(2, lambda: grid.restart(node_of(grid, 3)))])
    assert [e for e in events(result) if "lost" in e] == ["client 3 had lost its state and trained like a new one"]
    assert not result.rejected
    assert not np.array_equal(result.parameters, muster.run(experiment, workers=0).parameters)


def test_state_of_an_answer_that_came_too_late_is_not_used(six, grid_of):
    """The client has trained, the server does not know: both go on from the state before."""
    experiment = scaffold(six)
    grid = grid_of(experiment)
    node = node_of(grid, 3)

    def silent_in_round_2(reply: Message) -> Message | None:
        return None if reply.metadata.group_id == "1.0.0" else reply

    grid.change[node] = silent_in_round_2
    result = run_on_grid(grid, experiment)
    assert [(r, c) for r, c, _ in result.rejected] == [(2, 3)]
    assert not [e for e in events(result) if "lost" in e]


def test_resuming_finds_clients_and_their_state(six, grid_of, tmp_path, assert_same):
    class Stop(Observer):
        def wants_stop(self) -> bool:
            return True

    experiment = scaffold(six)
    grid = grid_of(experiment)
    part = run_on_grid(grid, experiment, out=tmp_path, observers=[Stop()])
    assert len(part.records) == 1
    rest = run_on_grid(grid, experiment, out=tmp_path, resume=True)
    assert_same(muster.run(experiment, workers=0), rest)


@pytest.mark.parametrize("method", ["scaffold", "feddyn", "moon"])
def test_refused_updates_leave_clients_as_they_were(six, grid_of, assert_same, method):
    """Like the local engine, where the store is settled: to the bit."""
    both = {"algorithm": {"method": method}}
    if method != "moon":
        both["aggregation"] = {"method": method}
    experiment = six(rounds=4, selection=EVERYBODY, guard={"max_norm": 0.9}, **both)
    grid = grid_of(experiment)
    local, remote = muster.run(experiment, workers=0), run_on_grid(grid, experiment)
    assert_same(local, remote)
    refused = {(r.round - 1, client) for r in remote.records for client in r.trainings[0].rejected}
    assert 0 < len(refused) < 4 * 6
    orders = [m.content[wire.RECORD] for m in grid.log if m.metadata.message_type == wire.TRAIN]
    assert len(orders) == 4 * 6
    for order in orders:
        earlier = [r for r in range(order["round"]) if (r, order["client"]) not in refused]
        assert order["state"] == (f"{earlier[-1]}.0.0" if earlier else "")


def test_a_server_that_was_killed_between_training_and_settlement_goes_on_with_the_same_bits(
    six, grid_of, tmp_path, assert_same
):
    """Clients have trained several times since the checkpoint, and once without ever hearing what became of it."""

    class Kill(Observer):
        answers = 0

        def answered(self, answer) -> None:
            self.answers += 1
            if self.answers == len(answers_of_two_rounds) + 7:
                raise KeyboardInterrupt

    terraform = {"method": "terraform", "clients_per_round": 6, "min_clients": 2, "max_iterations": 3}
    experiment = replace(scaffold(six), selection=terraform)
    through = muster.run(experiment, workers=0)
    answers_of_two_rounds = [c for record in through.records[:2] for t in record.trainings for c in t.clients]
    assert len(through.records[2].trainings) > 1
    assert len(through.records[2].trainings[0].clients) == 6
    grid = grid_of(experiment)
    with pytest.raises(KeyboardInterrupt):
        run_on_grid(grid, experiment, out=tmp_path, observers=[Kill()])
    resumed = run_on_grid(grid, experiment, out=tmp_path, resume=True)
    assert not [event for event in events(resumed) if "lost" in event]
    assert_same(through, resumed)


# --- evaluation and own data -----------------------------------------------------------------------------


def test_clients_may_evaluate(six, grid_of):
    """On every client's own test data: the sums are those that the local engine makes of the same samples."""
    dataset = build_data(six()).dataset
    owners = np.arange(len(dataset.train)) % 6
    test_owners = np.arange(len(dataset.test)) % 6
    data = FederatedData(dataset, Index.from_owners(owners, 6), Index.from_owners(test_owners, 6))
    experiment = replace(six(), data=data, partition={"scheme": "natural"})
    local = muster.run(experiment, workers=0)
    asked = replace(experiment, flower={"evaluate": "clients"})
    remote = run_on_grid(grid_of(asked), asked)
    assert np.array_equal(local.parameters, remote.parameters)
    for metric in ("accuracy", "f1", "client_accuracy_mean", "client_accuracy_worst", "participant_accuracy"):
        assert remote.final(metric) == local.final(metric)
    assert remote.final("loss") == pytest.approx(local.final("loss"))


def test_a_client_that_does_not_evaluate_is_left_out(tiny, grid_of):
    experiment = tiny(rounds=1, **OWN)
    grid, _ = own_grid(grid_of, experiment)
    away = min(grid.online)
    grid.change[away] = lambda reply: None if reply.metadata.message_type == "evaluate" else reply
    result = run_on_grid(grid, experiment.with_options(["flower.deadline=0.3"]))
    assert any("did not evaluate: no answer" in event for event in events(result))
    assert np.isfinite(result.final())
    grid.change = dict.fromkeys(
        grid.online, lambda reply: None if reply.metadata.message_type == "evaluate" else reply
    )
    assert np.isnan(run_on_grid(grid, experiment.with_options(["flower.deadline=0.3"])).final())


@pytest.mark.parametrize("owner", [{"max-epsilon": 0.1}, {"epsilon-budget": 1.0, "epsilon-book": "book.json"}])
def test_a_node_that_tells_nothing_without_noise_does_not_evaluate(tiny, grid_of, owner):
    """Confusion matrices are exact. The server records it, goes on, and evaluates on the others."""
    experiment = tiny(rounds=1, **OWN)
    grid, _ = own_grid(grid_of, experiment)
    careful = min(grid.online)
    grid.contexts[careful].node_config |= owner | {"allow-updates": True}
    result = run_on_grid(grid, experiment)
    said = [event for event in events(result) if "did not evaluate" in event]
    assert len(said) == 1
    assert "tells nothing without noise, and an evaluation has none" in said[0]
    assert np.isfinite(result.final())
    assert result.rejected == []
    grid.contexts[careful].node_config["allow-evaluate"] = True
    assert not [event for event in events(run_on_grid(grid, experiment)) if "did not evaluate" in event]


def own_clients(context):
    rng = np.random.default_rng(context.node_config["seed"])
    labels = np.arange(40) % 3
    features = rng.normal(size=(40, 5)).astype(np.float32) + 4 * np.eye(5, dtype=np.float32)[labels]
    return Samples(features[:30], labels[:30]), Samples(features[30:], labels[30:])


OWN = {
    "data": {"source": "own", "shape": [5], "classes": 3},
    "partition": {},
    "selection": {"method": "random", "clients_per_round": 3},
    "flower": {"nodes": 3, "evaluate": "clients", "poll": 0.01},
}


def own_grid(grid_of, experiment):
    grid = grid_of(None, 0, app=make_client_app(experiment, client_data=own_clients))
    app = make_client_app(experiment, client_data=own_clients)
    for number, name in enumerate(["clinic-b", "clinic-a", "clinic-c"]):
        grid.add(app, {"name": name, "seed": number})
    return grid, app


def test_clients_bring_their_own_data_and_may_join_later(tiny, grid_of):
    experiment = tiny(rounds=6, **OWN)
    grid, app = own_grid(grid_of, experiment)
    join = After(1, lambda: grid.add(app, {"name": "aaa", "seed": 5}, node=4))
    result = run_on_grid(grid, experiment, observers=[join])
    assert result.final() > 0.9
    assert result.history.clients == 4
    assert result.history.trainings[3] > 0
    said = events(result)
    assert said[0].startswith("client 0 ('name=clinic-a') joined")
    assert "client 3 ('name=aaa') joined as node 4" in said
    assert result.metrics[-1]["client_accuracy_mean"] == pytest.approx(result.final())


def test_the_server_may_have_test_data_of_its_own(tiny, grid_of):
    experiment = tiny(**{**OWN, "flower": {"nodes": 3, "poll": 0.01}})
    grid, _ = own_grid(grid_of, experiment)
    test = Samples(4 * np.eye(5, dtype=np.float32)[:3], np.arange(3))
    assert run_on_grid(grid, experiment, test_data=test).final() == 1.0
    with pytest.raises(ConfigError, match="the server has no test data"):
        run_on_grid(grid, experiment)


def test_own_data_needs_a_federation(tiny):
    with pytest.raises(ConfigError, match="none of them is on this machine"):
        muster.run(tiny(**OWN), workers=0)


def test_how_many_clients_bring_data_must_be_said(tiny, grid_of):
    experiment = tiny(**{**OWN, "flower": {"evaluate": "clients"}})
    with pytest.raises(ConfigError, match=r"flower\.nodes is missing"):
        run_on_grid(own_grid(grid_of, experiment)[0], experiment)


# --- nodes refuse ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ({"max-epochs": 1}, "local epochs: beyond this node's limit max-epochs = 1"),
        ({"max-batch": 8}, "training.batch_size: beyond this node's limit max-batch = 8"),
        ({"max-memory": 0}, "megabytes of vectors: beyond this node's limit max-memory = 0"),
        ({"max-epochs": "many"}, "bad value for 'node-config.max_epochs'"),
    ],
)
def test_a_node_refuses_more_than_its_owner_allows(everybody, grid_of, limits, why):
    experiment = everybody(training={"epochs": 2}, flower={"wait": 0.2, "poll": 0.01}, model={"hidden": [200]})
    with pytest.raises(EngineError) as caught:
        run_on_grid(grid_of(experiment, **limits), experiment)
    assert why in str(caught.value)


def test_a_node_refuses_signals_that_its_owner_does_not_allow(six, grid_of):
    experiment = six(selection={"method": "power-of-choice", "clients_per_round": 2}, rounds=1)
    grid = grid_of(experiment)
    grid.contexts[node_of(grid, 0)].node_config["signals"] = "probe_norm"
    result = run_on_grid(grid, experiment)
    refused = [event for event in events(result) if "asked in vain" in event]
    assert all("client 0" in event and "does not allow the signal 'loss'" in event for event in refused)


@pytest.mark.parametrize(
    ("type", "content", "why"),
    [
        ("train", RecordDict(), "no record 'muster'"),
        ("train", RecordDict({"muster": ConfigRecord({"version": 7})}), "version 7"),
        ("query.loss", RecordDict({"muster": ConfigRecord({"version": wire.VERSION})}), "'lr' is None"),
        ("query.nonsense", RecordDict(), "nonsense"),
        ("train.nonsense", RecordDict(), "nonsense"),
        ("evaluate", RecordDict({"arrays": ArrayRecord()}), "no record"),
    ],
)
def test_a_node_refuses_messages_that_it_does_not_know(everybody, grid_of, type, content, why):
    grid = grid_of(everybody())
    node = node_of(grid, 0)
    (id,) = grid.push_messages([Message(content, dst_node_id=node, message_type=type)])
    (reply,) = grid.pull_messages([id])
    assert reply.has_error()
    assert why in reply.error.reason


def test_a_node_refuses_models_that_do_not_fit(everybody, grid_of):
    experiment = everybody()
    grid = grid_of(experiment)
    run_on_grid(grid, experiment)
    message = next(m for m in grid.log if m.metadata.message_type == "train")
    size = message.content[wire.ARRAYS]["model"].shape[0]
    bad = {
        "shape (3,)": np.zeros(3, np.float32),
        "float64": np.zeros(size),
        "not finite": np.full(size, np.inf, np.float32),
    }
    for why, vector in bad.items():
        content = RecordDict(
            {wire.RECORD: message.content[wire.RECORD], wire.ARRAYS: wire.array_record({"model": vector})}
        )
        node = message.metadata.dst_node_id
        (id,) = grid.push_messages([Message(content, dst_node_id=node, message_type="train")])
        (reply,) = grid.pull_messages([id])
        assert why in reply.error.reason


def test_a_node_without_identity_says_so(everybody, grid_of):
    experiment = everybody(flower={"wait": 0.2, "poll": 0.01})
    grid = grid_of(experiment)
    del grid.contexts[node_of(grid, 2)].node_config["partition-id"]
    with pytest.raises(EngineError, match="does not say which client it is"):
        run_on_grid(grid, experiment)


NAMED = """
seed = 3
[data]
source = "digits"
[partition]
scheme = "dirichlet"
clients = 6
alpha = 0.5
[model]
name = "linear"
[selection]
method = "random"
clients_per_round = 4
[objective]
loss = "antigravity:geohash"
"""


@pytest.mark.parametrize(
    ("allowed", "imported"), [("", False), ("torch.nn.functional, antigravity2", False), ("antigravity", True)]
)
def test_a_node_imports_only_modules_that_its_owner_allows(fake_grid, monkeypatch, allowed, imported):
    asked = []

    def note(module):
        asked.append(module)
        return SimpleNamespace()

    monkeypatch.setattr("muster.core.modules._imported", note)
    node = {"partition-id": 0, "allow-modules": allowed}
    grid = fake_grid(make_client_app(), [node], {"experiment": NAMED})
    content = wire.content({"experiment": "x", "challenge": "y"})
    (id,) = grid.push_messages([Message(content, min(grid.online), wire.REGISTER)])
    (reply,) = grid.pull_messages([id])
    assert bool(asked) == imported
    assert ("the node's owner does not allow that module" in reply.error.reason) != imported


def test_a_node_never_imports_the_servers_methods(fake_grid, monkeypatch):
    """Whom to select and how to aggregate is the server's business, whatever the node's owner allows."""
    asked = []
    monkeypatch.setattr("muster.core.modules._imported", asked.append)
    text = (
        NAMED.partition("[objective]")[0].replace("linear", "logistic").replace("random", "antigravity:Selector")
    )
    text += '[aggregation]\nmethod = "antigravity:Aggregator"\n'
    grid = fake_grid(
        make_client_app(), [{"partition-id": 0, "allow-modules": "antigravity"}], {"experiment": text}
    )
    content = wire.content({"experiment": "x", "challenge": "y"})
    (id,) = grid.push_messages([Message(content, min(grid.online), wire.REGISTER)])
    (reply,) = grid.pull_messages([id])
    assert not asked
    assert "different experiments" in reply.error.reason


# --- configuration ---------------------------------------------------------------------------------------


def test_the_experiment_travels_in_the_runs_configuration():
    text = "seed = 3\n[selection]\nmethod = 'random'\nclients_per_round = 4\n"
    made = experiment_of({"experiment": text, "settings": "rounds=2; training.lr=0.5"})
    assert (made.seed, made.rounds, made.training) == (3, 2, {"lr": 0.5})
    with pytest.raises(ConfigError, match="holds no experiment"):
        experiment_of({})
    with pytest.raises(ConfigError, match="not valid TOML"):
        experiment_of({"experiment": "="})


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ({"deadline": 0}, r"flower\.deadline"),
        ({"poll": -1}, r"flower\.poll"),
        ({"nodes": 0}, r"flower\.nodes"),
        ({"evaluate": "nobody"}, r"flower\.evaluate"),
        ({"speed": 1}, r"flower\.speed"),
    ],
)
def test_mistakes_in_the_section_are_named(everybody, grid_of, section, why):
    experiment = everybody(flower=section)
    with pytest.raises(ConfigError, match=why):
        run_on_grid(grid_of(experiment), experiment)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"selection": {"method": "terraform", "clients_per_round": 6}}, "Terraform does not work"),
        ({"aggregation": {"method": "median"}}, "Median does not work"),
        ({"aggregation": {"method": "fedavg", "clip_norm": 1.0}}, "clip_norm shortens individual updates"),
        ({"guard": {"max_norm": 5.0}}, r"guard\.max_norm does not work"),
    ],
)
def test_secure_aggregation_is_checked_before_the_run(everybody, grid_of, changes, why):
    experiment = everybody(flower={"secure_aggregation": True}, **changes)
    grid = grid_of(experiment)
    with pytest.raises(ConfigError, match=why):
        run_on_grid(grid, experiment)
    assert not [m for m in grid.log if m.metadata.message_type == "train"]


def test_methods_on_sums_pass_the_check(everybody, grid_of):
    experiment = everybody(flower={"secure_aggregation": True}, rounds=1)
    assert run_on_grid(grid_of(experiment), experiment).complete


class Probing(Selector):
    """Asks for probes without declaring that it will."""

    def round(self, fed):
        yield Ask(fed.available, (ProbeNorm(),))
        yield Train(fed.available[:2])


def test_an_undeclared_probe_is_refused_with_scaffold(everybody, grid_of):
    both = {"algorithm": {"method": "scaffold"}, "aggregation": {"method": "scaffold"}}
    experiment = everybody(selection=Probing(), **both)
    grid = grid_of(everybody(**both))
    with pytest.raises(ConfigError, match="lack the corrections of scaffold"):
        run_on_grid(grid, experiment)
    assert not [m for m in grid.log if m.metadata.message_type.startswith("query.probe")]
