"""The server loop: requests, guard, books, failed rounds, checkpoints, and selectors that people bring."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

import muster
from muster.aggregation.fedavg import FedAvg
from muster.aggregation.median import Median
from muster.aggregation.scaffold import Scaffold
from muster.core.component import state
from muster.core.errors import CheckpointError, ConfigError, TrainingError
from muster.engine.base import Failed, TrainOrder
from muster.engine.local import LocalEngine
from muster.engine.trial import TrialEngine
from muster.engine.wrapped import WrappedEngine
from muster.experiment.parts import build_parts
from muster.pacing.base import Pacing, Wait
from muster.results.store import Recorder, Store
from muster.selection.base import Ask, Plan, Selector, Train, View
from muster.selection.random import RandomSelection
from muster.server.loop import Observer, Server
from muster.server.record import RoundRecord, TrainingRecord
from muster.signals.losses import Loss
from muster.signals.updates import FinalLayerNorm
from muster.training.scaffold import Scaffold as ScaffoldClient
from muster.updates.guard import Guard
from muster.updates.table import Updates
from muster.world.clock import Errand
from muster.world.devices.base import Devices

BYTES = 4


@dataclass
class Fixed(Selector):
    """Trains the same clients each round."""

    clients: tuple[int, ...]
    options: dict

    def round(self, fed: View) -> Plan:
        yield Train(np.array(self.clients), **self.options)


class Tampering(WrappedEngine):
    """An engine whose clients answer what the test says."""

    def __init__(self, inner: LocalEngine, change) -> None:
        super().__init__(inner)
        self._change = change

    def train(self, order: TrainOrder) -> Iterator[Updates | Failed]:
        for answers in self.inner.train(order):
            for answer in answers if isinstance(answers, Updates) else (answers,):
                yield self._change(order.place.round, answer)


def server(tiny, selector=None, aggregator=None, change=None, **options) -> Server:
    parts = build_parts(tiny(), workers=0)
    engine = parts.engine if change is None else Tampering(parts.engine, change)
    return Server(selector or parts.selector, aggregator or FedAvg(), engine, **options)


def spoiled(client: int, value, rounds=(0,)):
    def change(round, answer):
        if answer.clients[0] != client or round not in rounds:
            return answer
        given = np.asarray(value, dtype=np.float32)
        movements = np.full_like(answer.movements, given) if np.isscalar(value) else given[None]
        return replace(answer, movements=movements)

    return change


# --- the guard in the loop -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "reason"), [(math.nan, "non-finite"), (1e30, "beyond the bound"), ([1.0, 2.0], "wrong shape")]
)
@pytest.mark.parametrize("aggregation", ["fedavg", "simprox"])
def test_a_bad_update_is_refused_and_the_round_goes_on(tiny, value, reason, aggregation):
    from muster.aggregation.base import aggregators

    selector = Fixed((0, 1, 2, 3), {})
    made = aggregators.build(aggregation, {})
    result = server(tiny, selector, made, spoiled(2, value), guard=Guard(max_norm=1e6)).run(2)
    assert reason in result.records[0].trainings[0].rejected[2]
    assert result.selections == [[[0, 1, 3]], [[0, 1, 2, 3]]]
    assert np.isfinite(result.parameters).all()
    assert result.rejected[0][:2] == (1, 2)
    without = server(tiny, Fixed((0, 1, 3), {}), aggregators.build(aggregation, {})).run(1)
    again = server(
        tiny, selector, aggregators.build(aggregation, {}), spoiled(2, value), guard=Guard(max_norm=1e6)
    )
    assert np.array_equal(without.parameters, again.run(1).parameters)


def test_a_round_without_a_valid_update_keeps_the_model_and_is_recorded(tiny):
    made = server(tiny, Fixed((2,), {}), change=spoiled(2, math.nan))
    before = made.parameters.copy()
    result = made.run(1)
    assert np.array_equal(result.parameters, before)
    assert result.records[0].failed
    assert result.history.trainings.sum() == 0
    assert result.history.failures[2] == 1


def test_a_run_that_only_fails_stops_and_says_why(tiny):
    made = server(tiny, Fixed((2,), {}), change=spoiled(2, math.nan, range(99)), guard=Guard(max_failed_rounds=3))
    with pytest.raises(TrainingError, match=r"3 rounds in a row had no valid update.*client 2: non-finite"):
        made.run(20)


def test_diverging_training_is_caught_not_hidden(tiny):
    with pytest.raises(TrainingError, match="no valid update"):
        muster.run(tiny(training={"lr": 1e30}, rounds=10, guard={"max_failed_rounds": 2}), workers=0)


class Growing(TrialEngine):
    """Two clients, and two more from round 2 on."""

    def __init__(self) -> None:
        super().__init__(4, algorithm=ScaffoldClient())
        self._everybody = self._population
        self._population = replace(self._everybody, sizes=self._everybody.sizes[:2])

    def begin_round(self, round: int) -> None:
        if round:
            self._population = self._everybody


def test_the_aggregation_learns_of_clients_that_join():
    """SCAFFOLD's control variate is a mean over all clients: two before round 2, four from then on."""
    aggregator = Scaffold()
    made = Server(RandomSelection(clients_per_round=1), aggregator, Growing())
    made.run(1)
    alone = aggregator.control.copy()
    assert np.any(alone)
    made.selector = Fixed((3,), {"keep": lambda replies: np.zeros(1, dtype=bool)})  # nothing is learnt any more
    made.run(2)
    np.testing.assert_allclose(aggregator.control, alone / 2)


# --- requests --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clients", "options", "message"),
    [
        ((0, 12), {}, "client 12"),
        ((-1,), {}, "client -1"),
        ((3, 3), {}, "same client twice"),
        ((0, 1), {"multiplicity": np.array([1])}, "1 multiplicity for 2 clients"),
        ((0, 1), {"weights": np.array([1.0])}, "1 weights for 2 clients"),
        ((0.5, 1.5), {}, "integer"),
        ((0, 1), {"weights": np.array([1.0, math.nan])}, "finite"),
        ((0, 1), {"weights": np.array([1.0, math.inf])}, "finite"),
        ((0, 1), {"weights": np.array([2.0, -1.0])}, "none negative"),
        ((0, 1), {"report": (Loss(),)}, "'loss' cannot be reported by a training"),
    ],
)
def test_a_selector_that_asks_for_nonsense_is_told_so(tiny, clients, options, message):
    with pytest.raises(ConfigError, match=message):
        server(tiny, Fixed(clients, options)).run(1)


@pytest.mark.parametrize("options", [{"weights": np.array([3.0, 1.0])}, {"multiplicity": np.array([2, 1])}])
def test_what_the_aggregation_would_ignore_is_refused(tiny, options):
    with pytest.raises(ConfigError, match="Median would ignore"):
        server(tiny, Fixed((0, 1), options), Median()).run(1)


def test_a_signal_that_exists_only_after_training_cannot_be_asked_for(tiny):
    class TooEarly(Selector):
        def round(self, fed):
            yield Ask(fed.available, (FinalLayerNorm(),))

    with pytest.raises(ConfigError, match="'final_layer_norm' cannot be asked for"):
        server(tiny, TooEarly()).run(1)


def test_a_selector_cannot_write_to_what_it_is_shown(tiny):
    class Vandal(Selector):
        def round(self, fed):
            for array in (fed.sizes, fed.available, fed.history.trainings):
                with pytest.raises(ValueError, match="read-only"):
                    array[0] = 5
            yield Train(fed.sample(2))

    assert len(server(tiny, Vandal()).run(1).records) == 1


def test_clients_that_cannot_be_reached_are_not_trained(tiny):
    made = tiny(selection=Fixed(tuple(range(12)), {}), availability={"method": "bernoulli", "p": 0.5})
    with pytest.raises(ConfigError, match="cannot be reached in round 1"):
        muster.run(made, workers=0)


def test_an_aggregate_that_is_not_finite_never_becomes_the_model(tiny):
    made = server(tiny, Fixed((0, 1), {}), FedAvg(server_lr=1e300))
    before = made.parameters.copy()
    with (
        pytest.raises(TrainingError, match="FedAvg returned parameters that are not finite"),
        np.errstate(over="ignore"),
    ):
        made.run(1)
    assert np.array_equal(made.parameters, before)


def test_multiplicity_counts_a_client_twice(tiny):
    once = server(tiny, Fixed((0,), {}), FedAvg(weights="equal")).run(1)
    other = server(tiny, Fixed((1,), {}), FedAvg(weights="equal")).run(1)
    both = server(tiny, Fixed((0, 1), {"multiplicity": np.array([2, 1])}), FedAvg(weights="equal")).run(1)
    expected = (2 * once.parameters.astype(np.float64) + other.parameters) / 3
    assert both.parameters == pytest.approx(expected, abs=1e-6)
    assert both.records[0].trainings[0].weights == pytest.approx([2 / 3, 1 / 3])


def test_weights_of_the_selector_replace_those_of_the_aggregator(tiny):
    result = server(tiny, Fixed((0, 1), {"weights": np.array([3.0, 1.0])})).run(1)
    assert result.records[0].trainings[0].weights == pytest.approx([0.75, 0.25])


@dataclass
class KeepsTheFirst(Selector):
    def round(self, fed: View) -> Plan:
        replies = yield Train(
            np.array([1, 4, 6]), (FinalLayerNorm(),), keep=lambda replies: replies.clients == replies.clients[0]
        )
        assert replies.clients.tolist() == [1, 4, 6]


def test_a_selector_may_leave_updates_out_after_training(tiny):
    result = server(tiny, KeepsTheFirst()).run(1)
    training = result.records[0].trainings[0]
    assert (training.clients, training.left_out) == ([1], [4, 6])
    assert result.ledger.total().client_trainings == 3
    assert np.array_equal(result.parameters, server(tiny, Fixed((1,), {})).run(1).parameters)


# --- books -----------------------------------------------------------------------------------------------


@dataclass
class AsksThenTrainsTwice(Selector):
    def round(self, fed: View) -> Plan:
        losses = yield Ask(np.arange(6), (Loss(),))
        assert losses["loss"].shape == (6,)
        worst = losses.clients[np.argsort(-losses["loss"])[:3]]
        reports = yield Train(np.sort(worst), (FinalLayerNorm(),))
        assert np.all(reports["final_layer_norm"] > 0)
        yield Train(reports.clients[:1])


def test_the_ledger_counts_every_exchange(tiny):
    made = server(tiny, AsksThenTrainsTwice())
    result = made.run(2)
    sizes, model = made.engine.population.sizes, made.engine.population.spec.bytes
    costs = result.ledger.rounds[0]
    first, second = result.selections[0]
    assert (len(first), len(second)) == (3, 1)
    assert costs.client_trainings == 4
    assert costs.samples == sizes[first].sum() + sizes[second].sum()
    assert costs.local_steps == sum(math.ceil(sizes[c] / 16) for c in [*first, *second])
    assert costs.probe_samples == sizes[:6].sum()
    assert costs.bytes_down == model * (6 + 4)
    assert costs.bytes_up == model * 4 + 6 * BYTES
    assert result.ledger.disclosed[0] == {"model update": 4, Loss.discloses: 6}
    total = result.ledger.total()
    assert total.client_trainings == 8
    assert result.metrics[-1]["client_trainings"] == 8
    assert result.metrics[0]["bytes_up"] == costs.bytes_up


@pytest.mark.parametrize("aggregation", [FedAvg(), Median()], ids=["stream", "matrix"])
def test_a_refused_update_has_cost_as_much_as_any_other(tiny, aggregation):
    fine = server(tiny, Fixed((0, 1, 2), {}), aggregation).run(1)
    spoilt = server(tiny, Fixed((0, 1, 2), {}), aggregation, spoiled(2, math.nan)).run(1)
    assert spoilt.selections == [[[0, 1]]]
    for name in ("client_trainings", "local_steps", "samples", "bytes_up", "bytes_down"):
        assert getattr(spoilt.ledger.total(), name) == getattr(fine.ledger.total(), name)
    assert spoilt.ledger.disclosed == fine.ledger.disclosed


def test_the_history_tells_trainings_from_rounds(tiny):
    result = server(tiny, AsksThenTrainsTwice()).run(1)
    first, second = result.selections[0]
    assert result.history.trainings[second[0]] == 2
    assert result.history.rounds[second[0]] == 1
    assert set(np.flatnonzero(result.history.last_round == 0)) == set(first)
    assert np.isfinite(result.history.last("loss")[:6]).all()
    assert np.isnan(result.history.last("loss")[6:]).all()
    with pytest.raises(ValueError, match="read-only"):
        result.history.trainings[0] = 5


def test_metrics_tell_three_accuracies_apart(tiny):
    result = muster.run(tiny(), workers=0)
    row = result.metrics[-1]
    assert {"accuracy", "client_accuracy_mean", "client_accuracy_worst", "participant_accuracy"} <= set(row)
    assert row["client_accuracy_worst"] <= row["client_accuracy_mean"]
    assert row["participant_accuracy"] != row["accuracy"]
    assert 0 < row["f1"] <= 1


def test_the_last_iteration_is_that_of_the_rounds_last_training(tiny):
    result = server(tiny, AsksThenTrainsTwice()).run(2)
    record, row = result.records[-1], result.metrics[-1]
    first, last = (training.clients for training in record.trainings)
    assert set(last) < set(first)
    assert row["last_iteration_accuracy"] == pytest.approx(np.mean(record.client_accuracy[last]))
    assert row["participant_accuracy"] == pytest.approx(np.mean(record.client_accuracy[first]))


def test_a_last_training_without_valid_updates_does_not_count_as_the_last_iteration():
    trainings = [TrainingRecord([1, 2], [0.5, 0.5]), TrainingRecord([], [], rejected={2: "not finite"})]
    assert RoundRecord(1, trainings).last_trained == [1, 2]
    assert RoundRecord(1).last_trained == []


def test_evaluation_can_be_rarer_than_rounds(tiny):
    result = muster.run(tiny(rounds=5, evaluation={"every": 2}), workers=0)
    measured = [row["round"] for row in result.metrics if not math.isnan(row["accuracy"])]
    assert measured == [2, 4, 5]
    assert result.series("accuracy")[0].tolist() == [2, 4, 5]


def test_requests_take_lists_of_ids(tiny):
    class Listed(Selector):
        def round(self, fed):
            losses = yield Ask([0, 1], (Loss(),))
            assert losses.clients.tolist() == [0, 1]
            yield Train([2, 3])

    assert server(tiny, Listed()).run(1).selections == [[[2, 3]]]


def test_a_round_that_is_no_generator_is_told_so(tiny):
    class Returns(Selector):
        def round(self, fed):
            return Train([0])

    with pytest.raises(ConfigError, match=r"Returns\.round returned a Train"):
        server(tiny, Returns()).run(1)


@pytest.mark.parametrize("mask", [[True], [1, 0, 1], None])
def test_a_mask_that_cannot_be_understood_is_told_so(tiny, mask):
    with pytest.raises(ConfigError, match="`keep` gave"):
        server(tiny, Fixed((0, 1, 2), {"keep": lambda replies: mask})).run(1)


def test_probed_models_are_refused_where_their_steps_lack_corrections(tiny):
    made = tiny(
        selection={"method": "probe-fairness", "clients_per_round": 3},
        algorithm={"method": "scaffold"},
        aggregation={"method": "scaffold"},
    )
    with pytest.raises(ConfigError, match="probed models"):
        muster.run(made, workers=0)


def test_steps_of_a_probe_count_for_aggregation_but_not_twice_in_the_ledger(tiny):
    seen = []

    class Watching(FedAvg):
        def weight(self, updates):
            seen.extend(zip(updates.clients.tolist(), updates.steps.tolist(), strict=True))
            return super().weight(updates)

    made = tiny(selection={"method": "probe-fairness", "clients_per_round": 4}, rounds=1)
    parts = build_parts(made, workers=0)
    result = Server(parts.selector, Watching(), parts.engine).run(1)
    needed = {c: math.ceil(parts.engine.population.sizes[c] / 16) for c, _ in seen}
    assert dict(seen) == needed
    assert result.ledger.total().local_steps == sum(max(0, steps - 2) for steps in needed.values())


@pytest.mark.parametrize("credit", ["batches", "epoch"])
def test_what_follows_a_probe_takes_the_time_of_the_samples_that_are_trained(tiny, credit, monkeypatch):
    charged, trained = {}, {}

    class Watching(FedAvg):
        def weight(self, updates):
            trained.update(zip(updates.clients.tolist(), updates.numbers["samples"].tolist(), strict=True))
            return super().weight(updates)

    def noted(clients, samples, *rest):
        charged.update(zip(clients.tolist(), samples.tolist(), strict=True))
        return Errand(clients, samples, *rest)

    monkeypatch.setattr("muster.server.sending.Errand", noted)
    selection = {"method": "probe-fairness", "clients_per_round": 4, "credit": credit}
    made = tiny(selection=selection, training={"epochs": 2}, devices={"model": "lognormal"}, rounds=1)
    parts = build_parts(made, workers=0)
    Server(parts.selector, Watching(), parts.engine, devices=parts.devices).run(1)
    assert len(trained) == 4
    assert charged == trained


def test_the_rounds_before_a_failure_are_written_and_go_with_the_error(tiny, tmp_path):
    made = tiny(training={"lr": 1e30}, rounds=9, guard={"max_failed_rounds": 2})
    with pytest.raises(TrainingError) as caught:
        muster.run(made, workers=0, out=tmp_path)
    assert len(caught.value.result.records) >= 2
    assert "non-finite" in (tmp_path / "selections.json").read_text()


def test_a_round_that_breaks_off_leaves_the_rounds_before(tiny, tmp_path, monkeypatch):
    whole = Server._measure

    def breaks(self, record, rounds):
        if record.round == 3:
            raise TrainingError("something broke")
        whole(self, record, rounds)

    monkeypatch.setattr(Server, "_measure", breaks)
    with pytest.raises(TrainingError, match="something broke") as caught:
        muster.run(tiny(rounds=4), workers=0, out=tmp_path)
    assert [row["round"] for row in caught.value.result.metrics] == [1, 2]
    assert len((tmp_path / "metrics.csv").read_text().splitlines()) == 3


def test_a_result_is_not_changed_by_later_rounds(tiny):
    made = server(tiny)
    first = made.run(1)
    made.run(3)
    assert (len(first.records), len(first.metrics), len(first.ledger.rounds)) == (1, 1, 1)


# --- stopping and going on -------------------------------------------------------------------------------


@dataclass
class Counting(Selector):
    """Keeps state: trains one more client each round."""

    seen: int = state(int)

    def round(self, fed: View) -> Plan:
        self.seen += 1
        yield Train(fed.sample(self.seen))


class StopAfter(Observer):
    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def round_ended(self, record, ledger) -> None:
        self.rounds -= 1

    def wants_stop(self) -> bool:
        return self.rounds <= 1


def claimed(store: Store, rounds: int, every: int = 1) -> Recorder:
    return store.claim(
        "same", {"name": "same", "seed": 0, "rounds": rounds, "config": {}}, every=every, resume=True
    )


def test_going_on_from_a_checkpoint_equals_never_stopping(tiny, tmp_path):
    whole = server(tiny, Counting()).run(5)
    store = Store(tmp_path)
    with claimed(store, 5, every=10) as recorder:
        part = server(tiny, Counting(), observers=[StopAfter(2)]).run(5, recorder)
    assert (len(part.records), part.complete) == (2, False)
    with claimed(store, 5, every=10) as recorder:
        rest = server(tiny, Counting()).run(5, recorder)
    assert rest.complete
    assert np.array_equal(whole.parameters, rest.parameters)
    assert whole.selections == rest.selections
    assert [len(s[0]) for s in rest.selections] == [1, 2, 3, 4, 5]
    assert str(whole.metrics) == str(rest.metrics)
    assert whole.history.trainings.tolist() == rest.history.trainings.tolist()


def test_a_checkpoint_whose_components_have_changed_is_refused(tiny, tmp_path):
    store = Store(tmp_path)
    with claimed(store, 2) as recorder:
        server(tiny, Fixed((1,), {}), observers=[StopAfter(1)]).run(2, recorder)
    with pytest.raises(CheckpointError, match="does not fit"), claimed(store, 2) as recorder:
        server(tiny, Counting()).run(2, recorder)
    assert store.run("same").status == "failed"


def test_a_selector_of_fifteen_lines_needs_no_registration(tiny):
    class Greedy(Selector):
        """Asks everybody for the loss, trains the three worst."""

        def round(self, fed):
            losses = yield Ask(fed.available, (Loss(),))
            worst = losses.clients[np.argsort(-losses["loss"])[:3]]
            yield Train(np.sort(worst))

    result = muster.run(tiny(selection=Greedy()), workers=2)
    assert [len(round[0]) for round in result.selections] == [3, 3, 3]
    assert result.name == "Greedy"


@pytest.mark.parametrize("looks", [False, True])
def test_a_pacing_gets_durations_only_if_it_looks_at_them(looks):
    """There may be millions of them."""

    class Curious(Pacing):
        looks_at_durations = looks

        def wait(self, started: int, durations: np.ndarray) -> Wait:
            seen.append(len(durations))
            return Wait(started)

    seen: list[int] = []
    devices = Devices(np.full(6, 20.0), np.full(6, 1e12), np.full(6, 1e12))
    Server(Fixed((0, 1, 2), {}), FedAvg(), TrialEngine(6), devices=devices, pacing=Curious()).run(3)
    assert set(seen) == ({0, 3} if looks else {0})
