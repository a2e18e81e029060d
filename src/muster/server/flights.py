"""Clients under way, that is, told to train and not yet answered, as columns.

Where a training waits for all clients, none is left here when it is done. With asynchrony, clients stay for many
rounds, and their answers belong to the models that they started from: those are kept for as long as they are
needed, and no longer.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from muster.core.arrays import Bools, Floats, Ints, State
from muster.engine.base import TrainOrder
from muster.engine.task import Place
from muster.privacy.described import described, rebuilt
from muster.selection.base import Train
from muster.server.ledger import Load
from muster.world.clock import Trips

#: What a request may say about each of its clients.
PER_CLIENT = ("multiplicity", "weights", "lr_factors", "pull_factors")


@dataclass(frozen=True)
class Dispatch:
    """One training request as it was sent: to whom, with which model."""

    request: Train
    order: TrainOrder
    #: How many aggregations came before the model.
    version: int
    #: What it costs to send and to answer.
    load: Load

    def of(self, clients: Ints) -> Dispatch:
        """The part of it that concerns some of its clients, in this order."""
        if np.array_equal(clients, self.order.clients):
            return self
        part = part_of(self.request, clients)
        order = replace(self.order, clients=clients, lr_factors=part.lr_factors, pull_factors=part.pull_factors)
        return replace(self, request=replace(part, keep=None), order=order)


def part_of(request: Train, clients: Ints) -> Train:
    """The same training of some of its clients, in this order."""
    at = positions(request.clients, clients)
    rows: dict[str, Any] = {
        name: None if getattr(request, name) is None else getattr(request, name)[at] for name in PER_CLIENT
    }
    return replace(request, clients=clients, **rows)


def positions(among: Ints, clients: Ints) -> Ints:
    """The position of each of `clients` in `among`, which names it once."""
    ranks = np.argsort(among)
    return ranks[np.searchsorted(among, clients, sorter=ranks)]


@dataclass(frozen=True)
class Flights:
    """The clients under way, rows aligned."""

    clients: Ints
    #: Which request each of them is working on.
    dispatch: Ints
    #: When it was told; and when it answers, or leaves.
    started: Floats
    ends: Floats
    answers: Bools
    #: Seconds that it needs from the request to its answer.
    needed: Floats
    #: The order among those that end at the same moment.
    ties: Floats

    @classmethod
    def none(cls) -> Flights:
        empty: Ints = np.empty(0, dtype=np.int64)
        never: Floats = np.empty(0)
        return cls(empty, empty, never, never, np.empty(0, dtype=np.bool_), never, never)

    @classmethod
    def begun(cls, clients: Ints, dispatch: int, now: float, trips: Trips, ties: Floats) -> Flights:
        count = len(clients)
        numbers, moments = np.full(count, dispatch), np.full(count, now)
        return cls(clients, numbers, moments, trips.ends, trips.answers, trips.needed, ties)

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def requests(self) -> list[int]:
        """The numbers of the requests that some client is working on, ascending."""
        if len(self) and (self.dispatch == self.dispatch[0]).all():  # so it is unless trainings overlap
            return [int(self.dispatch[0])]
        return list(np.unique(self.dispatch).tolist())

    def rows(self, which: Ints | Bools) -> Flights:
        return Flights(*(getattr(self, name)[which] for name in _COLUMNS))

    def and_also(self, others: Flights) -> Flights:
        if not len(self):
            return others
        pairs = ((getattr(self, name), getattr(others, name)) for name in _COLUMNS)
        return Flights(*(np.concatenate(pair) for pair in pairs))


_COLUMNS = tuple(column.name for column in fields(Flights))


class Airspace:
    """All flights, and the requests that they belong to."""

    def __init__(self) -> None:
        self.flights = Flights.none()
        self._dispatches: dict[int, Dispatch] = {}
        self._next = 0
        #: How many clients started last, when any did.
        self.cohort = 0

    def __len__(self) -> int:
        return len(self.flights)

    def take_off(self, dispatch: Dispatch, now: float, trips: Trips, ties: Floats) -> int:
        """Clients start; returns the number of their request."""
        number, self._next = self._next, self._next + 1
        self._dispatches[number] = dispatch
        self.cohort = len(dispatch.order.clients) or self.cohort
        begun = Flights.begun(dispatch.order.clients, number, now, trips, ties)
        self.flights = self.flights.and_also(begun)
        return number

    def staleness(self, flights: Flights, version: int) -> Ints:
        """How many aggregations each of these flights has missed by this version of the model."""
        numbers = flights.requests
        behind = np.array([version - self._dispatches[number].version for number in numbers], dtype=np.int64)
        return behind[np.searchsorted(numbers, flights.dispatch)]

    def dispatch(self, number: int) -> Dispatch:
        return self._dispatches[number]

    def parts(self, flights: Flights) -> list[Dispatch]:
        """The requests that these flights belong to, each with their clients alone."""
        return [
            self._dispatches[number].of(np.sort(flights.clients[flights.dispatch == number]))
            for number in flights.requests
        ]

    def land(self, ended: Ints) -> Flights:
        """Take flights out, by position. Their requests stay until `forget`."""
        landed = self.flights.rows(ended)
        if len(ended) == len(self.flights):
            self.flights = Flights.none()
            return landed
        still = np.ones(len(self.flights), dtype=np.bool_)
        still[ended] = False
        self.flights = self.flights.rows(still)
        return landed

    def forget(self) -> None:
        """Free the requests, and with them the models, that no client is working on any more."""
        needed = set(self.flights.dispatch.tolist())
        self._dispatches = {number: d for number, d in self._dispatches.items() if number in needed}

    @property
    def versions(self) -> int:
        """How many models are kept for clients under way."""
        return len({dispatch.version for dispatch in self._dispatches.values()})

    # --- checkpoints -------------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Each version of the model is stored once, however many requests share it."""
        models = {str(d.version): d.order.parameters for d in self._dispatches.values()}
        return {
            "next": self._next,
            "cohort": self.cohort,
            "flights": {f.name: getattr(self.flights, f.name) for f in fields(Flights)},
            "models": models,
            "dispatches": {str(number): _described(d) for number, d in self._dispatches.items()},
        }

    def load_state_dict(self, values: State, classes: int) -> None:
        self._next, self.cohort = values["next"], values["cohort"]
        self.flights = Flights(*(values["flights"][f.name] for f in fields(Flights)))
        self._dispatches = {
            int(number): _rebuilt(entry, values["models"], classes)
            for number, entry in values["dispatches"].items()
        }


def _described(dispatch: Dispatch) -> State:
    order, request = dispatch.order, dispatch.request
    return {
        "version": dispatch.version,
        "load": [dispatch.load.down, dispatch.load.up],
        "clients": order.clients,
        "place": [order.place.round, order.place.iteration, order.place.exchange, order.place.rounds],
        "lr": order.lr,
        "report": [described(signal) for signal in order.report],
        "requested": [signal.name for signal in request.report],
        "broadcast": order.broadcast,
        "rows": {name: getattr(request, name) for name in PER_CLIENT},
    }


def _rebuilt(entry: State, models: State, classes: int) -> Dispatch:
    rows = entry["rows"]
    report = tuple(rebuilt(signal, classes) for signal in entry["report"])
    own = tuple(signal for signal in report if signal.name in entry["requested"])
    order = TrainOrder(
        clients=entry["clients"],
        parameters=models[str(entry["version"])],
        place=Place(*entry["place"]),
        lr=entry["lr"],
        report=report,
        broadcast=entry["broadcast"],
        lr_factors=rows["lr_factors"],
        pull_factors=rows["pull_factors"],
    )
    return Dispatch(Train(entry["clients"], own, **rows), order, entry["version"], Load(*entry["load"]))
