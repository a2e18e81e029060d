"""Pacing in real time on a federation of known delays, against virtual time; and the same runs repeated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Error, Message

import muster
from muster.core.errors import ConfigError
from muster.experiment.parts import build_ingredients
from muster.experiment.repetition import replay
from muster.flower import wire
from muster.flower.allowlist import add_client
from muster.flower.client_app import make_client_app
from muster.flower.deploy.pki import make_node_key
from muster.flower.engine import FlowerEngine
from muster.flower.mail import Mail
from muster.flower.server_app import run_on_grid
from muster.flower.signing import IDENTITY_KEY
from muster.server.loop import Observer
from muster.updates.guard import Guard

#: Seconds that the federation's clients need for a training, by client.
SECONDS = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
POLL = 1 / 64


class Time:
    """A clock that goes on when somebody waits."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def time(monkeypatch):
    clock = Time()
    monkeypatch.setitem(Mail.__init__.__kwdefaults__, "clock", clock)
    monkeypatch.setitem(Mail.__init__.__kwdefaults__, "sleep", clock.sleep)
    return clock


@pytest.fixture
def slow(six, fake_grid, time):
    """Makes experiments and grids whose nodes take their time: (client, message) → seconds."""

    class SlowGrid(fake_grid):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.seconds: Callable[[int, Message], float] = lambda client, message: SECONDS[client]
            self._ready: dict[str, float] = {}

        def push_messages(self, messages):
            messages = list(messages)
            ids = super().push_messages(messages)
            for id, message in zip(ids, messages, strict=True):
                if id is not None and message.metadata.message_type == wire.TRAIN:
                    client = self.contexts[message.metadata.dst_node_id].node_config["partition-id"]
                    self._ready[id] = time.now + self.seconds(client, message)
            return ids

        def pull_messages(self, message_ids):
            return super().pull_messages([id for id in message_ids if self._ready.get(id, 0.0) <= time.now])

    def make(pacing: dict[str, Any], **changes: Any) -> tuple[Any, Any]:
        usual = {
            "pacing": pacing,
            "selection": {"method": "random", "clients_per_round": 6},
            "flower": {"deadline": 100.0, "poll": POLL},
        }
        experiment = six(**usual | changes)
        app = make_client_app(experiment)
        return experiment, SlowGrid(app, [{"partition-id": k} for k in range(6)])

    return make


def outcomes(result: muster.Result) -> list[dict[int, str]]:
    """Round by round: client → what became of its training."""
    flown = [training.flown for record in result.records for training in record.trainings]
    return [dict(zip(f.clients, f.outcome, strict=True)) for f in flown]


def events(result: muster.Result) -> list[str]:
    return [event for record in result.records for event in record.events]


def trainings_sent(grid) -> list[tuple[int, str]]:
    return [
        (grid.contexts[m.metadata.dst_node_id].node_config["partition-id"], m.metadata.group_id)
        for m in grid.log
        if m.metadata.message_type == wire.TRAIN
    ]


# --- pacings ---------------------------------------------------------------------------------------------


def test_the_first_answers_count_and_the_others_are_booked_and_told(slow):
    experiment, grid = slow({"method": "over-select", "factor": 2.0}, rounds=3, selection=random(3))
    result = run_on_grid(grid, experiment)
    first = result.records[0].trainings[0]
    assert first.clients == [0, 1, 2]
    assert first.flown.clients[:3] == [0, 1, 2]
    assert first.flown.ended == pytest.approx([1, 2, 3, 3, 3, 3], abs=2 * POLL)
    assert outcomes(result)[0] == {0: "used", 1: "used", 2: "used", 3: "late", 4: "late", 5: "late"}
    assert set(first.failed.values()) == {"late: given up on after 3 s"}
    costs = result.ledger.rounds[0]
    assert (costs.wasted_trainings, costs.client_trainings) == (3, 3)
    assert costs.wasted_seconds == pytest.approx(9.0, abs=6 * POLL)
    # They came all the same, and are told and booked: three when round 3 began, the models of round 1.
    assert costs.wasted_bytes == 3 * costs.bytes_down // 6
    later = result.ledger.rounds[2]
    assert later.wasted_bytes == 3 * costs.bytes_down // 6 + 3 * costs.bytes_up // 3
    assert later.bytes_up == 2 * costs.bytes_up
    assert any("client 3 answered exchange 0.0.0 too late: dropped" in event for event in events(result))


def test_answers_seen_together_with_the_last_that_counts_are_booked_as_sent(slow):
    experiment, grid = slow({"method": "over-select", "factor": 2.0}, rounds=1, selection=random(3))
    grid.seconds = lambda client, message: 1.0 if client < 5 else 6.0  # five are seen at one look
    result = run_on_grid(grid, experiment)
    assert Counter(outcomes(result)[0].values()) == {"used": 3, "late": 3}
    costs, model = result.ledger.rounds[0], result.spec.bytes
    assert costs.bytes_up == 5 * model
    # Two answers were thrown away, and one client was given up before it had any.
    assert costs.wasted_bytes == (3 + 2) * model
    assert result.ledger.total_disclosed()["model update"] == 5


def test_what_comes_too_late_has_been_told(slow):
    experiment, grid = slow({"method": "over-select", "factor": 2.0}, rounds=3, selection=random(3))
    result = run_on_grid(grid, experiment)
    told = [row["model update"] for row in result.ledger.disclosed]
    # Three of each round count; those of round 1 that nobody waited for are dropped when round 3 begins.
    assert told == [3, 3, 6]
    assert [costs.bytes_up // result.spec.bytes for costs in result.ledger.rounds] == told


def random(count: int) -> dict[str, Any]:
    return {"method": "random", "clients_per_round": count}


def test_a_deadline_discards_who_is_late(slow):
    experiment, grid = slow({"method": "deadline", "seconds": 2.5}, rounds=1)
    result = run_on_grid(grid, experiment)
    assert result.records[0].trainings[0].clients == [0, 1]
    assert result.records[0].ended == result.records[0].observed.moments[-1] + 2.5
    assert result.ledger.total().wasted_trainings == 4


def test_late_answers_are_used_when_they_arrive(slow):
    experiment, grid = slow({"method": "deadline", "seconds": 2.6, "late": "use"}, rounds=3)
    result = run_on_grid(grid, experiment)
    used = [[*zip(t.flown.clients, t.flown.staleness, strict=True)] for r in result.records for t in r.trainings]
    # Round 1 hears of 0 and 1; they train again, and meanwhile 2 and 3 are heard of, one model later.
    assert used[0] == [(0, 0), (1, 0)]
    assert sorted(used[1]) == [(0, 0), (1, 0), (2, 1), (3, 1)]
    assert sorted(used[2]) == [(0, 0), (1, 0), (4, 2), (5, 2)]
    assert all(set(row.values()) == {"used"} for row in outcomes(result))
    assert result.ledger.total().wasted_trainings == 0
    assert result.history.staleness[5] == 2


def test_a_deadline_follows_measured_durations(slow):
    experiment, grid = slow({"method": "deadline", "quantile": 0.5}, rounds=2)
    result = run_on_grid(grid, experiment)
    assert result.records[0].trainings[0].clients == [0, 1, 2, 3, 4, 5]
    # In round 2 three seconds are the median of what they took.
    assert result.records[1].trainings[0].clients in ([0, 1], [0, 1, 2])
    lasted = result.records[1].ended - result.records[1].observed.moments[-1]
    assert lasted == pytest.approx(3.0, abs=2 * POLL)


def test_buffered_answers_are_used_once_each_and_none_is_lost(slow):
    experiment, grid = slow({"method": "buffered", "in_flight": 4, "k": 2}, rounds=12, selection=random(2))
    result = run_on_grid(grid, experiment)
    assert all(len(record.trainings[0].clients) == 2 for record in result.records)
    assert max(s for r in result.records for s in r.trainings[0].flown.staleness) > 0
    counted = Counter(client for row in outcomes(result) for client in row)
    sent = Counter(client for client, _ in trainings_sent(grid))
    assert sum((sent - counted).values()) == 2  # at work when the run ended
    assert not counted - sent
    assert result.ledger.total().client_trainings == sum(counted.values())


@pytest.mark.parametrize(
    "pacing",
    [
        {"method": "synchronous"},
        {"method": "over-select", "factor": 1.5},
        {"method": "deadline", "seconds": 4.0},
        {"method": "deadline", "seconds": 4.0, "late": "use"},
        {"method": "buffered", "in_flight": 4, "k": 1},
        {"method": "buffered", "in_flight": 6, "k": 3, "max_staleness": 1},
        {"method": "pisces", "in_flight": 6, "first_latency": 5.0},
    ],
)
@pytest.mark.parametrize("aggregation", ["fedavg", "simprox"])
def test_real_time_decides_as_virtual_time_where_clients_take_as_long(slow, pacing, aggregation):
    """The simulation is the oracle: with its durations a federation makes the same model, to the bit."""
    devices = {"method": "lognormal", "samples_per_second": 40.0, "megabytes_down": 1e6, "megabytes_up": 1e6}
    changes = {"rounds": 6, "selection": random(3), "aggregation": {"method": aggregation}, "devices": devices}
    experiment, grid = slow(pacing, **changes)
    ingredients = build_ingredients(experiment)
    sizes = ingredients.data.sizes
    needed = ingredients.devices.times(np.arange(6), sizes, 0, 0, exchange=(0, 0)).sum(axis=1)
    assert np.diff(np.sort(needed)).min() > 4 * POLL
    grid.seconds = lambda client, message: needed[client]
    simulated, real = muster.run(experiment, workers=0), run_on_grid(grid, experiment)
    assert outcomes(real) == outcomes(simulated)
    assert real.selections == simulated.selections
    assert real.parameters.tobytes() == simulated.parameters.tobytes()
    for ours, theirs in zip(real.records, simulated.records, strict=True):
        assert ours.ended == pytest.approx(theirs.ended, abs=4 * POLL * ours.round)
        assert ours.trainings[0].flown.staleness == theirs.trainings[0].flown.staleness


def test_with_a_virtual_clock_devices_say_who_arrives_when(slow):
    devices = {"method": "lognormal"}
    pacing = {"method": "buffered", "in_flight": 4, "k": 2}
    flower = {"clock": "virtual", "deadline": 100.0, "poll": POLL}
    experiment, grid = slow(pacing, rounds=5, selection=random(2), devices=devices, flower=flower)
    real, local = run_on_grid(grid, experiment), muster.run(experiment, workers=0)
    assert [r.trainings for r in real.records] == [r.trainings for r in local.records]
    assert real.parameters.tobytes() == local.parameters.tobytes()


def test_sessions_in_virtual_time_are_refused_in_real_time(slow):
    experiment, grid = slow({}, availability={"method": "rhythm"}, devices={"method": "lognormal"})
    with pytest.raises(ConfigError, match=r"work in real time[^$]*flower\.clock = 'virtual'"):
        run_on_grid(grid, experiment)


# --- faults ----------------------------------------------------------------------------------------------


def test_who_vanishes_or_fails_does_not_count_as_an_answer(slow):
    experiment, grid = slow({"method": "over-select", "factor": 2.0}, rounds=1, selection=random(3))
    nodes = {c.node_config["partition-id"]: n for n, c in grid.contexts.items()}
    on_training = lambda change: lambda reply: change(reply) if reply.metadata.message_type == "train" else reply  # noqa: E731
    grid.change[nodes[0]] = on_training(lambda reply: error(reply, 5))
    grid.change[nodes[1]] = on_training(lambda reply: error(reply, 2))
    result = run_on_grid(grid, experiment)
    assert outcomes(result)[0] == {0: "left", 1: "failed", 2: "used", 3: "used", 4: "used", 5: "late"}
    failed = result.records[0].trainings[0].failed
    assert failed[0].startswith("its node is gone")
    assert failed[1].startswith("its client app failed")


def error(reply: Message, code: int) -> Message:
    changed = Message(Error(code, "on purpose"), reply_to=reply)
    changed.metadata.__dict__["_reply_to_message_id"] = reply.metadata.reply_to_message_id
    return changed


def test_a_client_that_never_answers_ends_with_its_own_deadline(slow):
    pacing = {"method": "buffered", "in_flight": 6, "k": 2}
    experiment, grid = slow(pacing, rounds=8, selection=random(2), flower={"deadline": 9.0, "poll": POLL})
    grid.seconds = lambda client, message: 1e6 if client == 4 else SECONDS[client]
    result = run_on_grid(grid, experiment)
    ends = [row[4] for row in outcomes(result) if 4 in row]
    assert ends
    assert set(ends) == {"failed"}
    assert "no answer within 9 s" in {why for _, client, why in result.rejected if client == 4}


def test_answers_that_are_too_stale_are_not_kept(slow, monkeypatch):
    engines: list[FlowerEngine] = []
    monkeypatch.setattr(FlowerEngine, "begin_round", remembering(FlowerEngine.begin_round, engines))
    pacing = {"method": "buffered", "in_flight": 6, "k": 1, "max_staleness": 0}
    experiment, grid = slow(pacing, rounds=8, selection=random(2))
    result = run_on_grid(grid, experiment)
    assert "stale" in {outcome for row in outcomes(result) for outcome in row.values()}
    waiting = sum(len(t.sent.waiting) + len(t.arrived) for t in engines[-1]._under_way)
    assert waiting == len(trainings_sent(grid)) - sum(map(len, outcomes(result)))


def test_clients_at_work_do_not_hold_up_an_evaluation(slow):
    pacing = {"method": "buffered", "in_flight": 6, "k": 3}
    flower = {"deadline": 100.0, "poll": POLL, "evaluate": "clients"}
    experiment, grid = slow(pacing, rounds=1, flower=flower)
    result = run_on_grid(grid, experiment)
    assert "not evaluated, being at work: clients 3, 4, 5" in events(result)
    asked = [m.metadata.dst_node_id for m in grid.log if m.metadata.message_type == wire.EVALUATE]
    evaluated = {grid.contexts[node].node_config["partition-id"] for node in asked}
    assert evaluated == {0, 1, 2}


def remembering(method, seen: list[Any]):
    def call(self, *args):
        seen.append(self)
        return method(self, *args)

    return call


# --- repetitions -----------------------------------------------------------------------------------------

PACINGS: dict[str, dict[str, Any]] = {
    "synchronous": {},
    "over-select": {"method": "over-select", "factor": 1.5},
    "deadline": {"method": "deadline", "quantile": 0.6},
    "late": {"method": "deadline", "seconds": 2.5, "late": "use"},
    "buffered": {"method": "buffered", "in_flight": 4, "k": 2},
    "pisces": {"method": "pisces", "in_flight": 4, "first_latency": 2.0},
}


@pytest.mark.parametrize("pacing", PACINGS)
@pytest.mark.parametrize("selection", ["random", "power-of-choice", "oort"])
def test_a_run_is_repeated_to_the_bit(slow, tmp_path, pacing, selection):
    chosen = {"method": selection, "clients_per_round": 2}
    experiment, grid = slow(PACINGS[pacing], rounds=6, selection=chosen)
    draws = np.random.default_rng(5)
    grid.seconds = lambda client, message: float(draws.exponential(SECONDS[client]))
    result = run_on_grid(grid, experiment, out=tmp_path)
    done = replay(str(tmp_path), workers=0)
    assert done.differences == []
    assert done.again.parameters.tobytes() == result.parameters.tobytes()
    assert [r.trainings for r in done.again.records] == [r.trainings for r in result.records]
    assert done.again.history.durations.tobytes() == result.history.durations.tobytes()


def test_several_trainings_a_round_are_repeated(slow, tmp_path):
    chosen = {"method": "terraform", "clients_per_round": 4, "min_clients": 2}
    experiment, grid = slow({"method": "over-select", "factor": 1.5}, rounds=3, selection=chosen)
    run_on_grid(grid, experiment, out=tmp_path)
    assert replay(str(tmp_path), workers=0).differences == []


def test_who_is_simulated_to_be_away_is_away_again(slow, tmp_path):
    away = {"method": "bernoulli", "p": 0.7}
    experiment, grid = slow(PACINGS["buffered"], rounds=6, selection=random(2), availability=away)
    run_on_grid(grid, experiment, out=tmp_path)
    assert replay(str(tmp_path), workers=0).differences == []


class During(Observer):
    """Does something after a round."""

    def __init__(self, actions: dict[int, Callable[[], None]]) -> None:
        self.actions = actions

    def round_ended(self, record, ledger) -> None:
        self.actions.get(record.round, lambda: None)()


def test_faults_lies_and_silence_are_repeated(slow, tmp_path):
    """A client that leaves, one that fails, one whose answer is refused, one that is asked in vain."""
    chosen = {"method": "power-of-choice", "clients_per_round": 5}
    experiment, grid = slow({"method": "deadline", "seconds": 4.5}, rounds=6, selection=chosen)
    nodes = {c.node_config["partition-id"]: n for n, c in grid.contexts.items()}

    def lie(reply: Message) -> Message:
        if reply.metadata.message_type == "train":
            vector = np.full_like(reply.content[wire.ARRAYS][wire.MODEL].numpy(), np.nan)
            reply.content[wire.ARRAYS] = ArrayRecord({wire.MODEL: Array(vector)})
        return reply

    def fail(kind: str) -> Callable[[Message], Message]:
        return lambda reply: error(reply, 2) if reply.metadata.message_type.startswith(kind) else reply

    grid.change[nodes[0]] = lie
    grid.change[nodes[1]] = fail("train")
    changes = During(
        {
            1: lambda: grid.online.discard(nodes[2]),
            2: lambda: grid.change.update({nodes[3]: fail("query.loss")}),
            4: lambda: grid.online.add(nodes[2]),
        }
    )
    result = run_on_grid(grid, experiment, out=tmp_path, observers=[changes])
    seen = {outcome for row in outcomes(result) for outcome in row.values()}
    assert {"used", "failed", "refused"} <= seen
    assert any(record.observed.absent == [2] for record in result.records)
    assert any(silent == [3] for record in result.records for silent in record.observed.silent)
    assert replay(str(tmp_path), workers=0).differences == []


class Killed(BaseException):
    """Nobody catches it."""


def test_a_server_that_is_killed_with_answers_under_way_goes_on_and_can_be_repeated(slow, tmp_path):
    pacing = {"method": "buffered", "in_flight": 6, "k": 2}
    changes = {"rounds": 9, "selection": random(2), "algorithm": {"method": "moon"}}
    experiment, grid = slow(pacing, **changes)

    def kill() -> None:
        raise Killed

    with pytest.raises(Killed):
        run_on_grid(grid, experiment, out=tmp_path, observers=[During({4: kill})])
    _, fresh = slow(pacing, **changes)
    fresh.contexts = grid.contexts  # nodes remember
    result = run_on_grid(fresh, experiment, out=tmp_path, resume=True)
    told = [event for event in result.records[4].events if "once more: the server had been away" in event]
    assert len(told) == 4
    # The two clients that set out in a round get the model; here four more get theirs once again.
    assert [costs.bytes_down // result.spec.bytes for costs in result.ledger.rounds[3:6]] == [2, 6, 2]
    # They are sent the same orders: those whose answers nobody had taken.
    before = Counter(trainings_sent(grid)) - Counter(
        {order: 1 for order in trainings_sent(grid) if int(order[1].split(".")[0]) > 3}
    )
    assert all(order in before for order in trainings_sent(fresh)[:4])
    counted = Counter(client for row in outcomes(result) for client in row)
    sent = Counter(c for c, _ in {*trainings_sent(grid), *trainings_sent(fresh)})
    assert not counted - sent
    ended = [record.ended for record in result.records]
    assert ended == sorted(ended)
    done = replay(str(tmp_path), workers=0)
    assert done.differences == []


def test_what_cannot_be_repeated_is_seen(slow, tmp_path):
    """A client that sent another model than it computed, and was believed."""
    experiment, grid = slow({}, rounds=2)
    node = next(iter(grid.contexts))

    def lie(reply: Message) -> Message:
        if reply.metadata.message_type == "train":
            vector = reply.content[wire.ARRAYS][wire.MODEL].numpy() + np.float32(0.25)
            reply.content[wire.ARRAYS] = ArrayRecord({wire.MODEL: Array(vector)})
        return reply

    grid.change[node] = lie
    run_on_grid(grid, replace(experiment, guard=vars(Guard())), out=tmp_path)
    assert replay(str(tmp_path), workers=0).differences[-1] == "the parameters"


# --- signatures ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pacing",
    [
        {"method": "buffered", "in_flight": 6, "k": 2},
        {"method": "deadline", "seconds": 3.5, "late": "use"},
        {"method": "over-select", "factor": 2.0},
    ],
    ids=lambda pacing: pacing["method"],
)
def test_late_answers_that_are_signed_count_where_the_pacing_says_and_nowhere_else(slow, tmp_path, time, pacing):
    """An answer belongs to its own order, however much later it comes: the same run as without signatures."""
    clients = {"rounds": 4, "selection": random(3)}
    experiment, grid = slow(pacing, **clients)
    plain = run_on_grid(grid, experiment)
    time.now = 1000.0
    allowed = tmp_path / "allowed"
    flower = {"deadline": 100.0, "poll": POLL, "allow_list": str(allowed)}
    experiment, grid = slow(pacing, **clients, flower=flower)
    for context in grid.contexts.values():
        partition = context.node_config["partition-id"]
        key = make_node_key(tmp_path, f"node{partition}")
        add_client(allowed, f"partition-id={partition}", key.public)
        context.node_config[IDENTITY_KEY] = str(key.private)
    signed = run_on_grid(grid, experiment)
    assert np.array_equal(signed.parameters, plain.parameters)
    assert outcomes(signed) == outcomes(plain)
    stale = [s for record in signed.records for training in record.trainings for s in training.flown.staleness]
    assert (max(stale) > 0) == (pacing["method"] != "over-select")
    assert not [event for event in events(signed) if "refused" in event]
