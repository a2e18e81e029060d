"""Checks before round 1 and before every exchange: mistakes are told as such, not computed with."""

from __future__ import annotations

import numpy as np

from muster.aggregation.base import Aggregator, aggregators
from muster.errors import ConfigError
from muster.selection.base import Ask, Selector, Train
from muster.training.base import LocalAlgorithm, algorithms


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
            f"{pair}: the selection brings aggregation weights, but the aggregation has its own",
            fix="switch the selection's weights off, or aggregate with fedavg",
        )
    needed, given = aggregator.requires_algorithm, algorithms.name_of(algorithm)
    if needed is not None and given not in needed:
        raise ConfigError(
            f"{type(aggregator).__name__} needs clients that run {' or '.join(needed)}, not {given}",
            fix=f"set method = '{needed[0]}' in the section [algorithm]",
        )
    wanted, used = algorithm.requires_aggregation, aggregators.name_of(aggregator)
    if wanted is not None and used not in wanted:
        raise ConfigError(
            f"the local algorithm {given} needs the aggregation {' or '.join(wanted)}, not {used}",
            fix=f"set method = '{wanted[0]}' in the section [aggregation]",
        )


def check_request(request: Ask | Train, clients: int, selector: str) -> None:
    """Refuse requests that no engine could carry out; they come from a mistake in a selector."""
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
    if len(np.unique(ids)) != len(ids):
        raise ConfigError(f"{selector} asked for the same client twice", fix="use Train(..., multiplicity=...)")
    if isinstance(request, Train):
        for name, values in (("multiplicity", request.multiplicity), ("weights", request.weights)):
            if values is not None and len(values) != len(ids):
                raise ConfigError(f"{selector} gave {len(values)} {name} for {len(ids)} clients")
