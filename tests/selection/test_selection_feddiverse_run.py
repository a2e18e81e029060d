"""FedDiverse in whole runs: what pre-training leaves behind, and how well triplets are estimated."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from muster.aggregation.fedavg import FedAvg
from muster.aggregation.fedavgm import FedAvgM
from muster.core.errors import ConfigError
from muster.core.randomness import generator
from muster.data.federated import Dataset, FederatedData, Index, Samples
from muster.data.partition.group_skew import named_tables
from muster.engine.local import LocalEngine
from muster.experiment.parts import build_parts
from muster.heterogeneity.metrics import triplets
from muster.selection.base import Ask, Plan, Selector, View
from muster.selection.feddiverse import FedDiverse, by_correlation
from muster.selection.random import RandomSelection
from muster.server.loop import Server
from muster.signals.base import Replies
from muster.signals.losses import Loss
from muster.training.base import LocalTraining

BYTES = 4


# --- pre-training ----------------------------------------------------------------------------------------


def test_pretraining_is_fedavg_whatever_the_aggregator(tiny):
    """T₀ rounds give the model that FedAvg with everybody gives, and leave the aggregator as it was."""
    runs = {}
    for name, selector, aggregator in [
        ("feddiverse", FedDiverse(5, pretraining_rounds=2), FedAvgM(momentum=0.9, server_lr=0.1)),
        ("everybody", RandomSelection(12), FedAvg(weights="equal")),
    ]:
        with build_parts(tiny(), workers=0).engine as engine:
            runs[name] = Server(selector, aggregator, engine).run(2).parameters
        if name == "feddiverse":
            untouched = FedAvgM(momentum=0.9, server_lr=0.1)
            assert str(aggregator.state_dict()) == str(untouched.state_dict())
    np.testing.assert_allclose(runs["feddiverse"], runs["everybody"], rtol=0, atol=1e-6)


def test_clipping_and_guard_stay_those_of_the_run(tiny):
    with build_parts(tiny(), workers=0).engine as engine:
        server = Server(FedDiverse(5), FedAvgM(clip_norm=1e-3), engine)
        start = server.parameters.copy()
        moved = server.run(1).parameters - start
    assert 0 < np.linalg.norm(moved) <= 1e-3 * (1 + 1e-5)


@pytest.mark.parametrize("method", ["scaffold", "feddyn"])
def test_algorithms_that_need_their_own_aggregator_cannot_be_pretrained_with_fedavg(tiny, method):
    wanted = {"algorithm": {"method": method}, "aggregation": {"method": method}}
    pretrained = tiny(selection={"method": "feddiverse", "clients_per_round": 3}, **wanted)
    parts = build_parts(pretrained, workers=0)
    with parts.engine, pytest.raises(ConfigError, match="FedAvg"):
        parts.server().check(3)
    without = {"method": "feddiverse", "clients_per_round": 3, "pretraining_rounds": 0}
    parts = build_parts(tiny(selection=without, **wanted), workers=0)
    with parts.engine:
        parts.server().check(3)


# --- questions about another model -----------------------------------------------------------------------


class Elsewhere(Selector):
    """Asks for losses under a model of its own."""

    def __init__(self, parameters) -> None:
        self.parameters, self.seen = parameters, np.empty(0)

    def needs(self):
        return (Loss(),)

    def round(self, fed: View) -> Plan:
        replies = yield Ask(fed.available, (Loss(),), self.parameters)
        self.seen = replies["loss"]


def test_a_question_may_bring_its_own_model(tiny):
    with build_parts(tiny(), workers=0).engine as engine:
        zero = Elsewhere(np.zeros(engine.population.spec.size, dtype=np.float32))
        Server(zero, FedAvg(), engine).run(1)
        np.testing.assert_allclose(zero.seen, np.log(10), rtol=1e-6)
        for wrong in (np.zeros(3), np.full(engine.population.spec.size, np.nan)):
            with pytest.raises(ConfigError, match="flat vector"):
                Server(Elsewhere(wrong), FedAvg(), engine).run(1)


# --- the estimate ----------------------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.body = nn.Linear(6, 12)
        self.head = nn.Linear(12, classes)

    def forward(self, x):
        return self.head(torch.tanh(self.body(x)))


def constructed(tables, seed=0) -> FederatedData:
    """A federation with these tables of counts; the attribute is easy to see, the class is hard."""
    rng = np.random.default_rng(seed)
    clients, classes, values = tables.shape
    cells = np.concatenate([np.repeat(np.arange(classes * values), table.ravel()) for table in tables])
    labels, attributes = cells // values, cells % values
    features = rng.standard_normal((len(cells), 6)).astype(np.float32)
    features[:, 0] += 3 * (2 * attributes - 1)
    features[:, 1] += labels - labels.mean()
    data = Samples(features, labels, attributes)
    dataset = Dataset("constructed", data, data, classes, attribute_values=values)
    owners = np.repeat(np.arange(clients), tables.sum(axis=(1, 2)))
    return FederatedData(dataset, Index.from_owners(owners, clients))


def measured(tables, seed=0, workers=0, **options) -> tuple[Server, np.ndarray, np.ndarray]:
    """A run of pre-training and one selected round; Pearson's r of AI and SC over clients, and the selector."""
    data = constructed(tables, seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = Net(tables.shape[1])
    selector = FedDiverse(9, **options)
    training = LocalTraining(lr=0.05, batch_size=28)
    with LocalEngine(data, module, training, seed=seed, workers=workers) as engine:
        server = Server(selector, FedAvgM(momentum=0.9, server_lr=0.1, weights="equal"), engine, seed=seed)
        server.run(2)
    told, true = selector.triplets, triplets(tables)
    return server, np.array([np.corrcoef(told[:, part], true[:, part])[0, 1] for part in (1, 2)]), told


@pytest.mark.parametrize("table", ["cmnist-gsc", "spawrious-gci", "waterbirds-dist"])
def test_a_shared_biased_model_finds_attribute_imbalance_and_correlation(table):
    tables = named_tables(table)
    for seed in range(3):
        server, r, _ = measured(tables, seed, estimate="shared", estimate_lr=0.02)
        assert r.min() > 0.97, (seed, r)
        donor = server.records[1].notes["biased_model_of"]
        assert triplets(tables)[donor].argmax() == 2


def test_clients_of_their_own_do_not():
    """The paper's way: clients without spurious correlation unlearn the attribute, and AI is lost."""
    tables = named_tables("cmnist-gsc")
    r = np.array([measured(tables, seed, estimate_lr=0.02)[1] for seed in range(3)])
    assert r[:, 0].mean() < 0.5
    assert r[:, 1].mean() > 0.7


def test_sharing_with_more_classes():
    tables = named_tables("spawrious-4")
    _, r, told = measured(tables, estimate="shared", estimate_lr=0.02)
    assert r.min() > 0.9
    np.testing.assert_allclose(told[:, 0], triplets(tables)[:, 0], atol=1e-12)


def test_what_sharing_costs_and_discloses():
    tables = named_tables("cmnist-gsc")
    shared, own = (measured(tables, estimate=kind)[0] for kind in ("shared", "estimated"))
    model = shared.engine.population.spec.bytes
    first, second = (server.ledger.rounds[1] for server in (shared, own))
    # Everybody downloads once more, the donor twice; it sends a model, and everybody three more numbers.
    assert first.bytes_down - second.bytes_down == (24 + 1) * model
    assert first.bytes_up - second.bytes_up == model + 24 * 3 * BYTES
    told = shared.ledger.disclosed[1]
    assert sum(times for kind, times in told.items() if "fitted to the client's own data" in kind) == 1
    assert not any("fitted" in kind for kind in own.ledger.disclosed[1])


def test_the_shared_model_is_the_one_behind_the_donors_estimate():
    """The donor's own table by the shared model is the one that its biased model groups into right and wrong."""
    tables = named_tables("cmnist-gsc")
    server, _, _ = measured(tables, estimate="shared")
    again, _, _ = measured(tables, estimate="shared", workers=2)
    one, other = server.selector, again.selector
    assert isinstance(one, FedDiverse)
    assert isinstance(other, FedDiverse)
    np.testing.assert_array_equal(one.shared_model, other.shared_model)
    np.testing.assert_array_equal(one.triplets, other.triplets)


def test_start_from_the_initial_parameters(federation):
    fed = federation(8, rounds=4)
    first, second, third = fed.run(FedDiverse(3, pretraining_rounds=2, biased_start="initial"), 3)
    assert [len(played.asks) for played in (first, second, third)] == [1, 0, 0]
    assert [len(played.trained) for played in (first, second, third)] == [8, 8, 3]
    assert first.trains[0].fedavg
    assert not third.trains[0].fedavg


def test_without_biased_steps_the_global_model_is_the_biased_one():
    tables = named_tables("cmnist-gsc")
    _, r, told = measured(tables, biased_steps=0)
    assert np.isfinite(told).all()
    _, fresh, _ = measured(tables, biased_head="fresh", estimate_lr=0.02)
    assert np.isfinite(r).all()
    assert np.isfinite(fresh).all()


# --- who shares ------------------------------------------------------------------------------------------

TOLD = np.array(
    [[0.5, 0.1, 0.0], [0.4, 0.0, 0.1], [0.0, 0.6, 0.1], [0.1, 0.5, 0.0], [0.0, 0.0, 0.7], [0.1, 0.0, 0.5]]
)


def shared(federation, told=TOLD, **options):
    fed = federation(6, script={"heterogeneity_triplet": told, "shared_triplet": TOLD[::-1]}, rounds=4)
    selector = FedDiverse(3, pretraining_rounds=0, estimate="shared")
    return fed, selector, fed.play(selector, **options)


def test_the_client_with_most_correlation_shares_its_model(federation):
    fed, selector, played = shared(federation)
    assert [ask.signals[0].name for ask in played.asks] == [
        "heterogeneity_triplet",
        "biased_model",
        "shared_triplet",
    ]
    assert played.asks[1].clients.tolist() == [4]
    np.testing.assert_array_equal(played.asks[2].parameters, selector.shared_model)
    np.testing.assert_array_equal(selector.triplets, TOLD[::-1])
    fed.grow([30])
    fed.script["shared_triplet"] = np.vstack([TOLD, TOLD[:1]])
    later = fed.play(selector)
    assert [ask.signals[0].name for ask in later.asks] == ["shared_triplet"]
    assert later.asks[0].clients.tolist() == [6]


def test_the_next_one_does_where_the_first_cannot(federation):
    _, selector, played = shared(federation, nan={"biased_model": [4]})
    assert [ask.clients.tolist() for ask in played.asks[1:3]] == [[4], [5]]
    assert len(selector.shared_model)


def test_without_any_correlation_nobody_shares_and_the_estimates_stay(federation):
    told = TOLD * [1, 1, 0]
    _, selector, played = shared(federation, told)
    assert len(played.asks) == 1
    np.testing.assert_array_equal(selector.triplets, told)


def test_when_nobody_sends_a_model_the_next_round_tries_again(federation):
    fed, selector, played = shared(federation, nan={"biased_model": range(6)})
    assert not selector.answered.any()
    assert len(played.trained) == 3
    assert len(fed.play(selector).asks) == 3
    assert selector.answered.all()


def test_equal_correlations_take_turns(federation):
    same = Replies(np.arange(6), {"heterogeneity_triplet": np.full((6, 3), 0.5)})
    first = {int(by_correlation(same, generator(seed, "selection", 0))[0]) for seed in range(60)}
    assert first == set(range(6))


def test_contract_of_sharing(keeps_contract):
    keeps_contract(lambda: FedDiverse(5, pretraining_rounds=0, estimate="shared"), 5)


@pytest.mark.parametrize("options", [{"estimate": "shared"}, {"biased_head": "fresh"}, {"biased_steps": -1}])
def test_refuses_estimates_without_steps(federation, options):
    with pytest.raises(ConfigError, match="biased_steps"):
        FedDiverse(**({"clients_per_round": 4, "biased_steps": 0} | options)).check(federation(12).population)
