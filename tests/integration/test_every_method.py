"""Every registered method runs end to end: with plain and proximal training, and after stop and resume."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import muster
from muster.aggregation.base import aggregators
from muster.core.errors import ConfigError
from muster.experiment.extension import dependences_on_length
from muster.selection.base import selectors
from muster.server.loop import Observer
from muster.signals.base import signals
from muster.training.base import algorithms

PER_ROUND, CLIENTS = 4, 12
RANDOM = {"method": "random", "clients_per_round": PER_ROUND}
HIGH_LOSS = {"method": "high-loss", "clients_per_round": 2}

#: What a method needs beyond `clients_per_round` to show itself in three rounds.
OPTIONS: dict[str, dict[str, Any]] = {
    "fedcor": {"warmup": 2, "interval": 1, "steps": [20, 5]},
    "fedcs": {"candidates": 0.5, "deadline": 1000.0, "clients_per_round": PER_ROUND},
    "feddiverse": {"biased_steps": 4, "attribute_steps": 2},
    "hcsfed": {"ratio": 0.01},
    "tifl": {"interval": 1, "tiers": 2},
    "terraform": {"min_clients": 2},
    "limit-gap": {"selector": RANDOM, "rounds": 3},
    "mix": {"first": RANDOM, "second": HIGH_LOSS, "share": 0.5},
    "warmup": {"rounds": 1, "first": RANDOM, "then": HIGH_LOSS},
    "within": {"pool": {"method": "random", "clients_per_round": 8}, "inner": HIGH_LOSS},
}
DEVICES = {"model": "lognormal"}
RHYTHM = {"method": "rhythm"}
SHAPES = {"source": "spurious-shapes"}
COMBINATORS = {"limit-gap", "mix", "warmup", "within"}


def section(method: str) -> dict[str, Any]:
    alone = method in COMBINATORS
    return {"method": method} | ({} if alone else {"clients_per_round": PER_ROUND}) | OPTIONS.get(method, {})


def experiment(tiny, method: str, **changes: Any) -> muster.Experiment:
    if method in ("fedcs", "pisces", "refl", "tifl"):
        changes["devices"] = DEVICES
    if method == "refl":
        changes["availability"] = RHYTHM
    if method == "feddiverse-qp":
        changes["data"] = SHAPES | {"samples": 400}
        changes["model"] = {"name": "mlp", "hidden": [8]}
    return tiny(selection=section(method), **changes)


class StopAfterFirst(Observer):
    def wants_stop(self) -> bool:
        return True


@pytest.mark.parametrize(
    "algorithm", [{"method": "plain"}, {"method": "fedprox", "mu": 0.1}], ids=["plain", "prox"]
)
@pytest.mark.parametrize("method", selectors.names())
def test_selection_runs(tiny, method, algorithm):
    result = muster.run(experiment(tiny, method, algorithm=algorithm), workers=0)
    assert len(result.records) == 3
    assert all(trainings and all(trainings) for trainings in result.selections)
    assert np.isfinite(result.parameters).all()
    assert result.final() > 0
    assert not result.rejected


@pytest.mark.parametrize("method", selectors.names())
def test_selection_resumes_with_the_same_bits(tiny, method, tmp_path):
    made = experiment(tiny, method)
    whole = muster.run(made, workers=0)
    part = muster.run(made, workers=0, out=tmp_path, observers=[StopAfterFirst()])
    assert len(part.records) == 1
    rest = muster.run(experiment(tiny, method), workers=0, out=tmp_path, resume=True)
    assert np.array_equal(whole.parameters, rest.parameters)
    assert whole.selections == rest.selections
    assert str(whole.metrics) == str(rest.metrics)


@pytest.mark.slow
@pytest.mark.parametrize("method", selectors.names())
def test_selection_is_extended_with_the_same_bits_or_says_why_not(tiny, method, tmp_path):
    short, made = (experiment(tiny, method, rounds=rounds) for rounds in (2, 5))
    if dependences_on_length(made):
        return
    whole = muster.run(made, workers=0)
    muster.run(short, workers=0, out=tmp_path)
    longer = muster.run(experiment(tiny, method, rounds=5), workers=0, out=tmp_path, resume=True)
    assert np.array_equal(whole.parameters, longer.parameters)
    assert whole.selections == longer.selections
    assert str(whole.metrics) == str(longer.metrics)


# --- aggregation -----------------------------------------------------------------------------------------

SELECTIONS = {
    "random": {"method": "random", "clients_per_round": 7},
    "terraform": {"method": "terraform", "clients_per_round": 10, "min_clients": 7},
    "high-loss": {"method": "high-loss", "clients_per_round": 7},
}


def aggregation_experiment(tiny, method: str, selection: str = "random") -> muster.Experiment:
    needed = aggregators.get(method).requires_algorithm  # type: ignore[attr-defined]
    own: dict[str, Any] = {"validation": 50} if aggregators.get(method).needs_root else {}  # type: ignore[attr-defined]
    return tiny(
        data={"source": "digits"} | own,
        selection=SELECTIONS[selection],
        aggregation={"method": method},
        algorithm={"method": needed[0] if needed else "plain"},
    )


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("method", aggregators.names())
def test_aggregation_runs(tiny, method, selection):
    result = muster.run(aggregation_experiment(tiny, method, selection), workers=0)
    assert np.isfinite(result.parameters).all()
    for record in result.records:
        for training in record.trainings:
            assert min(training.weights) >= 0
            assert sum(training.weights) == pytest.approx(1)


@pytest.mark.parametrize("method", aggregators.names())
def test_aggregation_resumes_with_the_same_bits(tiny, method, tmp_path):
    whole = muster.run(aggregation_experiment(tiny, method), workers=0)
    muster.run(aggregation_experiment(tiny, method), workers=0, out=tmp_path, observers=[StopAfterFirst()])
    rest = muster.run(aggregation_experiment(tiny, method), workers=2, out=tmp_path, resume=True)
    assert np.array_equal(whole.parameters, rest.parameters)
    assert str(whole.metrics) == str(rest.metrics)


@pytest.mark.parametrize("method", algorithms.names())
def test_local_algorithms_resume_with_the_same_bits(tiny, method, tmp_path):
    """Client state (control variates, previous models) is part of the checkpoint."""
    matching = next(
        (name for name in aggregators if method in (aggregators.get(name).requires_algorithm or ())),  # type: ignore[attr-defined]
        "fedavg",
    )
    everyone = {"method": "random", "clients_per_round": 9}

    def made() -> muster.Experiment:
        return tiny(selection=everyone, algorithm={"method": method}, aggregation={"method": matching})

    whole = muster.run(made(), workers=0)
    muster.run(made(), workers=0, out=tmp_path, observers=[StopAfterFirst()])
    rest = muster.run(made(), workers=2, out=tmp_path, resume=True)
    assert np.array_equal(whole.parameters, rest.parameters)


@pytest.mark.parametrize(
    "method",
    [name for name in aggregators if not aggregators.get(name).honours_multiplicity],  # type: ignore[attr-defined]
)
def test_sampling_with_replacement_is_refused_where_it_cannot_be_counted(tiny, method):
    needed = aggregators.get(method).requires_algorithm  # type: ignore[attr-defined]
    twice = {"method": "size-weighted", "clients_per_round": 7, "replace": True, "equal_weights": False}
    made = tiny(
        selection=twice, aggregation={"method": method}, algorithm={"method": needed[0] if needed else "plain"}
    )
    with pytest.raises(ConfigError, match="with replacement"):
        muster.run(made, workers=0)


# --- what methods cost -----------------------------------------------------------------------------------


def measured(tiny, method: str, **changes: Any) -> tuple[muster.Result, np.ndarray, int, int]:
    made = experiment(tiny, method, **changes)
    result = muster.run(made, workers=0)
    from muster.experiment.components import build_data

    sizes = build_data(made).sizes
    return result, sizes, result.spec.bytes, result.ledger.total().client_trainings


FREE = ["random", "round-robin", "sliding-window", "dirichlet-participation", "size-weighted", "clustered-size"]
IN_UPDATE = ["clustered-similarity", "hics", "fedpns", "terraform"]


@pytest.mark.parametrize("method", [*FREE, *IN_UPDATE])
def test_methods_that_add_nothing_to_fedavg(tiny, method):
    result, _, model, trainings = measured(tiny, method)
    total = result.ledger.total()
    assert total.bytes_down == total.bytes_up == model * trainings
    assert total.probe_samples == 0
    assert set(result.ledger.total_disclosed()) == {"model update"}


@pytest.mark.parametrize(("variant", "asked"), [("pow-d", 2), ("cpow-d", 2), ("rpow-d", 0)])
def test_power_of_choice_asks_twice_as_many_as_it_trains(tiny, variant, asked):
    made = tiny(selection=section("power-of-choice") | {"variant": variant})
    result = muster.run(made, workers=0)
    total, model = result.ledger.total(), result.spec.bytes
    candidates = asked * PER_ROUND * 3
    assert total.bytes_down == model * (total.client_trainings + candidates)
    # One number from every candidate, or (rpow-d) the training loss with the update.
    assert total.bytes_up == model * total.client_trainings + 4 * (candidates or total.client_trainings)
    assert (total.probe_samples > 0) == bool(asked)


@pytest.mark.parametrize("method", ["high-loss", "astrafl"])
def test_methods_that_ask_everybody_every_round(tiny, method):
    result, sizes, model, trainings = measured(tiny, method)
    total = result.ledger.total()
    assert total.bytes_down == model * (trainings + 3 * CLIENTS)
    assert total.probe_samples >= 3 * sizes.sum()


def test_probes_cost_two_batches_of_twice_the_cohort(tiny):
    result, _, model, trainings = measured(tiny, "probe-fairness")
    total = result.ledger.total()
    assert total.bytes_down == model * (trainings + 3 * 2 * PER_ROUND)
    assert total.bytes_up == model * trainings + 4 * 3 * 2 * PER_ROUND
    assert 0 < total.probe_samples <= 3 * 2 * PER_ROUND * 2 * 16


@pytest.mark.parametrize("method", ["diversity-score", "fedcbs", "oracle", "cluster"])
def test_histograms_are_sent_once(tiny, method):
    result, _, model, trainings = measured(tiny, method)
    total = result.ledger.total()
    assert total.bytes_down == model * trainings
    assert total.bytes_up == model * trainings + 4 * 10 * CLIENTS
    assert result.ledger.disclosed[0][signals.get("label_histogram").discloses] == CLIENTS  # type: ignore[attr-defined]
    assert all(set(row) == {"model update"} for row in result.ledger.disclosed[1:])


def test_feddiverse_sends_three_numbers_once(tiny):
    result, _, model, trainings = measured(tiny, "feddiverse")
    total = result.ledger.total()
    assert trainings == CLIENTS + 2 * PER_ROUND or trainings == CLIENTS + 3 * PER_ROUND
    assert total.bytes_up == model * trainings + 4 * 3 * CLIENTS


def test_terraform_trains_several_times_a_round_and_says_so(tiny):
    result, _, _, trainings = measured(tiny, "terraform", rounds=4)
    assert any(len(round) > 1 for round in result.selections)
    assert trainings == sum(len(clients) for round in result.selections for clients in round) > 4 * PER_ROUND
    for round in result.selections:
        for before, after in pairwise(round):
            assert set(after) < set(before)


def test_oort_reports_one_or_two_numbers(tiny):
    result, _, model, trainings = measured(tiny, "oort")
    total = result.ledger.total()
    assert total.bytes_up - model * trainings in (4 * trainings, 8 * trainings)
    assert total.probe_samples == 0


def test_virtual_time_is_that_of_the_slowest(tiny):
    result = muster.run(tiny(devices=DEVICES), workers=0)
    assert all(costs.virtual_seconds > 0 for costs in result.ledger.rounds)
    assert math.isclose(muster.run(tiny(), workers=0).ledger.total().virtual_seconds, 0)


def test_a_loss_that_is_measured_for_a_report_is_counted(tiny):
    """q-FedAvg needs the loss of the global model: a pass over all data, though not a question of its own."""
    result = muster.run(tiny(aggregation={"method": "qfedavg"}), workers=0)
    total = result.ledger.total()
    assert total.probe_samples == total.samples, "one epoch of training, one pass for the loss"
