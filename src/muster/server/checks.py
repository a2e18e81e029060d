"""Checks before round 1 and before every exchange: mistakes are reported, not computed with.

What a selector asks for is known for certain only when it asks. So every request is checked when it is made, and
what a selector declares (`needs`, `gives_…`) lets the same checks run before round 1.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np
import numpy.typing as npt

from muster.aggregation.base import Aggregator, aggregators
from muster.core.arrays import Bools, Floats, Ints, Vector, among
from muster.core.errors import ConfigError
from muster.engine.base import Engine
from muster.selection.base import Ask, Selector, Train, View
from muster.signals.base import Signal
from muster.training.base import LocalAlgorithm, algorithms
from muster.training.context import PROBE
from muster.training.objectives import Objective
from muster.updates.filters import Filter


def check_classes(
    selector: Selector,
    aggregator: Aggregator,
    algorithm: LocalAlgorithm,
    engine: Engine,
    filters: Sequence[Filter] = (),
) -> None:
    """Refuse methods that look at the classes of samples where these have none."""
    if engine.population.class_labels:
        return
    for part in (selector, aggregator, algorithm, *engine.filters, *filters):
        if part.needs_classes():
            raise no_classes(type(part).__name__, engine.objective)
    for part, wanted in ((selector, selector.needs()), (aggregator, aggregator.reports())):
        for signal in wanted:
            _check_classes_of(signal, type(part).__name__, engine)


def _check_classes_of(signal: Signal, wanted_by: str, engine: Engine) -> None:
    if signal.needs_classes and not engine.population.class_labels:
        raise no_classes(f"{wanted_by} needs the signal '{signal.name}', which", engine.objective)


def check_fit(selector: Selector, aggregator: Aggregator, algorithm: LocalAlgorithm) -> None:
    """Refuse combinations that would silently compute something else."""
    pair = f"{type(selector).__name__} with {type(aggregator).__name__}"
    if selector.gives_multiplicity() and not aggregator.honours_multiplicity:
        raise ConfigError(
            f"{pair}: the selection samples with replacement, but the aggregation cannot count a client twice",
            fix="sample without replacement, or aggregate with a weighted mean such as fedavg",
        )
    if selector.gives_weights() and not aggregator.honours_weights:
        raise ConfigError(
            f"{pair}: the selection gives aggregation weights, but the aggregation has its own",
            fix="switch the selection's weights off, or aggregate with fedavg",
        )
    needed, given = aggregator.requires_algorithm, algorithms.name_of(algorithm)
    if needed is not None and given not in needed:
        raise ConfigError(
            f"{type(aggregator).__name__} needs clients that run {' or '.join(needed)}, not {given}",
            fix=f"set method = '{needed[0]}' in the section [algorithm]",
        )
    if selector.gives_fedavg():
        _check_plain_mean(type(selector).__name__, algorithm)
    wanted, used = algorithm.requires_aggregation, aggregators.name_of(aggregator)
    if wanted is not None and used not in wanted:
        raise ConfigError(
            f"the local algorithm {given} needs the aggregation {' or '.join(wanted)}, not {used}",
            fix=f"set method = '{wanted[0]}' in the section [aggregation]",
        )


def _check_plain_mean(selector: str, algorithm: LocalAlgorithm) -> None:
    if algorithm.requires_aggregation is not None:
        raise ConfigError(
            f"{selector} trains some rounds with FedAvg, which lacks what {algorithms.name_of(algorithm)} needs",
            fix="use method = 'plain' or 'fedprox' in the section [algorithm], or do without those rounds "
            "(pretraining_rounds = 0)",
        )


def check_signal(signal: Signal, wanted_by: str, engine: Engine) -> None:
    """Refuse a signal that these clients cannot measure, or that means something different in this run."""
    _check_classes_of(signal, wanted_by, engine)
    if reason := signal.unavailable(engine.population):
        raise ConfigError(f"{wanted_by} needs the signal '{signal.name}', but {reason}")
    engine.check_signal(signal)
    algorithm = engine.algorithm
    if PROBE in signal.client_state and algorithm.requires_aggregation is not None:
        raise ConfigError(
            f"{wanted_by} continues training from probed models, whose steps lack the corrections of "
            f"{algorithms.name_of(algorithm)}",
            fix="use method = 'plain', 'fedprox' or 'moon' in the section [algorithm], or another selection",
        )
    if getattr(signal, "optimizer_state", "fresh") != "kept":
        return
    if not engine.training.momentum:
        raise ConfigError(
            "optimizer_state = 'kept' continues with the momentum of a probe, but local training has none",
            expected="training.optimizer = 'sgd' with a momentum",
            fix="set training.momentum, or leave optimizer_state = 'fresh'",
        )
    if algorithm.continues_optimiser:
        raise ConfigError(
            "optimizer_state = 'kept' continues with the momentum of a probe, but the local algorithm "
            f"{algorithms.name_of(algorithm)} continues with that of the client's last training",
            fix="use one of the two",
        )


def no_classes(what: str, objective: Objective) -> ConfigError:
    """The error where something looks at classes, and samples have none."""
    return ConfigError(
        f"{what} looks at the classes of samples, but the objective here is {objective.task}",
        expected="data whose samples have one class each",
        fix="choose another method: `muster list methods` shows them",
    )


def check_plan(plan: object, chooser: Selector) -> None:
    if type(chooser).round is Selector.round:
        raise ConfigError(
            f"{type(chooser).__name__} does not say whom to train",
            expected="a method `round(self, fed)` that yields Ask(...) and Train(...)",
        )
    if not isinstance(plan, Generator):
        raise ConfigError(
            f"{type(chooser).__name__}.round returned a {type(plan).__name__}",
            expected="a generator: a method that yields Ask(...) and Train(...)",
        )


def checked_mask(mask: object, clients: Ints, chooser: Selector) -> Bools:
    """What a selector's `keep` said, if it can be understood."""
    kept = np.asarray(mask)
    if kept.shape != clients.shape or kept.dtype != np.bool_:
        raise ConfigError(
            f"{type(chooser).__name__}: `keep` gave {kept.dtype} of shape {kept.shape}",
            expected=f"True or False for each of the {len(clients)} clients that answered",
        )
    return kept


def check_request(
    request: Ask | Train, view: View, chooser: Selector, aggregator: Aggregator, engine: Engine
) -> None:
    """Refuse requests that no engine could carry out; they come from a mistake in a selector."""
    selector, clients = type(chooser).__name__, view.clients
    if not isinstance(request, Ask | Train):
        raise ConfigError(f"{selector} yielded a {type(request).__name__}", expected="Ask(...) or Train(...)")
    ids = np.asarray(request.clients)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise ConfigError(
            f"{selector} asked for clients {ids!r}", expected="a one-dimensional array of integer ids"
        )
    if len(ids) and (ids.min() < 0 or ids.max() >= clients):
        wrong = ids[(ids < 0) | (ids >= clients)][0]
        raise ConfigError(f"{selector} asked for client {wrong}", expected=f"ids from 0 to {clients - 1}")
    absent = ids[~among(ids, view.available)] if len(view.available) < clients else ids[:0]
    if len(absent):
        raise ConfigError(
            f"{selector} asked for client {absent[0]}, which cannot be reached in round {view.round + 1}",
            expected="ids among View.available",
        )
    # Most selectors give ascending ids, where a look at the neighbours is enough.
    if not (ids[1:] > ids[:-1]).all() and len(np.unique(ids)) != len(ids):
        raise ConfigError(f"{selector} asked for the same client twice", fix="use Train(..., multiplicity=...)")
    _check_signals(request, selector, engine)
    if isinstance(request, Ask) and request.parameters is not None:
        _check_model(request.parameters, view, selector)
    if isinstance(request, Train):
        _check_counts(request, selector, aggregator)
        _check_factors(request, selector, engine.algorithm)
        if request.fedavg:
            _check_plain_mean(selector, engine.algorithm)


def _check_signals(request: Ask | Train, selector: str, engine: Engine) -> None:
    wanted = signals_of(request)
    # A signal measured at the wrong time has the same name and a different meaning.
    if isinstance(request, Ask):
        wrong = [signal.name for signal in wanted if not signal.askable]
        problem, fix = "cannot be asked for", "name it in the report of a Train request"
    else:
        wrong = [signal.name for signal in wanted if not signal.reportable]
        problem, fix = "cannot be reported by a training", "ask for it before the training"
    if wrong:
        raise ConfigError(f"{selector}: the signal '{wrong[0]}' {problem}", fix=fix)
    for signal in wanted:
        check_signal(signal, selector, engine)
    if engine.sums_only and (obstacle := obstacle_in_request(request)):
        raise not_on_sums(selector, obstacle)


def signals_of(request: Ask | Train) -> tuple[Signal, ...]:
    """What clients are to measure."""
    return tuple(request.signals if isinstance(request, Ask) else request.report)


def obstacle_in_request(request: Ask | Train) -> str:
    """What a request takes from individual updates, which secure aggregation hides; empty: nothing."""
    for signal in signals_of(request):
        if signal.in_update or signal.reveals_update:
            return f"it looks at every client's '{signal.name}', which reveals its update"
    if isinstance(request, Train) and request.keep is not None:
        return "it decides after training which updates are used"
    return ""


def not_on_sums(name: str, obstacle: str) -> ConfigError:
    """The error where something needs individual updates and the server sees only their sum."""
    return ConfigError(
        f"{name} does not work with secure aggregation: {obstacle}",
        expected="methods that need no more than the sum of the updates",
        fix="choose among those in docs/flower-privacy.md, or set flower.secure_aggregation = false",
    )


def _check_model(parameters: Vector, view: View, selector: str) -> None:
    """A selector may ask about a model other than the global one; it must be of the same kind."""
    if np.shape(parameters) != (view.spec.size,) or not np.isfinite(parameters).all():
        raise ConfigError(
            f"{selector} asked about a model of shape {np.shape(parameters)}",
            expected=f"a flat vector of {view.spec.size} finite numbers",
        )


def _check_counts(request: Train, selector: str, aggregator: Aggregator) -> None:
    honoured = {"multiplicity": aggregator.honours_multiplicity, "weights": aggregator.honours_weights}
    for name, honours in honoured.items():
        values = getattr(request, name)
        if values is None:
            continue
        _checked_rows(values, name, request, selector)
        if not (np.isfinite(values).all() and (np.asarray(values) >= 0).all()):
            raise ConfigError(f"{selector} gave the {name} {values}", expected="finite numbers, none negative")
        if len(request.clients) and not np.any(values):
            raise ConfigError(f"{selector} gave {name} that are all zero", expected="at least one above zero")
        if not honours and len(np.unique(values)) > 1:
            raise ConfigError(
                f"{selector} gave {name} that {type(aggregator).__name__} would ignore",
                fix="leave them out, or aggregate with fedavg",
            )


def _check_factors(request: Train, selector: str, algorithm: LocalAlgorithm) -> None:
    if request.lr_factors is not None:
        factors = _checked_rows(request.lr_factors, "lr_factors", request, selector)
        if not (np.isfinite(factors).all() and (factors > 0).all()):
            raise ConfigError(f"{selector} gave the lr_factors {factors}", expected="finite numbers above zero")
    if request.pull_factors is not None:
        factors = _checked_rows(request.pull_factors, "pull_factors", request, selector)
        if not (np.isfinite(factors).all() and (factors >= 0).all()):
            raise ConfigError(
                f"{selector} gave the pull_factors {factors}", expected="finite numbers, none negative"
            )
        if not algorithm.honours_pull_factors:
            raise ConfigError(
                f"{selector} gave pull_factors, but the local algorithm {type(algorithm).__name__} "
                "has no proximal strength that can be set for each client",
                fix="set method = 'fedprox' in the section [algorithm], or leave them out",
            )


def _checked_rows(values: npt.ArrayLike, name: str, request: Train, selector: str) -> Floats:
    rows = np.asarray(values, dtype=np.float64)
    if rows.shape != request.clients.shape:
        given = f"{len(rows)} {name}" if rows.ndim == 1 else f"{name} of shape {rows.shape}"
        raise ConfigError(f"{selector} gave {given} for {len(request.clients)} clients")
    return rows
