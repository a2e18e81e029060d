"""What clients remember goes on only with updates that the server has used: federations with a known optimum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import muster
from muster.aggregation.base import Aggregator
from muster.aggregation.fedavg import FedAvg
from muster.aggregation.feddyn import FedDyn as FedDynServer
from muster.aggregation.krum import MultiKrum
from muster.aggregation.scaffold import Scaffold as ScaffoldServer
from muster.aggregation.simprox import SimProx
from muster.core.errors import ConfigError, TrainingError
from muster.data.federated import Dataset, FederatedData, Index, Samples
from muster.engine.base import Engine, Failed, TrainOrder
from muster.engine.local import LocalEngine
from muster.engine.task import Place
from muster.engine.trial import small_spec
from muster.engine.vectorised.engine import VectorisedEngine
from muster.engine.wrapped import WrappedEngine
from muster.selection.base import Plan, Selector, Train, View
from muster.server.loop import Observer, Server
from muster.training.base import LocalAlgorithm, LocalTraining, Plain
from muster.training.continued import FIRST, Continued
from muster.training.feddyn import GRADIENT, FedDyn
from muster.training.moon import PREVIOUS, Moon
from muster.training.scaffold import CONTROL, Scaffold
from muster.updates.guard import Guard
from muster.updates.table import Updates

CLIENTS, SAMPLES, FEATURES, CLASSES = 4, 12, 3, 3
#: Full batches and weight decay: smooth and strongly convex.
TRAINING = LocalTraining(lr=0.5, steps=8, batch_size=SAMPLES, weight_decay=0.1)
ENGINES = {"one by one": LocalEngine, "side by side": VectorisedEngine}
#: The round (0-based) in which one client's update is not used, and that client.
ROUND, VICTIM = 2, 1


def federation() -> FederatedData:
    rng = np.random.default_rng(5)
    features = rng.normal(size=(CLIENTS * SAMPLES, FEATURES)).astype(np.float32)
    shares = [rng.dirichlet(np.full(CLASSES, 0.3)) for _ in range(CLIENTS)]
    labels = np.concatenate([rng.choice(CLASSES, SAMPLES, p=share) for share in shares])
    samples = Samples(features, labels)
    index = Index.from_lists(list(np.arange(CLIENTS * SAMPLES).reshape(CLIENTS, SAMPLES)))
    return FederatedData(Dataset("convex", samples, samples, CLASSES), index)


def slope(parameters: np.ndarray, decay: float) -> float:
    """Length of the gradient of the mean of all clients' losses: zero at the optimum. In float64, by hand."""
    train = federation().dataset.train
    weight = torch.tensor(parameters[: FEATURES * CLASSES].reshape(CLASSES, FEATURES), dtype=torch.float64)
    bias = torch.tensor(parameters[FEATURES * CLASSES :], dtype=torch.float64)
    weight.requires_grad_(), bias.requires_grad_()
    logits = torch.from_numpy(np.asarray(train.features, dtype=np.float64)) @ weight.T + bias
    loss = nn.functional.cross_entropy(logits, torch.from_numpy(train.labels))
    loss = loss + decay / 2 * (weight.square().sum() + bias.square().sum())
    loss.backward()
    return float(torch.cat([weight.grad.flatten(), bias.grad]).norm())


@dataclass
class Everybody(Selector):
    """Trains all clients; in round ROUND it may leave the victim's answer out, or give it no weight."""

    leave_out: bool = False
    weightless: bool = False

    def round(self, fed: View) -> Plan:
        clients = np.arange(CLIENTS)
        if self.leave_out and fed.round == ROUND:
            yield Train(clients, keep=lambda replies: replies.clients != VICTIM)
        elif self.weightless and fed.round == ROUND:
            yield Train(clients, weights=(clients != VICTIM).astype(float))
        else:
            yield Train(clients)


class Tampering(WrappedEngine):
    """An engine on which the victim's answer is lost or too long in round ROUND."""

    def __init__(self, inner: Engine, mishap: str) -> None:
        super().__init__(inner)
        self._mishap = mishap

    def train(self, order: TrainOrder) -> Iterator[Updates | Failed]:
        for answers in self.inner.train(order):
            for answer in answers if isinstance(answers, Updates) else (answers,):
                if isinstance(answer, Failed) or (order.place.round, answer.clients[0]) != (ROUND, VICTIM):
                    yield answer
                elif self._mishap == "failed":
                    yield Failed(VICTIM, "the answer was lost")
                else:
                    answer.movements[:] = np.nan if self._mishap == "not finite" else 1e4
                    yield answer


def engine_of(kind: str, algorithm: LocalAlgorithm, training: LocalTraining = TRAINING, workers: int = 0):
    module = nn.Sequential(nn.Linear(FEATURES, CLASSES))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    return ENGINES[kind](federation(), module, training, algorithm, workers=workers)


def run(kind: str, algorithm: LocalAlgorithm, aggregator: Aggregator, mishap: str, rounds: int, **options):
    selector = Everybody(leave_out=mishap == "left out", weightless=mishap == "weightless")
    with engine_of(kind, algorithm, **options) as engine:
        made = Tampering(engine, mishap) if mishap in {"failed", "too long", "not finite"} else engine
        server = Server(selector, aggregator, made, guard=Guard(max_norm=1e3), evaluate_every=rounds)
        result = server.run(rounds)
        if rounds > ROUND:
            met = VICTIM in result.records[ROUND].trainings[0].clients
            assert met == (mishap in {"none", "weightless"})
        return SimpleNamespace(parameters=result.parameters, state=engine.state_dict()["clients"], server=server)


MISHAPS = ["none", "failed", "too long", "not finite", "left out"]


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("mishap", [*MISHAPS, "weightless"])
def test_scaffold_reaches_the_optimum_although_an_update_was_not_used(kind, mishap) -> None:
    done = run(kind, Scaffold(), ScaffoldServer(), mishap, 40)
    assert slope(done.parameters, TRAINING.weight_decay) < 1e-6
    np.testing.assert_allclose(
        done.server.aggregator.control, done.state[CONTROL]["vectors"].mean(axis=0), atol=1e-6
    )


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("mishap", MISHAPS)
def test_feddyn_reaches_the_optimum_although_an_update_was_not_used(kind, mishap) -> None:
    done = run(kind, FedDyn(alpha=0.3), FedDynServer(), mishap, 60)
    assert slope(done.parameters, TRAINING.weight_decay) < 1e-6
    # The server's sum of movements is that of the clients: h = −(1/N) Σ g_k.
    drift = -done.state[GRADIENT]["vectors"].mean(axis=0) / 0.3
    np.testing.assert_allclose(done.server.aggregator.drift, drift, atol=1e-5)


def test_fedavg_misses_that_optimum() -> None:
    """Otherwise the two tests above would say nothing."""
    assert slope(run("one by one", Plain(), FedAvg(), "none", 40).parameters, TRAINING.weight_decay) > 0.02


# --- what stays, algorithm by algorithm ------------------------------------------------------------------


@pytest.mark.parametrize("mishap", MISHAPS[1:])
@pytest.mark.parametrize(
    ("algorithm", "name"), [(Moon(), PREVIOUS), (Continued(), FIRST)], ids=["moon", "continued"]
)
def test_memories_stay_as_they_were(algorithm, name, mishap) -> None:
    training = replace(TRAINING, momentum=0.9, lr=0.1)
    before = run("one by one", algorithm, FedAvg(), "none", ROUND, training=training)
    after = run("one by one", algorithm, FedAvg(), mishap, ROUND + 1, training=training)
    for client in range(CLIENTS):
        same = np.array_equal(after.state[name]["vectors"][client], before.state[name]["vectors"][client])
        assert same == (client == VICTIM)


def test_an_update_that_the_aggregation_gave_no_weight_leaves_the_memory_alone() -> None:
    """Multi-Krum chooses among updates: who is not chosen keeps the model before."""
    done = run("one by one", Moon(), MultiKrum(attackers=0, keep=2), "none", 1)
    (training,) = done.server.records[0].trainings
    chosen = [c for c, weight in zip(training.clients, training.weights, strict=True) if weight > 0]
    assert len(chosen) == 2
    assert done.state[PREVIOUS]["clients"].tolist() == chosen


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("how", ["raises", "not finite"])
def test_an_aggregation_that_failed_leaves_all_states_alone(kind, how) -> None:
    aggregator = ScaffoldServer()

    def finish():
        if how == "raises":
            raise TrainingError("nothing to be done")
        result = ScaffoldServer.finish(aggregator)
        return replace(result, parameters=np.full_like(result.parameters, np.nan))

    with engine_of(kind, Scaffold()) as engine:
        server = Server(Everybody(), aggregator, engine)
        server.run(ROUND)
        expected = engine.state_dict()["clients"][CONTROL]["vectors"].copy()
        aggregator.finish = finish
        with pytest.raises(TrainingError):
            server.run(ROUND + 1)
        np.testing.assert_array_equal(engine.state_dict()["clients"][CONTROL]["vectors"], expected)


@pytest.mark.parametrize("kind", ENGINES)
def test_a_training_that_was_broken_off_leaves_all_states_alone(kind) -> None:
    with engine_of(kind, Scaffold()) as engine:
        zeros = np.zeros(engine.spec.size, dtype=np.float32)
        order = TrainOrder(np.arange(CLIENTS), zeros, Place(0, 0, 0), 0.5, broadcast=zeros)
        first = [answer.extra["control_change"][0].copy() for part in engine.train(order) for answer in part]
        assert engine.state_dict()["clients"] == {}
        # Nobody settled: the same training again starts from the same states.
        again = [answer.extra["control_change"][0].copy() for part in engine.train(order) for answer in part]
        np.testing.assert_array_equal(first, again)
        engine.settle(np.array([0, 2]), np.array([1, 3]))
        assert engine.state_dict()["clients"][CONTROL]["clients"].tolist() == [0, 2]


@pytest.mark.parametrize("kind", ENGINES)
def test_what_is_provisional_is_given_back(kind) -> None:
    """Only the cohort in flight is there twice."""
    with engine_of(kind, Scaffold()) as engine:
        Server(Everybody(), ScaffoldServer(), engine).run(2)
        assert engine._provisional.resident_bytes == 0
        assert engine._store.resident_bytes > 0


def test_simprox_remembers_only_models_that_were_used() -> None:
    aggregator = SimProx(prev="own_last", post="normalise")
    done = run("one by one", Plain(), aggregator, "left out", ROUND + 1)
    saved = aggregator.state_dict()["last_models"]["last_model"]
    again = SimProx(prev="own_last", post="normalise")
    run("one by one", Plain(), again, "none", ROUND)
    before = again.state_dict()["last_models"]["last_model"]
    assert done.server.records[ROUND].trainings[0].left_out == [VICTIM]
    for client in range(CLIENTS):
        assert np.array_equal(saved["vectors"][client], before["vectors"][client]) == (client == VICTIM)


def test_simprox_forgets_models_of_weight_zero() -> None:
    """A client that moved so far that exp(−change) is zero in floating point has no part in the result."""
    aggregator = SimProx(prev="own_last", post="normalise")
    spec = small_spec(3)
    movements = np.full((3, spec.size), 0.01, dtype=np.float32)
    movements[2] = 1e4
    ones = np.ones(3, dtype=np.int64)
    updates = Updates.from_movements(movements, sizes=ones)
    result = aggregator.aggregate(np.ones(spec.size, dtype=np.float32), updates, spec)
    assert result.weights[2] == 0
    assert aggregator.state_dict()["last_models"]["last_model"]["clients"].tolist() == [0, 1]


# --- the same bits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ENGINES)
def test_any_number_of_workers_gives_the_same_states(kind) -> None:
    runs = [run(kind, Scaffold(), ScaffoldServer(), "too long", 5, workers=workers) for workers in (0, 2)]
    np.testing.assert_array_equal(runs[0].parameters, runs[1].parameters)
    np.testing.assert_array_equal(*(done.state[CONTROL]["vectors"] for done in runs))


class StopAfter(Observer):
    def __init__(self, rounds: int) -> None:
        self.left = rounds

    def wants_stop(self) -> bool:
        self.left -= 1
        return self.left == 0


@pytest.mark.parametrize("method", ["scaffold", "feddyn"])
@pytest.mark.parametrize("engine", ["processes", "vectorised"])
def test_a_run_with_refused_updates_goes_on_with_the_same_bits(tiny, tmp_path, method, engine) -> None:
    def setup():
        # A bound that refuses some updates in every round.
        return tiny(
            rounds=4,
            algorithm={"method": method},
            aggregation={"method": method},
            guard={"max_norm": 0.75},
            engine={"kind": engine},
        )

    through = muster.run(setup(), workers=0)
    refused = [record.trainings[0].rejected for record in through.records]
    assert any(refused)
    assert any(record.trainings[0].clients for record in through.records)
    muster.run(setup(), workers=0, out=tmp_path / "run", observers=[StopAfter(2)])
    resumed = muster.run(setup(), workers=2, out=tmp_path / "run", resume=True)
    np.testing.assert_array_equal(resumed.parameters, through.parameters)


def test_feddyn_with_clipping_on_the_server_is_refused_before_round_one() -> None:
    with engine_of("one by one", FedDyn()) as engine, pytest.raises(ConfigError, match="clip_norm"):
        Server(Everybody(), FedDynServer(clip_norm=1.0), engine).run(1)


# --- SCAFFOLD's options ----------------------------------------------------------------------------------

TRAININGS = {
    "plain": TRAINING,
    "momentum": replace(TRAINING, lr=0.05, steps=10, momentum=0.9),
    "nesterov": replace(TRAINING, lr=0.05, steps=10, momentum=0.9, nesterov=True),
    # Weight decay is not clipped: a bound below its length at the optimum (0.21) would move that point.
    "clipped": replace(TRAINING, clip_norm=0.3),
}


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("training", TRAININGS)
def test_scaffold_reaches_the_optimum_with(kind, option, training) -> None:
    """In float32: 1e-7 is the gradient that rounding the parameters makes."""
    chosen = TRAININGS[training]
    done = run(kind, Scaffold(option=option), ScaffoldServer(), "none", 60, training=chosen)
    assert slope(done.parameters, chosen.weight_decay) < 1e-7


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_reaches_the_optimum_with_rates_of_the_clients_own(kind, option) -> None:
    @dataclass
    class OwnRates(Selector):
        def round(self, fed: View) -> Plan:
            yield Train(np.arange(CLIENTS), lr_factors=np.array([0.5, 1.0, 0.25, 0.8]))

    with engine_of(kind, Scaffold(option=option), TRAININGS["momentum"]) as engine:
        result = Server(OwnRates(), ScaffoldServer(), engine, evaluate_every=60).run(60)
    # Steps of a quarter of the rate lose more of a small gradient to rounding.
    assert slope(result.parameters, TRAINING.weight_decay) < 1e-6


@pytest.mark.parametrize("kind", ENGINES)
def test_the_pass_of_option_one_is_in_the_ledger(kind) -> None:
    one, two = (run(kind, Scaffold(option=option), ScaffoldServer(), "none", 1).server for option in ("I", "II"))
    steps = CLIENTS * TRAINING.steps
    assert two.ledger.total().samples == steps * SAMPLES
    assert one.ledger.total().samples == steps * SAMPLES + CLIENTS * SAMPLES
    assert one.ledger.total().local_steps == two.ledger.total().local_steps == steps


@pytest.mark.parametrize("kind", ENGINES)
def test_option_two_with_adam_is_refused_before_round_one(kind) -> None:
    adam = LocalTraining(lr=0.1, optimizer="adam")
    with engine_of(kind, Scaffold(), adam) as engine, pytest.raises(ConfigError, match="option II"):
        Server(Everybody(), ScaffoldServer(), engine).run(1)
