"""FedDiverse's picks: worked example, textbook oracle, and the phases of a run."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core.errors import ConfigError
from muster.selection.feddiverse import FedDiverse, _closeness, _directions, pick, pick_released
from muster.signals.heterogeneity import HeterogeneityTriplet

TRIPLETS = np.array(
    [
        [0.5, 0.1, 0.0],
        [0.4, 0.0, 0.1],
        [0.0, 0.6, 0.1],
        [0.1, 0.5, 0.0],
        [0.05, 0.05, 0.7],
        [0.1, 0.0, 0.5],
    ]
)


class Scripted:
    """A generator whose draws are given."""

    def __init__(self, *values):
        self.values = list(values)

    def random(self):
        return self.values.pop(0)

    def integers(self, high):
        return min(self.values.pop(0), high - 1)


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def lowest(candidates, costs):
    return next(k for k in candidates if costs[k] <= min(costs[j] for j in candidates) + 1e-6)


def textbook(triplets, count, draws, cross):
    """The rule step by step, ties by id; `draws`: the uniform numbers behind the first client of each triple."""
    directions = [[x / sum(row) for x in row] if sum(row) else [1 / 3] * 3 for row in triplets]
    chosen = []
    while len(chosen) < count:
        left = [k for k in range(len(triplets)) if k not in chosen]
        if len(chosen) % 3 == 0:
            weights = [triplets[k][(2, 0, 1)[len(chosen) // 3 % 3]] for k in left]
            weights = weights if any(weights) else [1] * len(left)
            reached = np.cumsum(weights) > draws[len(chosen) // 3] * sum(weights)
            chosen.append(left[reached.tolist().index(True)])
        elif len(chosen) % 3 == 1:
            costs = [dot(directions[chosen[-1]], v) for v in directions]
            chosen.append(lowest(left, costs))
        else:
            a, b = directions[chosen[-2]], directions[chosen[-1]]
            normal = [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]]
            along = [dot(normal, v) for v in directions]
            costs = [-abs(x) for x in along] if cross == "abs" else [-x for x in along]
            if dot(normal, normal) < 1e-24:
                costs = [dot(a, v) + dot(b, v) for v in directions]
            chosen.append(lowest(left, costs))
    return chosen


def test_worked_example_first_draw():
    picked = [pick(TRIPLETS, 1, np.random.default_rng(seed))[0] for seed in range(4000)]
    shares = np.bincount(picked, minlength=6) / 4000
    np.testing.assert_allclose(shares, [0, 0.071429, 0.071429, 0, 0.5, 0.357143], atol=4 * np.sqrt(0.25 / 4000))
    assert shares[0] == shares[3] == 0


def test_worked_example_alignments():
    unit = _directions(TRIPLETS.T)
    alike = unit[:, 4] @ unit
    np.testing.assert_allclose(alike[[0, 1, 2, 3, 5]], [0.0625, 0.225, 0.178571, 0.0625, 0.739583], atol=5e-7)
    after_0 = -_closeness(unit, unit[:, 4], unit[:, 0], "signed")
    np.testing.assert_allclose(after_0[[1, 2, 3, 5]], [-0.125, 0.619048, 0.583333, -0.059028], atol=5e-7)
    after_3 = -_closeness(unit, unit[:, 4], unit[:, 3], "signed")
    np.testing.assert_allclose(after_3[[0, 1, 2, 5]], [-0.583333, -0.575, 0.130952, -0.086806], atol=5e-7)


@pytest.mark.parametrize("cross", ["signed", "abs"])
def test_worked_example_by_id(cross):
    # 0.3 of the cumulated SC (0, .1, .2, .2, .9, 1.4) falls on client 4.
    assert pick(TRIPLETS, 3, Scripted(0.3), ties="id", cross=cross).tolist() == [4, 0, 2]


@pytest.mark.parametrize(("cross", "third"), [("signed", 2), ("abs", 0)])
def test_worked_example_when_the_other_tied_client_comes_second(cross, third):
    # The second draw takes the second of the tied clients 0 and 3; the third has no ties.
    assert pick(TRIPLETS, 3, Scripted(0.3, 1, 0), cross=cross).tolist() == [4, 3, third]


def test_the_order_of_the_kinds_rotates():
    skewed = np.repeat(np.eye(3), 3, axis=0)
    for start, kind in [(0, 2), (1, 0), (2, 1)]:
        first = pick(skewed, 1, np.random.default_rng(0), start=start)[0]
        assert skewed[first, kind] == 1
    nine = pick(skewed, 8, np.random.default_rng(1), cross="abs")
    assert [int(np.argmax(skewed[k])) for k in nine[[0, 3, 6]]] == [2, 0, 1]
    assert sorted(np.argmax(skewed[nine[:3]], axis=1)) == [0, 1, 2]


def test_without_skew_of_the_wanted_kind_the_draw_is_uniform():
    no_sc = np.array([[0.5, 0.2, 0.0]] * 4)
    picked = {int(pick(no_sc, 1, np.random.default_rng(seed))[0]) for seed in range(40)}
    assert picked == {0, 1, 2, 3}


def test_parallel_triplets_fall_back_on_the_least_alike():
    rows = np.array([[0, 0, 0.9], [0, 0, 0.8], [0, 0, 0.7], [0.1, 0, 0.4]])
    # The least alike of 0 is 3; then nothing is open between 0 and 3 but AI, which nobody has: a tie of 1 and 2.
    assert pick(rows, 3, Scripted(0.0), ties="id").tolist() == [0, 3, 1]
    same = np.array([[0, 0, 0.5]] * 3 + [[0, 0, 0.4]])
    assert pick(same, 3, Scripted(0.0), ties="id").tolist() == [0, 1, 2]


def test_missing_and_noisy_triplets():
    rows = TRIPLETS.copy()
    rows[4] = np.nan
    rows[5] = [0.2, -0.3, np.inf]
    shares = np.bincount([pick(rows, 1, np.random.default_rng(s))[0] for s in range(2000)], minlength=6) / 2000
    expected = np.array([0, 0.1, 0.1, 0, 0.05, 0.05]) / 0.3
    np.testing.assert_allclose(shares, expected, atol=4 * np.sqrt(0.25 / 2000))
    negative = np.array([[0.1, 0.1, -5.0], [0.1, 0.1, 0.2], [0.3, 0.1, 0.0]])
    assert pick(negative, 1, np.random.default_rng(0)).tolist() == [1]
    assert len(pick(np.full((5, 3), np.nan), 3, np.random.default_rng(0))) == 3


rows = st.lists(st.tuples(*[st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9])] * 3), min_size=1, max_size=12)


@settings(max_examples=150, deadline=None)
@given(rows, st.integers(1, 11), st.sampled_from(["signed", "abs"]), st.integers(0, 10**6))
def test_equals_the_textbook(triplets, count, cross, seed):
    draws = np.random.default_rng(seed).random(12)
    everyone = list(range(len(triplets)))
    expected = everyone if count >= len(triplets) else textbook(triplets, count, draws, cross)
    assert pick(np.array(triplets), count, Scripted(*draws), ties="id", cross=cross).tolist() == expected


@settings(max_examples=60, deadline=None)
@given(rows, st.integers(1, 11), st.integers(0, 100))
def test_released_rule_picks_distinct_clients_in_threes(triplets, count, seed):
    triplets = np.array(triplets)
    picked = pick_released(triplets, count, np.random.default_rng(seed))
    assert len(set(picked.tolist())) == len(picked) == min(-(-count // 3) * 3, len(triplets))


def test_released_rule_takes_clients_without_any_skew_for_the_least_alike():
    mixed = np.random.default_rng(0).uniform(0.1, 1, (20, 3))
    mixed[6] = 0
    for seed in range(20):
        assert pick_released(mixed, 3, np.random.default_rng(seed))[1] == 6
        assert 6 not in pick(mixed, 3, np.random.default_rng(seed))


def test_phases_of_a_run(federation):
    fed = federation(6, script={"heterogeneity_triplet": TRIPLETS}, classes=4)
    first, second, third = fed.run(FedDiverse(clients_per_round=3), 3)
    assert not first.asks
    np.testing.assert_array_equal(first.trained, np.arange(6))
    np.testing.assert_array_equal(first.trains[0].weights, np.ones(6))
    assert second.asks[0].signals[0].models == 4
    assert len(second.trained) == len(third.trained) == 3
    assert not third.asks


@pytest.mark.parametrize(("classes", "steps", "models"), [(2, 50, 1), (3, 50, 3), (4, 0, 1), (2, 0, 1)])
def test_a_client_trains_a_biased_model_for_each_class_unless_one_is_enough(federation, classes, steps, models):
    """Of two classes one model tells both; without steps none is trained."""
    selector = FedDiverse(clients_per_round=3, pretraining_rounds=0, biased_steps=steps)
    played = federation(6, classes=classes).play(selector)
    assert played.asks[0].signals[0].models == models


def test_no_pretraining(federation):
    played = federation(6).play(FedDiverse(clients_per_round=3, pretraining_rounds=0))
    assert len(played.asks) == 1
    assert len(played.trained) == 3


def test_late_joiners_are_measured_first_and_the_silent_only_fill_up(federation):
    fed, selector = federation(6), FedDiverse(clients_per_round=4, pretraining_rounds=0)
    fed.play(selector)
    fed.grow([30, 30])
    assert fed.play(selector, drop=[7]).asks[0].clients.tolist() == [6, 7]
    assert fed.play(selector).asks[0].clients.tolist() == [7]
    silent, everyone = federation(6), FedDiverse(clients_per_round=4, pretraining_rounds=0)
    played = silent.play(everyone, drop=[0, 1, 2])
    assert {3, 4, 5} < set(played.trained.tolist())


def test_an_answer_that_is_no_number_is_not_asked_for_again(federation):
    fed, selector = federation(6), FedDiverse(clients_per_round=3, pretraining_rounds=0)
    fed.play(selector, nan={"heterogeneity_triplet": [2]})
    assert not fed.play(selector).asks


def test_rotation_across_rounds(federation):
    skewed = np.repeat(np.eye(3), 4, axis=0)
    fed = federation(12, script={"heterogeneity_triplet": skewed})
    selector = FedDiverse(clients_per_round=1, pretraining_rounds=0, rotate_across_rounds=True)
    kinds = [int(np.argmax(skewed[played.trained[0]])) for played in fed.run(selector, 6)]
    assert kinds == [2, 0, 1, 2, 0, 1]


def test_options_reach_the_signal():
    (signal,) = FedDiverse(3, estimate="true", biased_steps=7, gce_q=0.7, degenerate="skip").needs()
    assert isinstance(signal, HeterogeneityTriplet)
    assert (signal.estimate, signal.recipe.biased_steps, signal.recipe.q) == ("true", 7, 0.7)
    assert signal.degenerate == "skip"


@pytest.mark.parametrize(
    "options",
    [{"clients_per_round": 4}, {"clients_per_round": 3, "preset": "ref"}, {"cross": "abs", "ties": "id"}],
)
def test_contract(keeps_contract, options):
    options = {"clients_per_round": 5, "pretraining_rounds": 0} | options
    keeps_contract(lambda: FedDiverse(**options), options["clients_per_round"])


def test_contract_with_pretraining(keeps_contract):
    keeps_contract(lambda: FedDiverse(clients_per_round=3, pretraining_rounds=2), 15)


@pytest.mark.parametrize(
    "options",
    [
        {"clients_per_round": 7, "preset": "ref"},
        {"pretraining_rounds": -1},
        {"biased_steps": -1},
        {"gce_q": 1.5},
        {"estimate_lr": 0.0},
    ],
)
def test_refuses_bad_options(federation, options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        FedDiverse(**({"clients_per_round": 4} | options)).check(federation(12).population)


def test_true_triplets_need_attributes(federation):
    (signal,) = FedDiverse(3, estimate="true").needs()
    assert "no attributes" in signal.unavailable(federation(12, attributes=None).population)


@pytest.mark.bench
@pytest.mark.parametrize("preset", ["paper", "ref"])
def test_a_hundred_of_a_million_in_a_second(preset):
    triplets = np.random.default_rng(0).random((1_000_000, 3))
    start = time.perf_counter()
    (pick if preset == "paper" else pick_released)(triplets, 99, np.random.default_rng(0))
    assert time.perf_counter() - start < (1 if preset == "paper" else 10)
