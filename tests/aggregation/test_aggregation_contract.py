"""What every aggregation method must keep, whatever it computes."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.aggregation import aggregators
from muster.aggregation.base import Aggregator, StreamingAggregator
from muster.aggregation.fedavg import FedAvg
from muster.aggregation.krum import Krum
from muster.core.errors import ConfigError, TrainingError

ALL = aggregators.names()
STREAMING = [name for name in ALL if aggregators.get(name).streaming]  # type: ignore[attr-defined]
#: Methods whose first step from equal movements is exactly that movement.
AVERAGES = sorted(
    set(ALL)
    - {"fedadam", "fedadagrad", "fedyogi", "fedatt", "feddyn", "qfedavg", "fadas", "fedasync", "sign-vote"}
)
#: Methods that choose some clients, and need more than a few.
CHOOSING = {"krum", "multi-krum", "bulyan"}


def build(name, **options):
    return aggregators.build(name, {"attackers": 1} | options if "krum" in name else options)


@pytest.fixture
def run(layout, cohort, population):
    """`run(aggregator, movements, …)`: one aggregation of a model with buffers and a counter."""
    spec = layout([4, 3], buffers=2, counters=1)

    def aggregate(aggregator, movements, current=None, **more):
        aggregator.prepare(population(40))
        current = np.zeros(spec.size, dtype=np.float32) if current is None else current
        # As if the server's own data were everybody's.
        aggregator.trust(np.sort(np.asarray(movements, dtype=np.float32), axis=0).mean(axis=0))
        aggregator.draw_from(np.random.default_rng(0))
        return aggregator.aggregate(current, cohort(movements, **more), spec)

    return aggregate


#: Answers to the current model, the last and the one before; the older models differ from it by these drifts.
LATE: dict[str, Any] = {
    "staleness": np.array([0, 1, 2, 0, 1, 2, 0]),
    "version": np.array([2, 1, 0, 2, 1, 0, 2]),
    "drifts": {1: np.full(10, 0.25, dtype=np.float32), 0: np.linspace(-1, 1, 10, dtype=np.float32)},
}


def wilder(ages):
    """The same with running statistics that have drifted a long way."""
    wild = {version: drift.copy() for version, drift in ages.get("drifts", {}).items()}
    for drift in wild.values():
        drift[7:9] *= np.float32(1e4)
    return ages | {"drifts": wild} if ages else {}


def movements_of(seed, clients=7, scale=1.0):
    return np.random.default_rng(seed).normal(size=(clients, 10)).astype(np.float32) * np.float32(scale)


@pytest.mark.parametrize("name", ALL)
def test_weights_are_shares_and_inputs_stay_as_they_were(run, name) -> None:
    movements = movements_of(1)
    before = movements.copy()
    result = run(build(name), movements, sizes=[1, 5, 2, 8, 3, 1, 1])
    assert result.parameters.dtype == np.float32
    assert np.isfinite(result.parameters).all()
    assert (result.weights >= 0).all()
    assert result.weights.sum() == pytest.approx(1)
    np.testing.assert_array_equal(result.clients, np.arange(7))
    np.testing.assert_array_equal(movements, before)


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 1000), order=st.permutations(range(7)))
def test_who_is_who_does_not_matter(run, name, seed, order) -> None:
    order = np.array(order)
    movements = movements_of(seed)
    movements[:, -1] = 5
    sizes = np.array([1, 5, 2, 8, 3, 1, 1])
    losses = {"start_loss": np.linspace(0.5, 2, 7), "local_progress": np.arange(1.0, 8)}
    first = run(build(name), movements, sizes=sizes, reports=losses)
    shuffled = {key: values[order] for key, values in losses.items()}
    second = run(build(name), movements[order], sizes=sizes[order], reports=shuffled)
    np.testing.assert_allclose(first.parameters, second.parameters, rtol=1e-5, atol=1e-6)
    if name != "krum":
        np.testing.assert_allclose(first.weights[order], second.weights, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", AVERAGES)
def test_identical_models_give_that_model(run, name) -> None:
    one = movements_of(2, clients=1)
    result = run(build(name), np.repeat(one, 7, axis=0))
    np.testing.assert_allclose(result.parameters, one[0], rtol=1e-6)
    if name not in CHOOSING:
        np.testing.assert_allclose(result.weights, 1 / 7)


@pytest.mark.parametrize("name", sorted(set(ALL) - CHOOSING))
def test_one_client_has_weight_one(run, name) -> None:
    result = run(build(name), movements_of(3, clients=1))
    np.testing.assert_array_equal(result.weights, [1.0])
    assert np.isfinite(result.parameters).all()


@pytest.mark.parametrize("name", ALL)
def test_nobody_moves_then_nothing_moves(run, name) -> None:
    current = movements_of(4, clients=1)[0]
    result = run(build(name), np.zeros((7, 10)), current=current)
    np.testing.assert_array_equal(result.parameters[:-1], current[:-1])
    assert np.isfinite(result.weights).all()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("scale", [1e-30, 1e15, 1e30])
def test_tiny_and_huge_movements_stay_finite(run, name, scale) -> None:
    result = run(build(name), movements_of(5, scale=scale))
    assert np.isfinite(result.parameters).all()
    assert result.weights.sum() == pytest.approx(1)


@pytest.mark.parametrize("name", sorted(set(ALL) - {"simprox"}))
def test_the_step_does_not_depend_on_where_one_stands(run, name) -> None:
    # SimProx's cosines are seen from zero; all others only look at differences.
    movements = np.round(movements_of(6) * 64) / 64
    movements[:, -1] = 0
    there = np.full(10, 8.0, dtype=np.float32)
    there[-1] = 0
    far, near = run(build(name), movements, current=there), run(build(name), movements)
    np.testing.assert_allclose(far.parameters - there, near.parameters, atol=2e-6)
    np.testing.assert_allclose(far.weights, near.weights, rtol=1e-9)


@pytest.mark.parametrize("name", ALL)
def test_the_servers_rate_scales_parameters_but_not_running_statistics(run, name) -> None:
    movements = movements_of(7)
    rate = build(name).server_lr
    full, half = run(build(name), movements), run(build(name, server_lr=rate / 2), movements)
    np.testing.assert_allclose(half.parameters[:7], full.parameters[:7] / 2, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(half.parameters[7:9], full.parameters[7:9])


@pytest.mark.parametrize("late", [False, True], ids=["fresh", "late"])
@pytest.mark.parametrize("name", [*ALL, "simprox own_last"])
def test_running_statistics_have_no_say_in_weights_and_parameters(run, name, late) -> None:
    name, _, prev = name.partition(" ")
    if late and aggregators.get(name).stale is None:  # type: ignore[attr-defined]
        return
    options = {"prev": prev} if prev else {}
    usual, wild = build(name, **options), build(name, **options)
    for seed in range(2):
        movements = movements_of(seed)
        far = movements.copy()
        far[:, 7:9] *= np.float32(1e4) * np.arange(1, 8, dtype=np.float32)[:, None]
        ages = LATE if late else {}
        expected, got = run(usual, movements, **ages), run(wild, far, **wilder(ages))
        np.testing.assert_allclose(got.weights, expected.weights, rtol=1e-12)
        np.testing.assert_array_equal(got.parameters[:7], expected.parameters[:7])


@pytest.mark.parametrize("name", ALL)
def test_running_statistics_stay_between_the_clients(run, name) -> None:
    movements = movements_of(8)
    for _ in range(3):
        result = run(build(name), movements)
        assert (result.parameters[7:9] <= movements[:, 7:9].max(axis=0)).all()
        assert (result.parameters[7:9] >= movements[:, 7:9].min(axis=0)).all()


@pytest.mark.parametrize("name", sorted(set(ALL) - {"fltrust"}))
def test_counters_come_from_the_heaviest_client_or_the_one_in_the_middle(run, name) -> None:
    movements = movements_of(9)
    movements[:, -1] = [106, 100, 101, 1e6, 104, 103, 105]
    result = run(build(name), movements, sizes=[1, 1, 9, 1, 1, 1, 1])
    assert result.parameters[-1] == (movements[np.argmax(result.weights), -1] if name in STREAMING else 104)


@pytest.mark.parametrize("name", STREAMING)
def test_a_stream_and_a_matrix_give_the_same_bits(layout, cohort, population, name) -> None:
    spec = layout([50_000, 20_000], buffers=100, counters=1)
    rng = np.random.default_rng(10)
    updates = cohort(
        rng.normal(size=(5, spec.size)),
        sizes=[3, 1, 4, 1, 5],
        steps=[3, 1, 4, 1, 5],
        extra={"control_change": rng.normal(size=(5, spec.size)).astype(np.float32)},
    )
    matrix, stream = build(name), build(name)
    current = rng.normal(size=spec.size).astype(np.float32)
    for aggregator in (matrix, stream):
        aggregator.prepare(population(20))
    for _ in range(2):
        whole = matrix.aggregate(current, updates, spec)
        row_by_row = StreamingAggregator.aggregate(stream, current, updates, spec)
        np.testing.assert_array_equal(whole.parameters, row_by_row.parameters)
        np.testing.assert_array_equal(whole.weights, row_by_row.weights)


@pytest.mark.parametrize("name", [*ALL, "simprox own_last"])
def test_restoring_in_the_middle_changes_no_bit(run, name) -> None:
    name, _, prev = name.partition(" ")
    options = {"prev": prev} if prev else {}
    through, interrupted = build(name, **options), build(name, **options)
    for seed in range(2):
        run(through, movements_of(seed))
        run(interrupted, movements_of(seed))
    resumed = build(name, **options)
    resumed.load_state_dict(copy.deepcopy(interrupted.state_dict()))
    for seed in range(2, 4):
        expected, got = run(through, movements_of(seed)), run(resumed, movements_of(seed))
        np.testing.assert_array_equal(got.parameters, expected.parameters)
        np.testing.assert_array_equal(got.weights, expected.weights)


@pytest.mark.parametrize("name", [name for name in ALL if aggregators.get(name).honours_multiplicity])  # type: ignore[attr-defined]
def test_drawn_twice_counts_like_two_clients(run, name) -> None:
    movements = movements_of(11, clients=4)
    doubled = np.concatenate([movements, movements[-1:]])
    once = run(build(name), doubled)
    twice = run(build(name), movements, multiplicity=[1, 1, 1, 2])
    if name in ("simprox", "norm-bounding"):
        # Similarities and median lengths are of the distinct models; only the weight counts twice.
        assert twice.weights[3] > run(build(name), movements).weights[3]
        return
    np.testing.assert_allclose(twice.parameters[:-1], once.parameters[:-1], rtol=1e-5, atol=1e-6)
    assert twice.weights[3] == pytest.approx(once.weights[3] + once.weights[4])


@pytest.mark.parametrize("name", [name for name in ALL if aggregators.build(name, {}).honours_weights])
def test_weights_of_the_selector_replace_the_methods_own(run, name) -> None:
    result = run(build(name), movements_of(12, clients=3), sizes=[100, 1, 1], weights=np.array([0.0, 3.0, 1.0]))
    if name == "geometric-median":
        assert result.weights[0] == 0
        return
    np.testing.assert_allclose(result.weights, [0, 0.75, 0.25])


@pytest.mark.parametrize("name", [name for name in ALL if aggregators.build(name, {}).honours_weights])
def test_weights_that_are_all_zero_are_the_same_error(run, name) -> None:
    """As when all clients with a weight have failed: equal weights would be another method."""
    with pytest.raises(TrainingError, match="the aggregation weights of all updates are zero"):
        run(build(name), movements_of(13, clients=3), weights=np.zeros(3))


def only(updates, rows):
    """The columns of these rows."""
    return {
        key: {name: column[rows] for name, column in values.items()} if isinstance(values, dict) else values[rows]
        for key, values in updates.items()
    }


@pytest.mark.parametrize("late", [False, True], ids=["fresh", "late"])
@pytest.mark.parametrize("name", [name for name in ALL if aggregators.build(name, {}).honours_weights])
def test_an_update_without_weight_leaves_no_trace(run, name, late) -> None:
    """Neither in the parameters nor in what the server remembers: round after round as if it had not come."""
    if late and aggregators.get(name).stale is None:  # type: ignore[attr-defined]
        return
    weights = np.array([2.0, 0.0, 3.0, 1.0, 0.0, 1.0, 4.0])
    rows = np.flatnonzero(weights)
    ages = {key: LATE[key] for key in ("staleness", "version")} if late else {}
    some, all_but = build(name), build(name)
    for seed in range(3):
        movements = movements_of(seed)
        movements[weights == 0] *= 50
        told = {
            "sizes": np.array([1, 50, 2, 8, 30, 1, 1]),
            "clients": np.arange(7),
            "steps": np.array([2, 9, 3, 4, 9, 2, 5]),
            "weights": weights,
            "extra": {"control_change": movements_of(seed + 50)},
            **ages,
        }
        drifts = {"drifts": LATE["drifts"]} if late else {}
        expected = run(some, movements[rows], **only(told, rows), **drifts)
        got = run(all_but, movements, **told, **drifts)
        np.testing.assert_array_equal(got.parameters, expected.parameters)
        np.testing.assert_array_equal(got.weights[weights == 0], 0)
        np.testing.assert_allclose(got.weights[rows], expected.weights, rtol=1e-12)
    assert str(some.state_dict()) == str(all_but.state_dict())


@pytest.mark.parametrize("name", [name for name in ALL if aggregators.build(name, {}).honours_weights])
def test_an_aggregation_that_failed_leaves_no_trace(run, name) -> None:
    through, failed = build(name), build(name)
    for aggregator in (through, failed):
        run(aggregator, movements_of(1))
    with pytest.raises(TrainingError):
        run(failed, movements_of(2), weights=np.zeros(7))
    assert str(through.state_dict()) == str(failed.state_dict())
    after, expected = (run(aggregator, movements_of(3)) for aggregator in (failed, through))
    np.testing.assert_array_equal(after.parameters, expected.parameters)


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("option", "value"), [("server_lr", 0.0), ("server_lr", float("nan")), ("clip_norm", -1.0)]
)
def test_impossible_options_are_refused_before_the_first_round(population, name, option, value) -> None:
    with pytest.raises(ConfigError, match=option):
        build(name, **{option: value}).check(population(20))
    build(name).check(population(20))


#: Methods that use weights of the selection, that count a client as often as it was drawn, that a cap bounds.
WEIGHTED = {"fadas", "fedadagrad", "fedadam", "fedasync", "fedavg", "fedavgm", "fedbuff", "fednova", "fedyogi"}
WEIGHTED |= {"geometric-median", "norm-bounding"}
HONOURS = {
    "honours_weights": WEIGHTED | {"refl", "scaffold"},
    "honours_multiplicity": WEIGHTED | {"fedatt", "qfedavg", "refl", "simagg", "simprox"},
    "bounds_weights": WEIGHTED | {"qfedavg", "scaffold", "simagg"},
    "streaming": WEIGHTED - {"geometric-median", "norm-bounding"} | {"feddyn", "qfedavg", "scaffold"},
    "needs_root": {"fltrust"},
    "draws": {"dnc"},
    "keeps_updates": {"ca2fl"},
}


@pytest.mark.parametrize("fact", HONOURS)
def test_which_methods_can_what(fact) -> None:
    """Runs are refused or allowed by these: a method that forgets one would silently compute something else."""
    assert {name for name in ALL if getattr(aggregators.get(name), fact)} == HONOURS[fact]


def test_options_that_all_methods_share_are_given_by_name() -> None:
    assert FedAvg("equal").weights == "equal"
    assert Krum(2).attackers == 2
    with pytest.raises(TypeError):
        FedAvg("equal", "constant", None, 4, 1.0)  # type: ignore[call-arg]


def test_what_nobody_asks_for_is_not_done() -> None:
    """Of a method of one's own: no second vector, no reports, no objections, no cap, the whole step."""

    class Own(Aggregator):
        def aggregate(self, current, updates, spec):
            raise AssertionError

    own = Own()
    assert (own.clip_norm, own.server_lr, own.max_weight) == (None, 1.0, None)
    assert (own.broadcast(None), own.reports(), own.objections(None)) == (None, (), {})
    assert (own.stale, own.requires_algorithm) == (None, None)


@pytest.mark.parametrize(
    ("cohort", "cap", "words"),
    [
        (1, None, "nothing to compare"),
        (2, None, ""),
        (None, 0.1, ""),
        (10, 0.1, "weights all clients alike here: of 10 none may have more than 0.1"),
        (11, 0.1, ""),
        (9, 0.1, "alike"),
    ],
)
def test_what_leaves_a_method_nothing_to_do_is_said(population, cohort, cap, words) -> None:
    made = aggregators.build("geometric-median", {"max_weight": cap, "weights": "samples"})
    said = made.cautions(replace(population(40), cohort=cohort))
    assert (words in said[0]) if words else (said == [])
    streaming = aggregators.build("fedavg", {}).cautions(replace(population(40), cohort=1))
    assert streaming == []
