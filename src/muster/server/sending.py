"""Telling clients to train: which model they get, what they report, what it costs, when they start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from muster.aggregation.base import Aggregator
from muster.aggregation.fedavg import FedAvg
from muster.core.arrays import Floats, Ints
from muster.engine.base import TrainOrder
from muster.selection.base import Train
from muster.server.flights import Dispatch
from muster.signals.base import Signal
from muster.world import draws
from muster.world.clock import Errand

if TYPE_CHECKING:
    from muster.server.conversation import Conversation


def aggregator_for(request: object, own: Aggregator) -> Aggregator:
    """The run's own, unless a training is to be plain FedAvg: then a fresh one, which has no state."""
    most = own.max_weight
    return FedAvg(max_weight=most) if isinstance(request, Train) and request.fedavg else own


def dispatch(talk: Conversation, request: Train) -> int:
    """Tell clients to train on the model as it is now; the number of the request."""
    server, books, clients = talk.server, talk.books, request.clients
    aggregator = aggregator_for(request, server.aggregator)
    order = TrainOrder(
        clients=clients,
        parameters=server.parameters,
        place=talk.place(),
        lr=talk.lr,
        report=talk.protected(_distinct((*request.report, *aggregator.reports()))),
        broadcast=aggregator.broadcast(talk.population.spec),
        lr_factors=request.lr_factors,
        pull_factors=request.pull_factors,
    )
    engine = server.engine
    vectors = 1 if order.broadcast is None else 2, 1 + len(engine.algorithm.extra)
    load = books.update(order.report, *vectors, engine.filters)
    samples: Ints | int = 0
    if server.clock.devices is not None:  # else nothing takes time
        samples = np.maximum(books.planned(clients, engine.algorithm) - talk.probed(clients), 0)
    exchange = order.place.round, order.place.exchange
    trips = server.clock.sending(Errand(clients, samples, load.down, load.up, exchange))
    talk.probes_used(clients)
    books.dispatched(clients, load)
    sent = Dispatch(request, order, server.version, load)
    number = server.airspace.take_off(sent, server.clock.now, trips, _ties(talk, order))
    server.clock.sent(sent, engine)
    return number


def _ties(talk: Conversation, order: TrainOrder) -> Floats:
    """Which of two answers that arrive together is first: a matter of chance, not of ids."""
    server, place = talk.server, order.place
    if not server.clock.passes:  # all clients answer at once, and no order is kept
        return np.zeros(len(order.clients))
    words = draws.words(server.seed, "arrival", place.round, place.exchange, clients=order.clients)
    return draws.uniform(words[:, 0])


def _distinct(signals: tuple[Signal, ...]) -> tuple[Signal, ...]:
    return tuple({signal.name: signal for signal in signals}.values())
