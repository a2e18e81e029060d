"""Which methods fit a pacing: what would silently mean something different with late answers is refused."""

from __future__ import annotations

from muster.aggregation.base import Aggregator
from muster.core.errors import ConfigError
from muster.engine.base import Engine
from muster.engine.trial import TrialEngine
from muster.pacing import Pacing, Synchronous
from muster.pacing.base import pacings
from muster.selection.base import Ask, Selector, Train
from muster.training.base import algorithms


def check_pacing(
    pacing: Pacing, selector: Selector, aggregator: Aggregator, engine: Engine, time_passes: bool
) -> None:
    """Refuse, before round 1, a pacing that makes no sense without time or that these methods cannot work with."""
    if isinstance(pacing, Synchronous):
        return
    name = pacings.name_of(pacing)
    if not time_passes:
        raise ConfigError(
            f"the pacing '{name}' depends on how long clients take, and here they take no time",
            fix="add a section [devices], for example method = 'phones'",
        )
    if engine.sums_only:
        raise ConfigError(
            f"the pacing '{name}' does not work with secure aggregation: "
            "the sum covers the whole cohort or no client",
            fix="set flower.secure_aggregation = false, or leave out the section [pacing]",
        )
    if not pacing.late_count:
        return
    algorithm = algorithms.name_of(engine.algorithm)
    if engine.algorithm.requires_aggregation is not None:
        raise ConfigError(
            f"the pacing '{name}' uses late answers, but the server's and the clients' halves of {algorithm} must "
            "move together",
            fix="use method = 'plain' or 'fedprox' in the section [algorithm], or a pacing without late answers",
        )
    if aggregator.stale is None:
        raise ConfigError(
            f"the pacing '{name}' uses late answers, but {type(aggregator).__name__} cannot: "
            f"{aggregator.not_stale}",
            fix="aggregate with fedbuff, fedavg or simprox, or choose a pacing without late answers; in "
            "your own aggregator, declare `stale = 'movements'` if it only looks at movements",
        )
    if selector.gives_fedavg():
        raise _not_late(selector, pacing, "it trains some rounds with another aggregation")
    _try(selector, engine, pacing)


def _try(selector: Selector, engine: Engine, pacing: Pacing) -> None:
    """Run a copy of the selection on made-up clients, and see what it asks for.

    The trial averages: how many answers the run's own aggregation gets at once is up to the pacing.
    """
    from muster.server.trial import requests_in_trial  # the trial is a run, and runs are checked here

    trial = TrialEngine(engine.population.clients, training=engine.training, algorithm=engine.algorithm)
    round = -1
    for asked_in, request in requests_in_trial(selector, trial):
        if isinstance(request, Ask):
            check_ask_fits(request, selector, pacing)
        else:
            check_training_fits(request, selector, pacing, first=asked_in != round)
            round = asked_in


def check_ask_fits(request: Ask, selector: Selector, pacing: Pacing) -> None:
    """Refuse a question whose answer only counts for a training in the same round."""
    if pacing.late_count and any(signal.client_state for signal in request.signals):
        raise _not_late(selector, pacing, "its clients continue training from what they did when they were asked")


def check_training_fits(request: Train, selector: Selector, pacing: Pacing, *, first: bool) -> None:
    """Refuse a training whose meaning depends on the answers of exactly its own clients."""
    if not pacing.late_count:
        return
    if not first:
        raise _not_late(
            selector, pacing, "it trains more than once in a round, and looks at each training's answers"
        )
    if request.keep is not None:
        raise _not_late(selector, pacing, "it decides after a training which of its updates are used")
    if request.fedavg:
        raise _not_late(selector, pacing, "it trains some rounds with another aggregation")
    if not pacing.has_room(0, len(request.clients)):
        raise ConfigError(
            f"{type(selector).__name__} chose {len(request.clients)} clients at once: more than the pacing "
            f"'{pacings.name_of(pacing)}' lets train at the same time",
            fix="raise pacing.in_flight, or lower selection.clients_per_round",
        )


def _not_late(selector: Selector, pacing: Pacing, why: str) -> ConfigError:
    return ConfigError(
        f"{type(selector).__name__} does not work with the pacing '{pacings.name_of(pacing)}', "
        f"where answers may come in a later round: {why}",
        fix="choose another selection, or the pacing synchronous, over-select or deadline (late = 'discard')",
    )
