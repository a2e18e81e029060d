"""Clients that lie about what they measured: every method goes on, and says how often the liar was chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import muster
from muster.aggregation.fedavg import FedAvg
from muster.core.arrays import Floats
from muster.engine.base import AskOrder, Engine, Failed, collect_replies
from muster.engine.trial import TrialEngine
from muster.engine.wrapped import WrappedEngine
from muster.experiment.components import build_selector
from muster.pacing import Synchronous
from muster.selection.base import selectors
from muster.server.limits import ClientLimits, bounded
from muster.server.loop import Server
from muster.server.result import Result
from muster.signals.base import LARGEST_COUNT, Range, Replies, signals
from muster.updates.attacks.lying_signals import LyingSignals
from muster.updates.table import Updates

CLIENTS, PER_ROUND, ROUNDS, LIAR = 12, 4, 12, 5
RANDOM = {"method": "random", "clients_per_round": PER_ROUND}
HIGH_LOSS = {"method": "high-loss", "clients_per_round": 2}
OPTIONS: dict[str, dict[str, Any]] = {
    "fedcor": {"warmup": 2, "interval": 2, "steps": [20, 5]},
    "fedcs": {"candidates": 0.5, "deadline": 1000.0, "clients_per_round": PER_ROUND},
    "hcsfed": {"ratio": 0.2},
    "retrain-random": {"min_clients": 2},
    "terraform": {"min_clients": 2},
    "limit-gap": {"selector": RANDOM, "rounds": 3},
    "mix": {"first": RANDOM, "second": HIGH_LOSS, "share": 0.5},
    "warmup": {"rounds": 1, "first": RANDOM, "then": HIGH_LOSS},
    "within": {"pool": {"method": "random", "clients_per_round": 8}, "inner": HIGH_LOSS},
}
COMBINATORS = {"limit-gap", "mix", "warmup", "within"}

LIES: dict[str, Callable[[Floats], Floats]] = {
    "huge": lambda true: np.full_like(true, 1e300),
    "infinite": lambda true: np.full_like(true, np.inf),
    "minus infinite": lambda true: np.full_like(true, -np.inf),
    "nan": lambda true: np.full_like(true, np.nan),
    "negative": lambda true: -np.abs(true) - 1,
    "one of several": lambda true: np.concatenate([true[:-1], [1e300]]),
    "shape": lambda true: np.append(true, 1.0),
    # As much as can be said without being refused, of counts and of other numbers.
    "believable": lambda true: np.full_like(true, 1e17),
    "believable counts": lambda true: np.full_like(true, LARGEST_COUNT),
    "nothing": lambda true: 0 * true,
    # Not zero, but zero in single precision.
    "almost nothing": lambda true: np.full_like(true, 1e-300),
}
#: Lies that no honest client could tell, whatever the signal.
IMPOSSIBLE = ["huge", "infinite", "minus infinite", "nan", "one of several", "shape"]
#: Methods that tell the liar to train in more than three of four rounds; a fair share would be one of three.
#: Cluster and DivFL have a place for whoever differs from all others, Pisces for whoever it has not heard of;
#: Fed-CBS and the oracle want equally many labels of each class, FedDiverse's programme whoever has no bias.
GAMED = {lie: {"cluster", "divfl", "pisces"} for lie in IMPOSSIBLE} | {
    "believable": {"cluster", "divfl", "high-loss", "oort", "pisces", "warmup"},
    "believable counts": {
        *("divfl", "fedcbs", "feddiverse-qp", "high-loss", "oort", "oracle", "pisces", "warmup"),
    },
    "nothing": {"cluster", "divfl", "feddiverse-qp"},
    "almost nothing": {"cluster", "divfl", "feddiverse-qp"},
}


class WithALiar(WrappedEngine):
    """One client answers every question and every training with something else than it measured."""

    def __init__(self, inner: Engine, lie: Callable[[Floats], Floats]) -> None:
        super().__init__(inner)
        self._lie = lie

    def ask(self, order: AskOrder) -> tuple[Replies, list[Failed]]:
        replies, failures = self.inner.ask(order)
        values = {
            client: {name: np.atleast_1d(rows[row]) for name, rows in replies.values.items()}
            for row, client in enumerate(replies.clients.tolist())
        }
        if LIAR in values:
            values[LIAR] = {name: self._lie(true) for name, true in values[LIAR].items()}
        replies, misshapen = collect_replies(values, order.signals, self.population)
        return replies, failures + misshapen

    def collect(self) -> Iterator[Updates | Failed]:
        for part in self.inner.collect():
            mine = part.clients == LIAR
            if mine.any():
                row = part.rows(mine)
                yield replace(row, reports={name: self._lie(true[0])[None] for name, true in row.reports.items()})
            if not mine.all():
                yield part.rows(~mine)


def section(method: str) -> dict[str, Any]:
    alone = method in COMBINATORS
    return {"method": method} | ({} if alone else {"clients_per_round": PER_ROUND}) | OPTIONS.get(method, {})


def played(method: str, lie: str | None, limits: ClientLimits | None = None) -> Result:
    selector = build_selector(section(method), CLIENTS, Synchronous())
    engine: Engine = TrialEngine(CLIENTS, classes=4, attributes=2, seed=3)
    if lie is not None:
        engine = WithALiar(engine, LIES[lie])
    return Server(selector, FedAvg(), engine, seed=3, limits=limits).run(ROUNDS)


def times_chosen(result: Result, client: int = LIAR) -> int:
    """In how many rounds the client was told to train."""
    return sum(
        any(client in (*training.clients, *training.rejected, *training.failed) for training in record.trainings)
        for record in result.records
    )


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("method", selectors.names())
def test_every_method_goes_on_with_a_liar(
    method: str, lie: str, record_property: Any, caplog: pytest.LogCaptureFixture
) -> None:
    result = played(method, lie)
    assert "is random selection here" not in caplog.text, "the method has to choose for itself"
    assert len(result.records) == ROUNDS
    assert np.isfinite(result.parameters).all()
    assert all(training.clients for record in result.records for training in record.trainings)
    record_property("rounds in which the liar was chosen", times_chosen(result))
    if lie in GAMED:
        assert (times_chosen(result) > 0.75 * ROUNDS) == (method in GAMED[lie])
    told = [report for record in result.records for report in record.reports if LIAR in report.clients]
    if lie in IMPOSSIBLE:
        # Whoever is not believed counts as not having answered: nothing of it got in.
        assert not told
        assert all(np.isnan(result.history.last(name)[LIAR]) for name in signals)
    else:
        assert all(np.isfinite(rows).all() for report in told for rows in report.values.values())


@pytest.mark.parametrize("lie", IMPOSSIBLE)
def test_who_is_not_believed_is_never_chosen_for_its_high_loss(lie: str) -> None:
    result = played("high-loss", lie)
    assert times_chosen(result) == 0
    assert result.history.failures[LIAR] == ROUNDS
    for record in result.records:
        assert record.asks == [(["loss"], CLIENTS, CLIENTS - 1)]
    if lie != "shape":  # the engine has refused that already
        assert all(any("client 5 was not believed" in event for event in r.events) for r in result.records)


def test_a_lie_that_can_be_believed_is_chosen_in_every_round_unless_it_is_bounded() -> None:
    fair = times_chosen(played("high-loss", None))
    assert times_chosen(played("high-loss", "believable")) == ROUNDS > fair
    # Bounded, the liar shares the first place with others, and ties are drawn by lot.
    limits = ClientLimits(signal_over_median=1.0)
    assert times_chosen(played("high-loss", "believable", limits)) < ROUNDS
    quantile = played("high-loss", "believable", ClientLimits(signal_quantile=0.5))
    assert times_chosen(quantile) < ROUNDS


def test_a_report_that_cannot_be_believed_costs_its_update() -> None:
    result = played("oort", "infinite")
    refusals = {
        why
        for record in result.records
        for t in record.trainings
        for client, why in t.rejected.items()
        if client == LIAR
    }
    assert refusals
    assert all("is inf, expected 0 to 1e+18" in why for why in refusals)
    assert result.history.trainings[LIAR] == 0


def test_every_signal_refuses_what_is_no_number() -> None:
    population = TrialEngine(CLIENTS, classes=4, attributes=2).population
    for name in signals:
        allowed = signals.build(name, {}).allowed(population)
        assert -np.inf < allowed.low < allowed.high < np.inf, name
        for value in (np.inf, -np.inf, 1e300, -1e300):
            assert allowed.objections(np.array([[value]])), name
        # Squares stay within float32, in which some methods compute and records are kept.
        assert np.isfinite(np.float32(allowed.high) ** 2), name


def test_honest_measurements_are_within_the_range_that_their_signal_declares(tiny: Any) -> None:
    """All signals of all methods, on real clients: nobody honest is refused."""
    for method in ("oort", "astrafl", "probe-fairness", "feddiverse", "hcsfed", "fedcs", "clustered-similarity"):
        extra = {"devices": {"model": "lognormal"}} if method == "fedcs" else {}
        small = {"biased_steps": 4, "attribute_steps": 2} if method == "feddiverse" else {}
        made = tiny(
            rounds=2, selection=section(method) | ({"ratio": 0.01} if method == "hcsfed" else small), **extra
        )
        result = muster.run(made, workers=0)
        assert not result.rejected, method
        assert not any("not believed" in event for record in result.records for event in record.events), method


@pytest.mark.parametrize("kind", ["inline", "vectorised"])
@pytest.mark.parametrize("method", ["high-loss", "oort", "fedcbs", "hcsfed"])
def test_real_clients_that_lie(tiny: Any, method: str, kind: str) -> None:
    """The two that once took the server down (HCSFed, Fed-CBS) among them."""
    options = section(method) | ({"ratio": 0.01} if method == "hcsfed" else {})
    lying = LyingSignals(clients=(LIAR,), lie="huge")
    result = muster.run(tiny(selection=options, filters=[lying], engine={"kind": kind}), workers=0)
    assert len(result.records) == 3
    assert np.isfinite(result.parameters).all()
    assert result.history.trainings[LIAR] == 0 or method == "fedcbs"


def test_lies_are_the_same_with_any_number_of_workers(tiny: Any) -> None:
    made = tiny(selection=HIGH_LOSS, filters=[{"method": "lying-signals", "share": 0.2, "factor": 3.0}])
    one, two = muster.run(made, workers=0), muster.run(made, workers=2)
    assert one.selections == two.selections
    assert np.array_equal(one.parameters, two.parameters)


def test_what_is_missing_is_missing_throughout() -> None:
    allowed = Range(0.0, 1.0, may_be_missing=True)
    rows = np.array([[np.nan, np.nan], [np.nan, 0.5], [0.1, 0.2]])
    assert list(allowed.objections(rows)) == [1]


@pytest.mark.parametrize("values", [[3.0, 1.0, 2.0, 9.0, 4.0], [0.0, 0.0], [7.0], []])
def test_bounds_change_only_what_is_beyond_them(values: list[float]) -> None:
    rows = np.array(values)
    for quantile, over in ((0.75, None), (None, 2.0), (0.75, 2.0), (None, None)):
        result = bounded(rows, quantile, over)
        assert (result <= rows).all()
        limit = np.inf
        if quantile is not None and len(rows):
            limit = np.sort(rows)[int(quantile * (len(rows) - 1))]
        if over is not None and len(rows):
            limit = min(limit, over * np.median(np.minimum(rows, limit)))
        np.testing.assert_array_equal(result, np.minimum(rows, limit))


def below_zero(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Cross-entropy with another zero, as the logarithm of a density may have."""
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="none") - 5.0


@pytest.mark.parametrize(
    "selection",
    [
        {"method": "high-loss", "clients_per_round": 4},
        {"method": "power-of-choice", "clients_per_round": 4, "variant": "cpow-d"},
        {"method": "terraform", "clients_per_round": 8, "min_clients": 2, "signal": "loss"},
    ],
)
def test_a_loss_of_ones_own_may_be_negative(tiny, selection: dict[str, Any]) -> None:
    """A constant changes neither gradients nor who has more: the same clients train, and all are believed."""
    usual, shifted = (
        muster.run(tiny(selection=selection, objective=objective, engine={"kind": "inline"}), workers=0)
        for objective in ({}, {"loss": below_zero})
    )
    assert shifted.selections == usual.selections
    assert not shifted.rejected
    assert not any("not believed" in event for record in shifted.records for event in record.events)
