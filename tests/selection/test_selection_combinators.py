"""Selectors made of selectors."""

import tomllib
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core.component import state
from muster.core.errors import ConfigError
from muster.selection.astrafl import ASTraFL
from muster.selection.base import Ask, Selector, Train, selectors
from muster.selection.combinators import LimitGap, Mix, Warmup, Within, due
from muster.selection.fedpns import FedPNS
from muster.selection.oort import Oort
from muster.selection.power_of_choice import PowerOfChoice
from muster.selection.random import RandomSelection
from muster.selection.round_robin import RoundRobin
from muster.selection.size_weighted import SizeWeighted
from muster.selection.terraform import Terraform
from muster.server.testing import FakeFederation
from muster.signals.losses import BatchLoss, Loss, TrainLoss


@dataclass
class Fixed(Selector):
    """Always the same clients; remembers what was reported."""

    clients: tuple[int, ...]
    weights: tuple[float, ...] | None = None
    multiplicity: tuple[int, ...] | None = None
    factors: tuple[float, ...] | None = None
    seen: dict = state(dict)

    def needs(self):
        return (Loss(), TrainLoss())

    def round(self, fed):
        clients = np.array(self.clients)
        yield Ask(clients, (Loss(),))
        weights = None if self.weights is None else np.array(self.weights)
        times = None if self.multiplicity is None else np.array(self.multiplicity)
        factors = None if self.factors is None else np.array(self.factors)
        replies = yield Train(
            clients,
            report=(TrainLoss(),),
            weights=weights,
            multiplicity=times,
            lr_factors=factors,
            pull_factors=None if factors is None else 10 * factors,
        )
        self.seen = dict(zip(replies.clients.tolist(), replies["train_loss"].tolist(), strict=True))


COMBINATIONS = {
    "within": lambda: Within(RandomSelection(6), PowerOfChoice(3)),
    "within, learning pool": lambda: Within(Oort(6), Terraform(6, min_clients=2)),
    "within, wide reports": lambda: Within(ASTraFL(6), RandomSelection(3)),
    "warmup": lambda: Warmup(2, RandomSelection(4), Oort(4)),
    "mix": lambda: Mix(Oort(4), SizeWeighted(4, replace=True), 0.6),
    "limit-gap": lambda: LimitGap(PowerOfChoice(4), 5),
    "limit-gap, multiplicity": lambda: LimitGap(SizeWeighted(4, replace=True), 5),
    "limit-gap, probabilities": lambda: LimitGap(FedPNS(4, min_kept=1), 5),
    "nested": lambda: Warmup(3, RoundRobin(4), LimitGap(Within(RandomSelection(6), Oort(3)), 6)),
}


@pytest.mark.parametrize("name", COMBINATIONS)
def test_contract(keeps_contract, name):
    keeps_contract(COMBINATIONS[name], 6, rounds=8)


# --- within ------------------------------------------------------------------------------------------------


def test_the_inner_selector_chooses_among_the_pool(federation):
    fed = federation(10, script={"loss": np.arange(10.0)})
    played = fed.play(Within(Fixed((1, 3, 5, 7)), PowerOfChoice(2, d=4)))
    assert [request.clients.tolist() for request in played.requests] == [[1, 3, 5, 7], [1, 3, 5, 7], [5, 7]]


def test_the_pool_learns_from_those_who_trained(federation):
    fed = federation(10, script={"train_loss": np.arange(10.0)})
    pool = Fixed((1, 3, 5, 7))
    played = fed.play(Within(pool, RandomSelection(2)))
    assert sorted(pool.seen) == played.trained.tolist()
    assert all(loss == client for client, loss in pool.seen.items())
    fed.play(Within(pool, RandomSelection(2)), drop=range(10))
    assert pool.seen == {}


def test_several_trainings_inside_give_the_pool_the_last_report(federation):
    calls = []

    def rising(clients, round):
        calls.append(len(calls))
        return np.full(len(clients), float(len(calls)))

    norms = np.arange(1.0, 9.0)
    fed = federation(8, sizes=[10] * 8, script={"train_loss": rising, "final_layer_norm": norms})
    pool = Fixed(tuple(range(8)))
    played = fed.play(Within(pool, Terraform(8, min_clients=2)))
    trainings = [train.clients.tolist() for train in played.trains]
    assert len(trainings) > 1
    last = {client: float(number + 1) for number, clients in enumerate(trainings) for client in clients}
    assert pool.seen == last


def test_terraform_splits_the_choice_of_another(federation):
    sizes = np.arange(10, 110, 10)
    played = federation(sizes=sizes).play(Within(SizeWeighted(6), Terraform(6)))
    assert len(played.trains[0].clients) == 6
    assert played.trains[0].weights is None  # those of the inner selector


# --- warmup and mix ----------------------------------------------------------------------------------------


def test_warmup_changes_over(federation):
    rounds = federation(6).run(Warmup(2, Fixed((0, 1)), Fixed((4, 5))), 4)
    assert [played.trained.tolist() for played in rounds] == [[0, 1], [0, 1], [4, 5], [4, 5]]


@pytest.mark.parametrize(("share", "firsts"), [(0.0, 0), (0.1, 3), (1 / 3, 10), (0.5, 15), (0.7, 21), (1.0, 30)])
def test_mix_gives_the_first_its_share_at_any_time(federation, share, firsts):
    rounds = federation(6).run(Mix(Fixed((0, 1)), Fixed((4, 5)), share), 30)
    mine = np.array([0 in played.trained for played in rounds])
    assert mine.sum() == firsts
    so_far = np.cumsum(mine)
    assert (np.abs(so_far - share * np.arange(1, 31)) < 1).all()


# --- limit-gap ---------------------------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 20), st.integers(1, 8), st.integers(0, 3), st.integers(0, 999))
def test_nobody_waits_longer(clients, count, spare, seed):
    count = min(count, clients)
    limit = -(-clients // count) + spare
    federation = FakeFederation(clients, seed=seed, script={"loss": np.arange(float(clients))})
    selector = LimitGap(PowerOfChoice(count, d=clients), limit)
    last = np.full(clients, -1)
    for now in range(4 * limit):
        played = federation.play(selector)
        assert len(played.trained) == count
        last[played.trained] = now
        assert (now - last).max() < limit


def test_only_as_many_as_must_go_displace_others():
    assert due(np.array([1, 5, 3]), 5, 2).tolist() == [1]
    assert due(np.array([1, 4, 4, 4]), 5, 2).tolist() == [1]  # two of the three can go in the next round
    assert due(np.array([1, 1, 1]), 9, 2).tolist() == []
    assert due(np.array([9, 9, 9, 9]), 5, 2).tolist() == [0, 1]


def test_the_choice_stays_as_it_is_while_nobody_is_due(federation):
    fed, plain = (federation(9, script={"loss": np.arange(9.0)}) for _ in range(2))
    limited, selector = LimitGap(PowerOfChoice(3, d=9), 50), PowerOfChoice(3, d=9)
    for _ in range(5):
        assert fed.play(limited).same_as(plain.play(selector))


def test_they_follow_clients_that_are_named_in_any_order(federation):
    fed = federation(6)
    selector = LimitGap(Fixed((4, 1, 2), weights=(7.0, 3.0, 5.0), factors=(0.5, 4.0, 2.0)), 4)
    fed.play(selector)
    selector.last = np.array([0, 0, 0, -4, 0, 0])
    (train,) = fed.play(selector).trains
    assert len(train.clients) == 3
    assert 3 in train.clients
    weights, factors = {4: 7.0, 1: 3.0, 2: 5.0, 3: 5.0}, {4: 0.5, 1: 4.0, 2: 2.0, 3: 1.0}
    assert train.weights.tolist() == [weights[client] for client in train.clients.tolist()]
    assert train.lr_factors.tolist() == [factors[client] for client in train.clients.tolist()]


def test_weights_multiplicities_and_factors_follow_the_clients(federation):
    fed = federation(4)
    selector = LimitGap(Fixed((0, 1), weights=(1.0, 3.0), multiplicity=(2, 5), factors=(0.5, 4.0)), 2)
    fed.play(selector)
    (train,) = fed.play(selector).trains
    assert train.clients.tolist() == [2, 3]
    assert train.weights.tolist() == [2.0, 2.0]
    assert train.multiplicity.tolist() == [1, 1]
    assert train.lr_factors.tolist() == train.pull_factors.tolist() == [1.0, 1.0]
    fed.play(selector)
    selector.last = np.array([2, 2, 2, 0])
    (train,) = fed.play(selector).trains
    kept = int(train.clients[0])
    assert train.clients.tolist() == [kept, 3]
    assert train.weights.tolist() == [(1.0, 3.0)[kept], 2.0]
    assert train.multiplicity.tolist() == [(2, 5)[kept], 1]
    assert train.lr_factors.tolist() == [(0.5, 4.0)[kept], 1.0]
    assert train.pull_factors.tolist() == [(5.0, 40.0)[kept], 1.0]


def test_newcomers_wait_from_their_arrival_on(federation):
    fed, selector = federation(4), LimitGap(Fixed((0, 1)), 3)
    fed.run(selector, 4)
    fed.grow([10])
    assert selector.last.tolist()[2:] == [2, 2]
    fed.play(selector)
    assert selector.last[4] == 3


def test_a_client_that_does_not_answer_does_not_block_the_others(federation):
    fed, selector = federation(4), LimitGap(Fixed((0,)), 4)
    turns = [played.trained[0] for played in fed.run(selector, 8, drop=[3])]
    assert set(turns) == {0, 1, 2, 3}
    assert turns.count(3) <= 2


# --- together ----------------------------------------------------------------------------------------------


CONFIG = """
method = "warmup"
rounds = 5
first = {method = "random", clients_per_round = 3}
[then]
method = "limit-gap"
rounds = 4
[then.selector]
method = "within"
pool = {method = "random", clients_per_round = 6}
inner = {method = "oort", clients_per_round = 3}
"""


def test_from_a_config_file(federation):
    options = tomllib.loads(CONFIG)
    selector = selectors.build(options.pop("method"), options, "selection")
    assert isinstance(selector, Warmup)
    assert isinstance(selector.first, RandomSelection)
    assert isinstance(selector.then, LimitGap)
    selector.check(federation(12).population)
    assert all(len(played.trained) == 3 for played in federation(12).run(selector, 8))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"rounds": 1, "first": {"method": "random"}, "then": RandomSelection(2)},
            "selection.first.clients_per_round",
        ),
        ({"rounds": 1, "first": {"clients_per_round": 3}, "then": RandomSelection(2)}, "selection.first.method"),
        ({"rounds": 1, "first": {"method": "radnom"}, "then": RandomSelection(2)}, "radnom"),
    ],
)
def test_mistakes_in_parts_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        selectors.build("warmup", options, "selection")


@pytest.mark.parametrize(
    "selector",
    [
        Warmup(-1, RandomSelection(2), RandomSelection(2)),
        Warmup(1, RandomSelection(2), RandomSelection(20)),
        Mix(RandomSelection(2), RandomSelection(2), 1.5),
        LimitGap(RandomSelection(2), 0),
        LimitGap(RandomSelection(2), 4),
        Mix(PowerOfChoice(2, "cpow-d", batch=4), PowerOfChoice(2, "cpow-d", batch=8)),
    ],
)
def test_bad_combinations_are_refused(federation, selector):
    with pytest.raises(ConfigError):
        selector.check(federation(10).population)


def test_the_smallest_limit_that_can_be_kept_is_accepted(federation):
    LimitGap(RandomSelection(2), 5).check(federation(10).population)


def test_needs_are_those_of_the_parts():
    assert Within(PowerOfChoice(4), PowerOfChoice(2, "cpow-d")).needs() == (Loss(), BatchLoss())
    assert Mix(PowerOfChoice(4), PowerOfChoice(2)).needs() == (Loss(),)


def test_what_the_aggregation_must_honour():
    sampled = SizeWeighted(2, replace=True)
    assert Mix(RandomSelection(2), sampled).gives_multiplicity()
    assert Mix(RandomSelection(2), sampled).gives_weights()
    assert not Within(sampled, RandomSelection(2)).gives_multiplicity()
    assert not Within(sampled, RandomSelection(2)).gives_weights()


@pytest.mark.parametrize(
    ("rounds", "idle", "busy"), [(0, "first", "then"), (9, None, None), (10, "then", "first")]
)
def test_cautions_are_those_of_the_part_that_has_a_turn(rounds, idle, busy):
    """Each part has something to say; who never has a turn is mentioned, and has nothing to say."""
    parts = {"first": PowerOfChoice(6), "then": SizeWeighted(6)}
    said = Warmup(rounds=rounds, **parts).cautions(FakeFederation(6, rounds=10).population)
    if idle is None:
        assert len(said) == 2
    else:
        assert said[0] == f"warmup: '{idle}' never has a turn in 10 rounds"
        assert said[1:] == parts[busy].cautions(FakeFederation(6).population) != []
