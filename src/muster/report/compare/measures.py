"""Numbers of one run: a metric at the end or within a budget, area, work to a target; how it came about."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.stats import entropy

from muster.core import inequality
from muster.core.arrays import Floats
from muster.core.errors import ConfigError, nearest
from muster.report.flights import WASTED, flights_of
from muster.report.tables import AMOUNTS, Better, Column, bytes_column
from muster.server.ledger import BYTES_PER_NUMBER, MODEL_UPDATE
from muster.server.metrics import lower_is_better
from muster.server.result import Result

NAN = math.nan


@dataclass(frozen=True)
class Unit:
    """A measure of work, by which runs are compared."""

    name: str
    #: What one of it is called: "per …".
    one: str
    #: What many of it are called: "… to the target".
    many: str


#: What a run spends, in the order of the tables.
UNITS = {
    unit.name: unit
    for unit in (
        Unit("round", "round", "rounds"),
        Unit("client_trainings", "client training", "client trainings"),
        Unit("bytes", "byte", "bytes"),
        Unit("virtual_seconds", "virtual second", "virtual seconds"),
    )
}

_TITLES = {
    "accuracy": "accuracy",
    "client_accuracy_mean": "clients' own data",
    "client_accuracy_weighted": "clients' own data, weighted",
    "client_accuracy_worst": "worst client",
    "client_accuracy_worst_tenth": "worst tenth of clients",
    "client_accuracy_std": "spread over clients",
    "participant_accuracy": "participants only",
    "last_iteration_accuracy": "last iteration only",
    "worst_group_accuracy": "worst group",
    "group_gap": "mean group − worst group",
}
_SHARES = ("precision", "recall", "f1", "group_gap")


@dataclass(frozen=True)
class Budget:
    """An amount of work: only evaluations within it count."""

    unit: str
    amount: float


def better(metric: str) -> Better:
    return Better.LOWER if lower_is_better(metric) else Better.HIGHER


def metric_column(metric: str, title: str = "") -> Column:
    """How a metric is shown: shares in percent."""
    title = title or _TITLES.get(metric, metric.replace("_", " "))
    if "accuracy" in metric or metric in _SHARES:
        return Column(title, "%", 100.0, ".1f", better(metric))
    return Column(title, form=".4f", better=better(metric))


def unit_column(unit: str, title: str, largest: float) -> Column:
    """How an amount of work is shown; less is better."""
    if unit == "bytes":
        return bytes_column(title, largest, better=Better.LOWER)
    if unit == "virtual_seconds":
        return Column(title, "s", 1.0, ",.0f" if largest >= 100 else ",.1f", Better.LOWER, AMOUNTS)
    return Column(title, form=",.1f" if largest < 100 else ",.0f", better=Better.LOWER, bounds=AMOUNTS)


def amount_text(budget: Budget) -> str:
    """An amount of work in words, as in the head of a column."""
    column = unit_column(budget.unit, "", budget.amount)
    if budget.unit in ("bytes", "virtual_seconds"):
        return f"{column.shown(budget.amount)} {'virtual s' if column.unit == 's' else column.unit}"
    unit = UNITS[budget.unit]
    return f"{budget.amount:,.0f} {unit.one if budget.amount == 1 else unit.many}"


def trains_again(result: Result) -> bool:
    """Whether some round trained more than once."""
    return any(len(record.trainings) > 1 for record in result.records)


# --- curves ------------------------------------------------------------------------------------------------------


def known_metrics(result: Result) -> set[str]:
    """The metrics that were measured at least once."""
    return {name for record in result.records for name, value in record.metrics.items() if not math.isnan(value)}


def curve(result: Result, metric: str, unit: str = "round") -> tuple[Floats, Floats]:
    """Work and value at every evaluation of a metric; empty where a run does not have it."""
    if not any(metric in row for row in result.metrics) or not spends(result, unit):
        return np.empty(0), np.empty(0)
    if unit == "bytes":
        (down, values), (up, _) = (result.series(metric, name) for name in ("bytes_down", "bytes_up"))
        return np.asarray(down + up, dtype=np.float64), values
    work, values = result.series(metric, checked_unit(unit))
    return np.asarray(work, dtype=np.float64), values


def checked_unit(unit: str) -> str:
    if unit not in UNITS:
        raise ConfigError(f"unknown unit of work '{unit}'", expected=nearest(unit, UNITS))
    return unit


def total(result: Result, unit: str) -> float:
    """All work of a run in a unit."""
    last = result.metrics[-1]
    return float(last["bytes_down"] + last["bytes_up"] if unit == "bytes" else last[checked_unit(unit)])


def federated(result: Result) -> bool:
    """Whether clients and a server exchanged anything; not so in centralised training."""
    return total(result, "bytes") > 0


def spends(result: Result, unit: str) -> bool:
    """Whether a run can be compared by a unit of work: without a federation only by rounds."""
    return total(result, unit) > 0 and (unit == "round" or federated(result))


def value(result: Result, metric: str, *, last: int = 1, within: Budget | None = None) -> float:
    """Mean of the last evaluations, within a budget if there is one; NaN where there is none.

    A run counts as it was last measured: nothing is interpolated between two evaluations.
    """
    work, values = curve(result, metric, within.unit if within else "round")
    if within:
        values = values[work <= within.amount]
    return float(np.mean(values[-last:])) if len(values) else NAN


def step_area(work: Floats, values: Floats, start: float, end: float) -> float:
    """Mean height over [start, end] of the curve that keeps a value until the next evaluation.

    NaN where the curve begins after `start` or the interval is empty. It lies on the scale of the metric.
    """
    if not len(work) or work[0] > start or end <= start:
        return NAN
    edges = np.clip(np.append(work, math.inf), start, end)
    return float(np.diff(edges) @ values / (end - start))


def area(result: Result, metric: str, unit: str, start: float, end: float) -> float:
    """The area under a run's curve over a unit of work: see `step_area`."""
    return step_area(*curve(result, metric, unit), start, end)


def to_target(work: Floats, values: Floats, target: float, wanted: Better, sustain: int = 1) -> float:
    """Work at the first evaluation that reaches the target (the first of `sustain` in a row); NaN if none does."""
    reached = values >= target if wanted is Better.HIGHER else values <= target
    if len(reached) < sustain:
        return NAN
    in_a_row = np.lib.stride_tricks.sliding_window_view(reached, sustain).all(axis=1)
    return float(work[np.argmax(in_a_row)]) if in_a_row.any() else NAN


# --- participation, weights and overhead -------------------------------------------------------------------------


def participation(result: Result) -> dict[str, float]:
    """How evenly, widely and regularly clients took part; NaN where there are none, or their number is unknown."""
    clients = result.history.clients
    rounds = [np.array([client for training in chosen for client in training]) for chosen in result.selections]
    highest = max((int(ids.max(initial=-1)) for ids in rounds), default=-1)
    facts = inequality.summary(rounds, max(clients, highest + 1))
    return facts if clients and federated(result) else dict.fromkeys(facts, NAN)


@dataclass(frozen=True)
class Overhead:
    """What a run cost besides one model to and from every client that trains; all of it by round.

    NaN where there was no federation to measure it in.
    """

    #: Share of the rounds in which clients were asked something before they trained.
    rounds_with_questions: float
    clients_asked: float
    client_trainings: float
    #: Bytes beside the models.
    extra_down: float
    extra_up: float
    samples_trained: float
    samples_probed: float
    server_seconds: float
    #: The whole round on the machine that ran it; NaN where it was not measured.
    seconds: float


def overhead(result: Result) -> Overhead:
    costs, rounds = result.ledger.total(), len(result.records)
    model = result.spec.bytes or BYTES_PER_NUMBER * len(result.parameters)
    failed = sum(len(training.failed) for record in result.records for training in record.trainings)
    # Answers that came and were discarded do not count as client trainings, but have travelled both ways.
    stale = int(flights_of(result).ended_as("stale").sum())
    asked = sum(asked for record in result.records for _, asked, _ in record.asks)
    exchanges = 1.0 if federated(result) else NAN
    return Overhead(
        rounds_with_questions=sum(bool(record.asks) for record in result.records) / rounds,
        clients_asked=asked / rounds,
        client_trainings=exchanges * costs.client_trainings / rounds,
        extra_down=exchanges * (costs.bytes_down - model * (costs.client_trainings + failed + stale)) / rounds,
        extra_up=exchanges * (costs.bytes_up - model * (costs.client_trainings + stale)) / rounds,
        samples_trained=costs.samples / rounds,
        samples_probed=costs.probe_samples / rounds,
        server_seconds=costs.server_seconds / rounds,
        seconds=costs.seconds / rounds if costs.seconds else NAN,
    )


def timing(result: Result) -> dict[str, float]:
    """How a run spent its virtual time, and how much was wasted; NaN where it has none.

    `wasted`: the share of the trainings that were begun and ended; `wasted_time`: the share of the seconds that
    clients spent on trainings.
    """
    flights, costs = flights_of(result), result.ledger.total()
    if not len(flights):
        names = ("seconds", "round", "at_work", "wasted", *WASTED, "wasted_time", "staleness", "most_stale")
        return dict.fromkeys(names, NAN)
    shares = {kind: float(flights.ended_as(kind).mean()) for kind in WASTED}
    spent = flights.ended - flights.started
    used = flights.staleness[flights.ended_as("used")]
    return {
        "seconds": costs.virtual_seconds,
        "round": costs.virtual_seconds / len(result.records),
        "at_work": float(spent.sum()) / costs.virtual_seconds if costs.virtual_seconds else NAN,
        "wasted": sum(shares.values()),
        **shares,
        "wasted_time": float(spent[flights.ended_as(*WASTED)].sum() / spent.sum()) if spent.any() else 0.0,
        "staleness": float(used.mean()) if len(used) else NAN,
        "most_stale": float(used.max()) if len(used) else NAN,
    }


def weights_given(result: Result) -> dict[str, float]:
    """How unequal the weights were with which updates were averaged, over all trainings; NaN where there are none.

    `counting` is the exponential of the weights' entropy: as many clients as there are when all weights are equal,
    one when a single client has all the weight.
    """
    rows = [np.array(t.weights) for record in result.records for t in record.trainings if t.weights]
    if not rows or not federated(result):
        return dict.fromkeys(("smallest", "largest", "ratio", "largest_ratio", "clients", "counting"), NAN)
    low, high = (np.array([extreme(row) for row in rows]) for extreme in (np.min, np.max))
    ratios = high / low if low.min() > 0 else np.array([NAN])
    return {
        "smallest": float(low.min()),
        "largest": float(high.max()),
        "ratio": float(ratios.mean()),
        "largest_ratio": float(ratios.max()),
        "clients": float(np.mean([len(row) for row in rows])),
        "counting": float(np.mean([np.exp(entropy(row)) for row in rows])),
    }


def disclosures(result: Result) -> dict[str, float]:
    """Kind of information besides the model update → how often clients sent it, by round."""
    told = result.ledger.total_disclosed()
    return {kind: times / len(result.records) for kind, times in told.items() if kind != MODEL_UPDATE}
