"""Cautions before round 1: where a method is said to be another, simpler one, it is so to the last bit."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import muster
from muster.aggregation.base import aggregators
from muster.core.errors import ConfigError, TrainingError
from muster.experiment.parts import build_parts
from muster.report.warnings import warnings
from muster.selection.base import selectors
from muster.selection.terraform import Terraform, most_hard, split
from muster.server.testing import FakeFederation
from muster.training.base import LocalTraining
from muster.training.schedules import USES

RANDOM = {"method": "random", "clients_per_round": 4}
EQUAL = {"method": "fedavg", "weights": "equal"}


def cautions(experiment):
    parts = build_parts(experiment, workers=0)
    try:
        return parts.server().cautions(experiment.rounds)
    finally:
        parts.engine.close()


def chosen(result):
    return [sorted({client for training in record for client in training}) for record in result.selections]


# --- the same bits -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("selection", "reference"),
    [
        ({"method": "terraform", "clients_per_round": 4}, {}),
        ({"method": "terraform", "clients_per_round": 6, "max_iterations": 1}, {"clients_per_round": 6}),
        ({"method": "retrain-random", "clients_per_round": 4}, {}),
        ({"method": "fedcor", "clients_per_round": 4}, {}),
        ({"method": "fedcor", "clients_per_round": 4, "warmup": 2}, {}),
        ({"method": "fedcor", "clients_per_round": 4, "warmup": 1, "interval": 1}, {}),
        (
            {"method": "power-of-choice", "clients_per_round": 4, "d": 3},
            {"method": "size-weighted", "clients_per_round": 4},
        ),
        (
            {"method": "power-of-choice", "clients_per_round": 4, "d": 12, "equal_weights": False},
            {"method": "high-loss"},
        ),
        (
            {"method": "oort", "clients_per_round": 4, "warmup": 3},
            {"method": "size-weighted", "clients_per_round": 4, "equal_weights": False},
        ),
        (
            {"method": "warmup", "rounds": 3, "first": RANDOM, "then": {"method": "oort", "clients_per_round": 4}},
            {},
        ),
        (
            {"method": "warmup", "rounds": 0, "then": RANDOM, "first": {"method": "oort", "clients_per_round": 4}},
            {},
        ),
        (
            {"method": "mix", "share": 0.3, "second": RANDOM, "first": {"method": "oort", "clients_per_round": 4}},
            {},
        ),
        (
            {"method": "within", "pool": RANDOM, "inner": {"method": "high-loss", "clients_per_round": 5}},
            {},
        ),
    ],
    ids=str,
)
def test_a_selection_that_is_another_one(tiny, selection, reference):
    experiment = tiny(selection=selection)
    assert cautions(experiment)
    same, other = (muster.run(tiny(selection=options), workers=0) for options in (selection, RANDOM | reference))
    assert same.selections == other.selections
    np.testing.assert_array_equal(same.parameters, other.parameters)


@pytest.mark.parametrize(
    ("aggregation", "reference"),
    [
        ({"method": "fedavgm", "momentum": 0.0}, {"method": "fedavg"}),
        ({"method": "qfedavg", "q": 0.0}, EQUAL),
        ({"method": "norm-bounding", "quantile": 1.0}, {"method": "fedavg"}),
        ({"method": "trimmed-mean", "ratio": 0.15}, EQUAL),
        ({"method": "multi-krum", "attackers": 0}, EQUAL),
        ({"method": "krum", "attackers": 2, "too_few": "median"}, {"method": "median"}),
        ({"method": "bulyan", "attackers": 0}, EQUAL),
        ({"method": "dnc", "attackers": 1, "filter_factor": 0.5}, EQUAL),
        ({"method": "fedbuff"}, EQUAL),
        ({"method": "fedbuff", "weights": "samples"}, {"method": "fedavg"}),
        ({"method": "fedasync", "server_lr": 0.5}, EQUAL | {"server_lr": 0.5}),
        ({"method": "refl"}, EQUAL),
        ({"method": "multi-krum", "attackers": 0, "keep": 1}, {"method": "krum", "attackers": 0}),
        ({"method": "fedavg", "max_weight": 0.1}, EQUAL),
        ({"method": "simprox", "lam": 0.0, "threshold": 0.1}, {"method": "simprox", "lam": 0.0, "threshold": 1.0}),
    ],
    ids=lambda options: options["method"],
)
def test_an_aggregation_that_is_another_one(tiny, aggregation, reference):
    assert any(text.startswith(aggregation["method"]) for text in cautions(tiny(aggregation=aggregation)))
    same, other = (muster.run(tiny(aggregation=options), workers=0) for options in (aggregation, reference))
    # Means in another order of summation differ in the last bits, which training carries on.
    np.testing.assert_allclose(same.parameters, other.parameters, atol=2e-6)


def test_a_buffer_of_one_cohort_is_synchronous(tiny):
    timed = {"devices": {"method": "lognormal"}, "selection": RANDOM}
    buffered = tiny(**timed, pacing={"method": "buffered", "in_flight": 7, "k": 4})
    (text,) = cautions(buffered)
    assert text.startswith("buffered pacing is synchronous here: cohorts of 4 start whole, so at most 4 of 7")
    assert "in_flight ≥ 8" in text
    same, other = muster.run(buffered, workers=0), muster.run(tiny(**timed), workers=0)
    assert same.selections == other.selections
    np.testing.assert_array_equal(same.parameters, other.parameters)
    assert not cautions(tiny(**timed, pacing={"method": "buffered", "in_flight": 8, "k": 4}))
    assert not cautions(tiny(**timed, pacing={"method": "buffered", "in_flight": 7, "k": 3}))


@pytest.mark.parametrize("method", ["median", "geometric-median"])
def test_the_median_of_two_is_their_mean(tiny, method):
    two = {"method": "random", "clients_per_round": 2}
    assert cautions(tiny(selection=two, aggregation={"method": method}))
    same, other = (
        muster.run(tiny(selection=two, aggregation=options), workers=0) for options in ({"method": method}, EQUAL)
    )
    np.testing.assert_allclose(same.parameters, other.parameters, atol=2e-6)


def test_equal_work_needs_no_normalising(tiny):
    def of(method, **partition):
        two = {"method": "random", "clients_per_round": 2}
        return tiny(partition=partition, selection=two, aggregation={"method": method})

    assert not cautions(of("fednova", scheme="dirichlet", clients=12, alpha=0.3))
    alike = {"scheme": "iid", "clients": 3}  # of 1,437 samples
    assert cautions(of("fednova", **alike)) == [
        "fednova is fedavg here: all clients have equally many samples, hence equal work"
    ]
    same, other = (muster.run(of(method, **alike), workers=0) for method in ("fednova", "fedavg"))
    np.testing.assert_allclose(same.parameters, other.parameters, atol=2e-6)


def test_asking_no_more_than_are_used_is_synchronous(tiny):
    timed = {"devices": {"method": "lognormal"}, "selection": RANDOM}
    over = tiny(**timed, pacing={"method": "over-select", "factor": 1.0})
    assert "over-select is synchronous" in " ".join(cautions(over))
    assert not cautions(tiny(**timed, pacing={"method": "over-select", "factor": 1.3}))
    same, other = muster.run(over, workers=0), muster.run(tiny(**timed), workers=0)
    np.testing.assert_array_equal(same.parameters, other.parameters)


def test_late_answers_make_the_difference(tiny):
    """Whoever weighs answers by their age is not called another method where answers may be late."""
    timed = {"devices": {"method": "lognormal"}, "pacing": {"method": "buffered", "in_flight": 8, "k": 4}}
    for method in ("fedbuff", "fedasync", "refl"):
        assert not cautions(tiny(**timed, selection=RANDOM, aggregation={"method": method}))


@pytest.mark.parametrize(
    ("aggregation", "words"),
    [
        ({"method": "bulyan", "attackers": 1}, "4f + 3 = 7"),
        ({"method": "dnc", "attackers": 6}, "6 are to be left out"),
    ],
    ids=lambda options: options["method"] if isinstance(options, dict) else "",
)
def test_what_will_stop_is_said_before(tiny, aggregation, words):
    (text,) = cautions(tiny(aggregation=aggregation))
    assert "will stop in round 1" in text
    assert words in text
    with pytest.raises(TrainingError):
        muster.run(tiny(aggregation=aggregation), workers=0)


@pytest.mark.parametrize("method", ["fedprox", "moon"])
def test_without_its_term_it_is_plain_training(tiny, method):
    changes = {"algorithm": {"method": method, "mu": 0.0}}
    assert cautions(tiny(**changes)) == [f"{method} is plain training here: mu is 0"]
    same, other = muster.run(tiny(**changes), workers=0), muster.run(tiny(), workers=0)
    # MOON computes features and outputs apart, which rounds differently.
    rounding = {"fedprox": 0.0, "moon": 1e-6}[method]
    np.testing.assert_allclose(same.parameters, other.parameters, rtol=0, atol=rounding)


# --- options without effect --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "other"),
    [
        ({"method": "hics"}, {"gamma": 1.0, "lam": 0.0, "groups": 2}),
        ({"method": "astrafl"}, {"homogeneity": "entropy", "loss": "rate", "max_clusters": 2}),
        ({"method": "high-loss", "signal": "last_train_loss"}, {"method": "hics"}),
    ],
    ids=lambda options: options.get("method", "other"),
)
def test_nobody_has_a_second_turn(options, other):
    """12 clients, 3 rounds of 4: everybody trains once, in an order that no option changes."""
    played = []
    for changes in ({}, other if "method" not in other else {}):
        selector = _built({"clients_per_round": 4, **options, **changes})
        federation = FakeFederation(12, rounds=3)
        assert "random selection without repetition" in " ".join(selector.cautions(federation.population))
        assert not selector.cautions(replace(federation.population, rounds=4))
        played.append([federation.play(selector).trained.tolist() for _ in range(3)])
    assert played[0] == played[1]
    assert sorted(client for cohort in played[0] for client in cohort) == list(range(12))


def test_the_probe_does_not_matter_where_as_many_are_probed_as_chosen():
    probing = _built({"method": "probe-fairness", "clients_per_round": 4, "pool_factor": 1.0})
    at_random = _built(RANDOM)
    one, two = FakeFederation(12), FakeFederation(12)
    assert "at random" in " ".join(probing.cautions(one.population))
    assert [one.play(probing).trained.tolist() for _ in range(5)] == [
        two.play(at_random).trained.tolist() for _ in range(5)
    ]


@pytest.mark.parametrize(
    "options",
    [
        {"method": "fedpns", "clients_per_round": 3},
        {"method": "cluster", "groups": 1, "clients_per_round": 3},
        {"method": "size-weighted", "clients_per_round": 3},
        {"method": "dirichlet-participation", "gamma": float("inf"), "clients_per_round": 3},
        {"method": "dirichlet-participation", "redraw": "every_round", "clients_per_round": 3},
        {"method": "fedcor", "warmup": 1, "interval": 50, "epsilon": 1.0, "clients_per_round": 3},
        {"method": "oracle", "clients_per_round": 1},
    ],
    ids=str,
)
def test_random_in_distribution(options):
    """Not the same draws as random selection, but the same chances for everybody, whatever clients answer."""
    selector, federation = _built(options), FakeFederation(6, sizes=[50] * 6, rounds=10**6)
    assert "random selection" in " ".join(selector.cautions(federation.population))
    counts, expected = np.zeros(6), 600 * options["clients_per_round"] / 6
    for _ in range(600):
        counts[federation.play(selector).trained] += 1
    assert counts.sum() == 6 * expected
    assert abs(counts - expected).max() < 5 * np.sqrt(expected * (1 - expected / 600)), "five standard deviations"


def test_always_the_same_clients():
    selector, federation = (
        _built({"method": "diversity-score", "pick": "top", "clients_per_round": 3}),
        FakeFederation(9),
    )
    assert "always trains the same 3 clients" in " ".join(selector.cautions(federation.population))
    assert len({tuple(federation.play(selector).trained.tolist()) for _ in range(6)}) == 1


@pytest.mark.parametrize("method", ["oort", "pisces"])
@pytest.mark.parametrize("options", [{"exploration": 0.0}, {"exploration_decay": 0.0}], ids=str)
def test_without_exploration_nobody_new_has_a_turn(method, options):
    def trained(least):
        own = {"method": method, "clients_per_round": 3, "exploration_min": least, **options}
        selector, federation = _built(own), FakeFederation(9, rounds=20)
        said = "tries no new clients" in " ".join(selector.cautions(federation.population))
        return said, len({client for _ in range(20) for client in federation.play(selector).trained.tolist()})

    assert trained(0.0) == (True, 3)
    said, different = trained(0.4)
    assert not said
    assert different > 3


@pytest.mark.parametrize("options", [{"gap": 1}, {}], ids=["asked for", "a quarter of 7 rounds"])
def test_where_everybody_is_forced_in_the_probe_does_not_matter(options):
    played = []
    for beta in (0.1, 0.9):
        selector = _built({"method": "probe-fairness", "clients_per_round": 4, "beta": beta, **options})
        federation = FakeFederation(12, rounds=7)
        assert "makes no use of its probes" in " ".join(selector.cautions(federation.population))
        assert not _built({"method": "probe-fairness", "clients_per_round": 4, "gap": 2}).cautions(
            federation.population
        )
        played.append([federation.play(selector).trained.tolist() for _ in range(7)])
    assert played[0] == played[1]


def test_tiers_that_are_smaller_than_a_cohort():
    federation = FakeFederation(12, rounds=20)
    small, enough = (_built({"method": "tifl", "clients_per_round": 4, "tiers": tiers}) for tiers in (4, 3))
    assert "whole tiers here: 4 tiers of 12 clients have at most 3" in " ".join(
        small.cautions(federation.population)
    )
    assert not enough.cautions(federation.population)


@pytest.mark.parametrize("method", ["clustered-size", "clustered-similarity"])
def test_one_urn_is_a_draw_by_size(method):
    federation = FakeFederation(4, sizes=[10, 20, 30, 40], rounds=10**6)
    selector = _built({"method": method, "clients_per_round": 1})
    assert "size-weighted sampling" in " ".join(selector.cautions(federation.population))
    counts = np.zeros(4)
    for _ in range(1000):
        counts[federation.play(selector).trained] += 1
    assert abs(counts - [100, 200, 300, 400]).max() < 5 * np.sqrt(1000 * 0.24), "five standard deviations"


def test_a_limit_that_nobody_reaches():
    """12 clients, 4 a round, 5 rounds: with a limit of 8 nobody is ever due; with 7 somebody may be."""
    federation = FakeFederation(12, rounds=5)
    played = []
    for limit, never in ((8, True), (7, False), (30, True)):
        selector = _built({"method": "limit-gap", "selector": {**RANDOM}, "rounds": limit})
        assert ("never acts" in " ".join(selector.cautions(federation.population))) is never
        own = FakeFederation(12, rounds=5)
        played.append([own.play(selector).trained.tolist() for _ in range(5)])
    alone, own = _built(RANDOM), FakeFederation(12, rounds=5)
    assert played[0] == played[2] == [own.play(alone).trained.tolist() for _ in range(5)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"method": "tifl", "tiers": 1}, "tifl is random selection"),
        ({"method": "refl", "candidates": 4}, "refl is random selection"),
        ({"method": "hics", "groups": 1}, "makes no use of its estimates"),
        ({"method": "hics", "gamma": 0.0}, "hics prefers no group"),
        ({"method": "diversity-score", "alpha": 1.0}, "does not look at how clients differ"),
        ({"method": "diversity-score", "alpha": 0.0}, "does not look at clients' own diversity"),
        ({"method": "power-of-choice", "d": 20}, "power-of-choice is high-loss"),
        ({"method": "cluster", "groups": 20}, "cluster is nearly random selection"),
        ({"method": "hcsfed", "groups": 1, "ratio": 1.0}, "hcsfed makes no clusters"),
        ({"method": "hcsfed", "ratio": 1e-5}, "hcsfed sees one number of every client"),
        ({"method": "probe-fairness", "beta": 0.0}, "makes no use of fairness"),
        ({"method": "probe-fairness", "beta": 1.0}, "makes no use of its probes"),
        ({"method": "feddiverse", "clients_per_round": 1}, "looks only at spurious correlation"),
        ({"method": "astrafl", "threshold": 1.0}, "makes no use of losses"),
        ({"method": "astrafl", "threshold": -0.1}, "makes no use of content"),
        ({"method": "astrafl", "homogeneity": "mu21", "threshold": 0.9}, "makes no use of content"),
    ],
    ids=str,
)
def test_options_that_leave_nothing_to_choose_by(options, words):
    selector, population = _built({"clients_per_round": 4, **options}), FakeFederation(20, rounds=50).population
    assert words in " ".join(selector.cautions(population))
    others: dict[str, dict[str, Any]] = {
        "tifl": {"tiers": 2},
        "refl": {"candidates": 5},
        "hics": {"groups": 2, "gamma": 4.0},
        "diversity-score": {"alpha": 0.5},
        "power-of-choice": {"d": 19},
        "cluster": {"groups": 19},
        "hcsfed": {"groups": 2, "ratio": 1.0},
        "probe-fairness": {"beta": 0.5},
        "feddiverse": {"rotate_across_rounds": True},
        "astrafl": {"threshold": 0.5, "homogeneity": "l2"},
    }
    other = others[options["method"]]
    assert not _built({"clients_per_round": 4, **options, **other}).cautions(population)


def test_pretraining_takes_everybody(tiny):
    for method in ("feddiverse", "feddiverse-qp"):
        selector = _built({"method": method, "clients_per_round": 3, "pretraining_rounds": 2})
        federation = FakeFederation(6, rounds=2)
        assert "every client trains" in " ".join(selector.cautions(federation.population))
        assert [len(federation.play(selector).trained) for _ in range(2)] == [6, 6]


# --- every method ------------------------------------------------------------------------------------------------


def _built(options):
    values = dict(options)
    return selectors.build(values.pop("method"), values)


@pytest.mark.parametrize("name", selectors.names())
def test_whoever_says_that_there_is_nothing_to_select_takes_everybody(name):
    try:
        selector = selectors.build(name, {"clients_per_round": 6})
    except ConfigError:
        pytest.skip("has no such option, or others without a default")
    federation = FakeFederation(6, rounds=30)
    said = " ".join(selector.cautions(federation.population))
    if "nothing to select" in said:
        assert all(set(federation.play(selector).trained.tolist()) == set(range(6)) for _ in range(5))
    else:
        assert (
            name in ("random", "terraform", "retrain-random", "fedpns", "fedcs", "tifl")
            or selector.gives_multiplicity()
            or said
        )


@pytest.mark.parametrize("name", selectors.names())
def test_defaults_in_a_usual_federation_are_no_reason_for_caution(name):
    try:
        # The made-up model is so small that HCSFed's default ratio leaves nothing of it.
        selector = selectors.build(name, {"clients_per_round": 10} | ({"ratio": 1.0} if name == "hcsfed" else {}))
    except ConfigError:
        pytest.skip("has no such option, or others without a default")
    assert selector.cautions(FakeFederation(100, rounds=100).population) == []


@pytest.mark.parametrize("name", aggregators.names())
def test_usual_aggregations_are_none_either(name):
    usual = replace(FakeFederation(100).population, cohort=10)
    assert aggregators.build(name, {}).cautions(usual) == []
    alone = aggregators.build(name, {}).cautions(replace(usual, cohort=1))
    assert bool(alone) != aggregators.build(name, {}).streaming


# --- Terraform's rule --------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(1, 60), min_size=2, max_size=7),
    st.sampled_from([0.0, 0.1, 0.25, 0.5]),
    st.integers(0, 10**6),
)
def test_no_split_calls_more_clients_hard_than_it_says(sizes, low, seed):
    rng = np.random.default_rng(seed)
    count = int(rng.integers(2, len(sizes) + 1))
    limit = most_hard(np.array(sizes), count, low)
    for _ in range(5):
        cohort = rng.choice(len(sizes), count, replace=False)
        hard = split(rng.permutation(count) * rng.random(), np.array(sizes)[cohort], (low, 0.75))
        assert len(hard) <= limit


def test_the_limit_is_reached():
    # One client with half of the samples may be the only easy one.
    assert most_hard(np.array([10, 10, 10, 30]), 4, 0.25) == 3
    assert len(split(np.array([1.0, 5.0, 5.1, 5.2]), np.array([30, 10, 10, 10]))) == 3
    # Of five equal clients two are easy at least.
    assert most_hard(np.full(50, 20), 5, 0.25) == 3


@pytest.mark.parametrize(
    ("clients_per_round", "words"),
    [(4, "is random selection"), (5, "is random selection"), (6, "nearly random"), (7, ""), (10, "")],
)
def test_terraform_by_cohort(clients_per_round, words):
    """With clients of equal size and min_clients = 4."""
    population = FakeFederation(40, sizes=[30] * 40).population
    said = " ".join(Terraform(clients_per_round=clients_per_round).cautions(population))
    assert (words in said) if words else not said


# --- where it is said --------------------------------------------------------------------------------------------


def test_it_is_logged_before_round_1_and_stays_in_the_record(tiny, caplog):
    with caplog.at_level(logging.WARNING, logger="muster"):
        result = muster.run(tiny(selection={"method": "terraform", "clients_per_round": 4}), workers=0)
    assert any("terraform is random selection here" in record.getMessage() for record in caplog.records)
    assert "terraform is random selection here" in " ".join(result.records[0].events)
    assert not result.records[1].events
    assert any("terraform is random selection here" in text for text in warnings([result]))


def test_nothing_is_said_of_sound_runs(tiny, caplog):
    with caplog.at_level(logging.WARNING, logger="muster"):
        result = muster.run(tiny(), workers=0)
    assert not caplog.records
    assert not result.records[0].events


@pytest.mark.parametrize(
    ("training", "words"),
    [
        ({"decay": 0.1, "decay_every": 5}, "training.decay_every and training.decay have no effect"),
        ({"milestones": [2]}, "training.milestones has no effect here: training.schedule is 'constant'"),
        ({"schedule": "exponential", "decay": 0.9, "final_share": 0.1}, "training.final_share has no effect"),
        ({"mode": "centralised", "period": 3}, "training.period has no effect"),
    ],
)
def test_options_of_another_schedule_are_mentioned(tiny, training, words):
    assert any(words in text for text in cautions(tiny(training=training)))


@pytest.mark.parametrize("name", USES)
def test_a_schedule_looks_at_its_options_and_at_no_others(name):
    """Whatever an option that is not listed says, the rates stay as they are; one that is listed changes them."""
    other = {
        "decay_every": 2,
        "milestones": (2, 4),
        "patience": 1,
        "decay": 0.3,
        "period": 4,
        "period_growth": 3,
        "warmup": 0.5,
        "start_share": 0.5,
        "final_share": 0.2,
    }
    usual = LocalTraining(schedule=name, milestones=(3,) if name == "multistep" else ())

    def rates(training):
        return [training.learning_rate(round, 40, [1.0] * round) for round in range(40)]

    changed = [
        option for option, value in other.items() if rates(replace(usual, **{option: value})) != rates(usual)
    ]
    assert sorted(changed) == sorted(USES[name])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"training": {"steps": 3, "epochs": 5}}, "training.epochs has no effect here"),
        ({"aggregation": {"method": "fedavg", "staleness": "polynomial"}}, "aggregation.staleness has no effect"),
        ({"aggregation": {"method": "fedavgm", "staleness": "hinge"}}, "aggregation.staleness has no effect"),
        ({"privacy": {"epsilon": 1.0}}, "[privacy] protects nothing here"),
        (
            {
                "privacy": {"epsilon": 1.0, "signals": ["label_entropy"]},
                "selection": {"method": "diversity-score", "clients_per_round": 4},
            },
            "[privacy] protects nothing here",
        ),
    ],
)
def test_settings_without_effect_are_mentioned(tiny, settings, words):
    assert any(text.startswith(words) for text in cautions(tiny(**settings)))


@pytest.mark.parametrize(
    "settings",
    [
        {"training": {"steps": 3}},
        {"training": {"epochs": 5}},
        {"aggregation": {"method": "simprox"}},
        {
            "aggregation": {"method": "fedavg", "staleness": "polynomial"},
            "devices": {"method": "lognormal"},
            "pacing": {"method": "buffered", "in_flight": 8, "k": 2},
            "selection": {"method": "random", "clients_per_round": 2},
        },
        {"privacy": {"epsilon": 1.0}, "selection": {"method": "diversity-score", "clients_per_round": 4}},
    ],
)
def test_settings_with_an_effect_are_not(tiny, settings):
    assert not cautions(tiny(**settings))


TIMED = {"devices": {"method": "lognormal"}, "partition": {"scheme": "iid", "clients": 12}}


@pytest.mark.parametrize(
    ("pacing", "aggregation", "words"),
    [
        ({"method": "buffered", "in_flight": 12, "k": 2}, "krum", "will stop in round 1: 2 updates at a time"),
        ({"method": "buffered", "in_flight": 12, "k": 1}, "trimmed-mean", "no client is left out"),
        ({"method": "buffered", "in_flight": 12, "k": 1}, "simprox", "it gets one update at a time"),
        # Six are asked, four are used.
        ({"method": "over-select", "factor": 1.5}, "krum", "will stop in round 1: 4 updates at a time"),
    ],
)
def test_an_aggregation_is_judged_by_the_answers_that_it_gets(tiny, pacing, aggregation, words):
    experiment = tiny(selection=RANDOM, aggregation={"method": aggregation}, pacing=pacing, **TIMED)
    assert any(words in text for text in cautions(experiment))


@pytest.mark.parametrize(
    "pacing",
    [
        {"method": "buffered", "in_flight": 12, "k": 5},
        {"method": "pisces", "in_flight": 12},  # gets as many as have come
    ],
)
def test_more_answers_than_a_cohort_has_clients(tiny, pacing):
    experiment = tiny(selection=RANDOM, aggregation={"method": "krum"}, pacing=pacing, **TIMED)
    assert not any("krum" in text for text in cautions(experiment))
