"""TiFL: tiers, credits, chances by accuracy."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core.errors import ConfigError
from muster.experiment import run
from muster.selection.tifl import OUT, TiFL, tier_chances, tiers_by_latency

NAN = np.nan
#: Seconds to receive, compute and send: client k takes 3 · (k + 1).
TIMES = np.repeat(np.arange(1.0, 21.0), 3).reshape(20, 3)


def lots(seed=0):
    return np.random.default_rng(seed)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"interval": 2},
        {"interval": 2, "testers": None, "change": "always"},
        {"retier": 2, "max_latency": 40.0},
    ],
)
def test_contract(keeps_contract, options):
    seconds = np.arange(15.0, 0.0, -1.0)
    keeps_contract(lambda: TiFL(clients_per_round=4, **options), 4, rounds=8, seconds=seconds)


# --- tiers -----------------------------------------------------------------------------------------------


def test_tiers_of_a_worked_example():
    latencies = np.array([9.0, 1.0, 5.0, NAN, 2.0, 7.0, 30.0, np.inf])
    assert tiers_by_latency(latencies, 3, lots()).tolist() == [2, 0, 1, OUT, 0, 1, 2, OUT]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([1.0, 2.0, 2.5, 8.0, NAN]), max_size=23), st.integers(1, 6), st.integers(0, 9))
def test_tiers_are_equally_large_and_ordered_by_latency(latencies, tiers, seed):
    latencies = np.array(latencies, dtype=np.float64)
    tier = tiers_by_latency(latencies, tiers, lots(seed))
    assert ((tier == OUT) == np.isnan(latencies)).all()
    counts = np.bincount(tier[tier != OUT], minlength=tiers)
    assert len(counts) == tiers
    assert np.ptp(counts) <= 1
    members = [latencies[tier == t] for t in range(tiers) if (tier == t).any()]
    assert all(fast.max() <= slow.min() for fast, slow in itertools.pairwise(members))


def test_equally_fast_clients_are_parted_by_lot():
    found = {tuple(tiers_by_latency(np.ones(4), 2, lots(seed)).tolist()) for seed in range(60)}
    assert len(found) == 6


def test_one_tier_trains_in_a_round(federation):
    fed = federation(20, script={"device_time": TIMES}, rounds=30)
    selector = TiFL(clients_per_round=4, interval=0)
    drawn = set()
    for _ in range(30):
        played, view = fed.play(selector), fed.view()
        assert np.unique(played.trained // 4).tolist() == [selector.current]
        assert len(played.trained) == 4
        drawn.add(selector.current)
        next(selector.round(view))
        assert view.notes == {"tier": selector.current}
    assert drawn == set(range(5))


def test_everybody_is_asked_for_the_latency_once(federation):
    fed, selector = federation(20, script={"device_time": TIMES}), TiFL(clients_per_round=3, interval=0)
    assert fed.play(selector, drop=[3]).asks[0].clients.tolist() == list(range(20))
    assert fed.play(selector).asks[0].clients.tolist() == [3]
    assert not fed.play(selector).asks


def test_a_tier_with_few_who_are_there_is_not_filled_up(federation):
    fed = federation(20, script={"device_time": TIMES})
    selector = TiFL(clients_per_round=4, interval=0)
    fed.play(selector)
    assert fed.play(selector, available=[5, 6]).trained.tolist() == [5, 6]
    assert selector.current == 1


def test_newcomers_get_the_tier_of_their_speed(federation):
    times = np.concatenate([TIMES, [[1.2] * 3, [8.5] * 3, [90.0] * 3, [8.0] * 3]])
    fed, selector = federation(20, script={"device_time": times}), TiFL(clients_per_round=4, interval=0)
    fed.play(selector)
    before = selector.tier.copy()
    fed.grow([10, 10, 10, 10])
    fed.play(selector)
    assert selector.tier[:20].tolist() == before.tolist()
    # The second tier ends with 8 · 3 s.
    assert selector.tier[20:].tolist() == [0, 2, 4, 1]


def test_when_as_many_have_come_as_were_there_tiers_are_formed_anew(federation):
    fed, selector = federation(20, script={"device_time": TIMES}), TiFL(clients_per_round=4, interval=0)
    fed.play(selector, available=range(10, 20))
    assert selector.tier.tolist() == [OUT] * 10 + [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    fed.play(selector, available=range(5, 20))
    assert selector.tier.tolist() == [OUT] * 5 + [0] * 7 + [1, 1, 2, 2, 3, 3, 4, 4]
    fed.play(selector)
    assert selector.tier.tolist() == np.repeat(range(5), 4).tolist()


def test_drop_outs_have_no_tier_and_train_only_when_nobody_else_is_there(federation):
    fed = federation(20, script={"device_time": TIMES})
    selector = TiFL(clients_per_round=3, interval=0, max_latency=45.0)
    for _ in range(12):
        assert fed.play(selector, nan={"device_time": [0]}).trained.max() < 15
    assert selector.tier.tolist() == [OUT] + np.repeat(range(5), [3, 3, 3, 3, 2]).tolist() + [OUT] * 5
    assert set(fed.play(selector, available=[0, 17]).trained.tolist()) <= {0, 17}
    fed.play(selector, available=[17, 19])
    assert selector.current == OUT


def test_tiers_formed_anew_are_by_what_was_measured(federation):
    fed = federation(6, script={"device_time": TIMES[:6]}, seconds=[60.0, 50.0, 40.0, 30.0, 20.0, 10.0])
    selector = TiFL(clients_per_round=6, tiers=3, interval=0, retier=4)
    fed.play(selector)
    assert selector.tier.tolist() == [0, 0, 1, 1, 2, 2]
    fed.history.took(np.arange(6), fed.seconds)
    fed.run(selector, 3)
    assert selector.tier.tolist() == [0, 0, 1, 1, 2, 2]
    fed.play(selector)
    assert selector.tier.tolist() == [2, 2, 1, 1, 0, 0]


def test_fewer_clients_than_tiers_who_are_there(federation):
    fed, selector = federation(20, script={"device_time": TIMES}), TiFL(clients_per_round=3, interval=0)
    fed.play(selector, available=[7, 9])
    assert (selector.tier[[7, 9]] != OUT).all()
    assert len(fed.play(selector).trained) == 3


# --- chances ---------------------------------------------------------------------------------------------


def test_chances_of_a_worked_example():
    accuracies, open = np.array([0.7, 0.5, 0.9, 0.6, 0.2]), np.array([True, True, True, True, False])
    np.testing.assert_allclose(tier_chances(accuracies, open, lots()), [0.2, 0.4, 0.1, 0.3, 0.0])


def textbook_chances(accuracies, credits):
    """As two public re-implementations have it: a walk through the tiers from the worst accuracy on."""
    n = sum(c > 0 for c in credits)
    chances, rank = [0.0] * len(accuracies), 0
    for tier in sorted(range(len(accuracies)), key=lambda t: accuracies[t]):
        if credits[tier] > 0:
            chances[tier] = (n - rank) / (n * (n + 1) / 2)
            rank += 1
    return chances


@settings(max_examples=50, deadline=None)
@given(st.permutations(range(6)), st.lists(st.integers(0, 2), min_size=6, max_size=6))
def test_chances_are_those_of_the_textbook(ranks, credits):
    accuracies = np.array(ranks) / 7
    found = tier_chances(accuracies, np.array(credits) > 0, lots())
    np.testing.assert_allclose(found, textbook_chances(accuracies, credits))
    assert found.sum() == pytest.approx(1.0 if any(credits) else 0.0)


def test_a_tier_without_accuracy_counts_as_the_worst_and_equals_are_parted_by_lot():
    open = np.ones(3, dtype=bool)
    assert tier_chances(np.array([0.1, NAN, 0.2]), open, lots()).argmax() == 1
    worst = [tier_chances(np.array([0.5, 0.5, 0.9]), open, lots(seed)).argmax() for seed in range(40)]
    assert set(worst) == {0, 1}


def test_badly_served_tiers_are_drawn_more_often(federation):
    right = np.repeat([0.9, 0.8, 0.1, 0.7, 0.6], 4)
    fed = federation(20, script={"device_time": TIMES, "accuracy": right}, rounds=2000)
    selector = TiFL(clients_per_round=2, interval=10)
    played = fed.run(selector, 400)
    assert [len(p.asks) for p in played[:11]] == [1] + 9 * [0] + [1]
    np.testing.assert_allclose(selector.accuracy, [0.9, 0.8, 0.1, 0.7, 0.6])
    np.testing.assert_allclose(selector.chances, np.array([1, 2, 5, 3, 4]) / 15)
    drawn = np.bincount([p.trained[0] // 4 for p in played[10:]], minlength=5)
    expected = 390 * selector.chances
    assert (np.abs(drawn - expected) < 4 * np.sqrt(expected)).all()


def test_chances_change_only_when_the_last_tier_has_not_risen(federation):
    """Accuracies of all tiers rise with every question but the third; their order changes each time."""
    rows = {10: [0.1, 0.2, 0.3], 20: [0.4, 0.3, 0.35], 30: [0.4, 0.3, 0.35], 40: [0.5, 0.6, 0.7]}

    def course(change):
        script = {"device_time": TIMES[:6], "accuracy": lambda clients, round: np.array(rows[round])[clients // 2]}
        fed, selector, chances = federation(6, script=script), TiFL(2, tiers=3, change=change), []
        for round in range(41):
            fed.play(selector)
            if round in rows:
                chances.append((6 * selector.chances).round().astype(int).tolist())
        return chances

    assert course("always") == [[3, 2, 1], [1, 3, 2], [1, 3, 2], [3, 2, 1]]
    assert course("stalled") == [[3, 2, 1], [3, 2, 1], [1, 3, 2], [1, 3, 2]]


def test_a_tiers_accuracy_is_over_all_samples_of_its_testers(federation):
    fed = federation(
        4, sizes=[10, 30, 20, 20], script={"device_time": TIMES[:4], "accuracy": [1.0, 0.5, 0.25, 0.75]}
    )
    selector = TiFL(clients_per_round=1, tiers=2, interval=1)
    fed.play(selector)
    asked = fed.play(selector, nan={"accuracy": [2]})
    assert asked.asks[0].clients.tolist() == [0, 1, 2, 3]
    assert selector.accuracy.tolist() == [0.625, 0.75]
    fed.play(selector, drop=[2, 3])
    assert selector.accuracy.tolist() == [0.625, 0.75], "what is not told stays"


def test_some_of_each_tier_are_asked(federation):
    fed = federation(20, script={"device_time": TIMES})
    selector = TiFL(clients_per_round=1, tiers=2, interval=1, testers=3)
    fed.play(selector)
    asked = fed.play(selector, available=[0, 1, *range(10, 20)]).asks[0].clients
    assert asked[:2].tolist() == [0, 1]
    assert len(asked) == 5
    assert (asked[2:] >= 10).all()


# --- credits ---------------------------------------------------------------------------------------------


def test_credits_limit_how_often_a_tier_comes(federation):
    fed = federation(20, script={"device_time": TIMES}, rounds=100)
    selector = TiFL(clients_per_round=2, interval=0, credits=(0, 1, 2, 3, 4))
    drawn = np.bincount([fed.play(selector).trained[0] // 4 for _ in range(10)], minlength=5)
    assert drawn.tolist() == [0, 1, 2, 3, 4]
    assert not selector.left.any()
    assert len(fed.play(selector).trained) == 2, "without credits they count no more"


def test_by_default_credits_are_shared_out(federation):
    fed = federation(20, script={"device_time": TIMES}, rounds=12)
    selector = TiFL(clients_per_round=2, interval=0)
    drawn = np.bincount([fed.play(selector).trained[0] // 4 for _ in range(12)], minlength=5)
    assert drawn.max() <= 3


# --- what does not fit -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"tiers": 0},
        {"tiers": 11},
        {"interval": -1},
        {"credits": (1, 2)},
        {"credits": (1, 2, 3, 4, -5)},
        {"testers": 0},
        {"max_latency": 0.0},
        {"retier": 0},
    ],
)
def test_bad_options(federation, options):
    with pytest.raises(ConfigError, match=f"tifl: {next(iter(options))}"):
        TiFL(clients_per_round=2, **options).check(federation(10).population)


def test_without_devices_it_is_refused_before_round_1(tiny):
    with pytest.raises(ConfigError, match=r"section \[devices\]"):
        run(tiny(selection={"method": "tifl", "clients_per_round": 3}), workers=0)


def test_a_run_asks_for_accuracies_of_the_global_model(tiny):
    selection = {"method": "tifl", "clients_per_round": 3, "tiers": 2, "interval": 1}
    result = run(tiny(selection=selection, devices={"method": "lognormal"}, rounds=3), workers=0)
    asks = [names for record in result.records for names, _, _ in record.asks]
    assert asks == [["device_time"], ["accuracy"], ["accuracy"]]
    told = result.history.last("accuracy")
    assert ((told >= 0) & (told <= 1)).all()
    assert [record.notes["tier"] in (0, 1) for record in result.records] == [True] * 3
