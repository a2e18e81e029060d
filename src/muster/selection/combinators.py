"""Selectors made of selectors: a pool inside a pool, one then another, in turn, or with a limit on waiting."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from muster.core.arrays import Bools, Floats, Ints, State
from muster.core.component import Population, grown, state
from muster.core.errors import ConfigError
from muster.selection.base import Ask, Plan, Request, Selector, Train, View, selectors
from muster.signals.base import Replies, Signal

#: A selector, or the table of a config file that describes it: `{method = "…", …}`.
Part: TypeAlias = Selector | Mapping[str, Any]


class Combinator(Selector):
    """What combinations have in common: their needs, checks and state are those of their parts."""

    @abstractmethod
    def parts(self) -> Sequence[Selector]:
        """The selectors that this one is made of."""

    def needs(self) -> tuple[Signal, ...]:
        return united(*(part.needs() for part in self.parts()))

    def gives_multiplicity(self) -> bool:
        return any(part.gives_multiplicity() for part in self.parts())

    def needs_classes(self) -> bool:
        return any(part.needs_classes() for part in self.parts())

    def depends_on_length(self) -> str:
        return next(filter(None, (part.depends_on_length() for part in self.parts())), "")

    def gives_weights(self) -> bool:
        return any(part.gives_weights() for part in self.parts())

    def gives_fedavg(self) -> bool:
        return any(part.gives_fedavg() for part in self.parts())

    def check(self, population: Population) -> None:
        for part in self.parts():
            part.check(population)
        united(*(part.needs() for part in self.parts()))

    def cautions(self, population: Population) -> list[str]:
        """Its own, and those of its parts."""
        return [text for part in self.parts() for text in part.cautions(population)]

    def state_dict(self) -> State:
        return super().state_dict() | {"parts": [part.state_dict() for part in self.parts()]}

    def load_state_dict(self, values: State) -> None:
        super().load_state_dict(values)
        for part, saved in zip(self.parts(), values["parts"], strict=True):
            part.load_state_dict(saved)


def united(*groups: tuple[Signal, ...]) -> tuple[Signal, ...]:
    """All signals once; ConfigError where two parts want the same signal with different options."""
    by_name: dict[str, Signal] = {}
    for signal in (signal for group in groups for signal in group):
        if by_name.setdefault(signal.name, signal) != signal:
            raise ConfigError(
                f"two parts of a combined selection want the signal '{signal.name}' with different options",
                expected=f"{by_name[signal.name]} in both, or {signal}",
            )
    return tuple(by_name.values())


def built(part: Part, key: str) -> Selector:
    """The selector that `part` is or describes."""
    if isinstance(part, Selector):
        return part
    options = dict(part)
    if "method" not in options:
        raise ConfigError(f"missing key 'selection.{key}.method'", fix=f"write {key} = {{method = '…', …}}")
    return selectors.build(str(options.pop("method")), options, f"selection.{key}")


def _next(plan: Plan, replies: Replies) -> Request | None:
    try:
        return plan.send(replies)
    except StopIteration:
        return None


@selectors.register("within")
@dataclass
class Within(Combinator):
    """One selector's choice is the candidate pool of another.

    Every training that `pool` asks for becomes a round of `inner` among those clients. `pool` gets the reports it
    wanted, from the clients that trained; weights, multiplicities and factors are those of `inner`.
    """

    pool: Part
    inner: Part

    def __post_init__(self) -> None:
        self.pool, self.inner = built(self.pool, "pool"), built(self.inner, "inner")

    def parts(self) -> tuple[Selector, Selector]:
        assert isinstance(self.pool, Selector)
        assert isinstance(self.inner, Selector)
        return self.pool, self.inner

    def cautions(self, population: Population) -> list[str]:
        proposed, kept = (part.get_params().get("clients_per_round") for part in self.parts())
        own = []
        if proposed is not None and kept is not None and kept >= proposed and not self.gives_multiplicity():
            own = [f"within: the inner selection takes all {proposed} clients that it is offered"]
        return own + super().cautions(population)

    def gives_multiplicity(self) -> bool:
        return self.parts()[1].gives_multiplicity()

    def gives_weights(self) -> bool:
        return self.parts()[1].gives_weights()

    def gives_fedavg(self) -> bool:
        return self.parts()[1].gives_fedavg()

    def round(self, fed: View) -> Plan:
        plan = self.parts()[0].round(fed)
        request = next(plan, None)
        while request is not None:
            replies = (yield request) if isinstance(request, Ask) else (yield from self._train(fed, request))
            request = _next(plan, replies)

    def _train(self, fed: View, candidates: Train) -> Generator[Request, Replies, Replies]:
        plan = self.parts()[1].round(replace(fed, available=np.sort(candidates.clients)))
        trainings: list[Replies] = []
        request = next(plan, None)
        while request is not None:
            if isinstance(request, Train):
                request = replace(request, report=united(request.report, candidates.report))
            replies = yield request
            if isinstance(request, Train):
                trainings.append(replies)
            request = _next(plan, replies)
        return latest(trainings, candidates.report)


def latest(trainings: Sequence[Replies], report: tuple[Signal, ...]) -> Replies:
    """The last report of every client over several trainings."""
    # Where no client has answered, replies are empty, but as wide as ever.
    answered = [replies for replies in reversed(trainings) if len(replies)] or list(trainings)
    if not answered:
        return Replies(np.zeros(0, dtype=np.int64), {signal.name: np.zeros(0) for signal in report})
    clients, first = np.unique(np.concatenate([replies.clients for replies in answered]), return_index=True)
    names = [signal.name for signal in report]
    return Replies(
        clients, {name: np.concatenate([replies[name] for replies in answered])[first] for name in names}
    )


@selectors.register("warmup")
@dataclass
class Warmup(Combinator):
    """One selector in the first rounds, another one afterwards."""

    rounds: int
    first: Part
    then: Part

    def __post_init__(self) -> None:
        self.first, self.then = built(self.first, "first"), built(self.then, "then")

    def parts(self) -> tuple[Selector, Selector]:
        assert isinstance(self.first, Selector)
        assert isinstance(self.then, Selector)
        return self.first, self.then

    def check(self, population: Population) -> None:
        super().check(population)
        if self.rounds < 0:
            raise ConfigError(f"warmup: rounds is {self.rounds}", expected="zero or more")

    def cautions(self, population: Population) -> list[str]:
        if 0 < self.rounds < population.rounds:
            return super().cautions(population)
        idle, busy = ("first", 1) if self.rounds == 0 else ("then", 0)
        return [
            f"warmup: '{idle}' never has a turn in {population.rounds} rounds",
            *self.parts()[busy].cautions(population),
        ]

    def round(self, fed: View) -> Plan:
        first, then = self.parts()
        yield from (first if fed.round < self.rounds else then).round(fed)


@selectors.register("mix")
@dataclass
class Mix(Combinator):
    """Two selectors in turn: a share of the rounds belongs to the first, spread evenly."""

    first: Part
    second: Part
    share: float = 0.5

    def __post_init__(self) -> None:
        self.first, self.second = built(self.first, "first"), built(self.second, "second")

    def parts(self) -> tuple[Selector, Selector]:
        assert isinstance(self.first, Selector)
        assert isinstance(self.second, Selector)
        return self.first, self.second

    def check(self, population: Population) -> None:
        super().check(population)
        if not 0 <= self.share <= 1:
            raise ConfigError(f"mix: share is {self.share}", expected="0 to 1")

    def cautions(self, population: Population) -> list[str]:
        turns = int(self.share * population.rounds + 1e-9)
        if 0 < turns < population.rounds:
            return super().cautions(population)
        idle, busy = ("first", 1) if turns == 0 else ("second", 0)
        return [
            f"mix: '{idle}' never has a turn in {population.rounds} rounds",
            *self.parts()[busy].cautions(population),
        ]

    def round(self, fed: View) -> Plan:
        first, second = self.parts()
        # At any time the first has had ⌊share · rounds⌋ rounds; the small number forgives rounding of the product.
        before, after = (int(self.share * rounds + 1e-9) for rounds in (fed.round, fed.round + 1))
        yield from (first if after > before else second).round(fed)


def due(waits: Ints, limit: int, count: int) -> Ints:
    """Positions of those that must go now so that none waits longer than `limit` rounds, at `count` per round.

    Those at their limit must. Others must when the queue would otherwise not fit into the rounds that are left:
    of the clients ordered by wait, the i-th can go in the ⌈i / count⌉-th round at the earliest. Of equal waits the
    first go first: callers shuffle.
    """
    order = np.argsort(-waits, kind="stable")
    slack = np.maximum(limit - waits[order], 0)
    now = np.max(np.arange(1, len(order) + 1) - count * slack, initial=0)
    return order[: min(now, count)]


@selectors.register("limit-gap")
@dataclass
class LimitGap(Combinator):
    """Another selector's choice, but no client waits longer than a number of rounds.

    In a round's first training, overdue clients take the places of others, which are drawn at random. The selector
    inside sees them in the replies, and those that were replaced as clients that did not answer.
    """

    selector: Part
    rounds: int

    #: The last round in which each client was to train; before that, the round before it was first seen.
    last: Ints = state(lambda: np.zeros(0, dtype=np.int64))

    def __post_init__(self) -> None:
        self.selector = built(self.selector, "selector")

    def parts(self) -> tuple[Selector]:
        assert isinstance(self.selector, Selector)
        return (self.selector,)

    def check(self, population: Population) -> None:
        super().check(population)
        if self.rounds < 1:
            raise ConfigError(f"limit-gap: rounds is {self.rounds}", expected="at least 1")
        count = self.parts()[0].get_params().get("clients_per_round")
        if count is not None and count * self.rounds < population.clients:
            raise ConfigError(
                f"limit-gap: with {count} clients per round, {population.clients} clients cannot all have a turn "
                f"within {self.rounds} rounds",
                expected=f"at least {-(-population.clients // count)} rounds",
            )

    def cautions(self, population: Population) -> list[str]:
        count = self.parts()[0].get_params().get("clients_per_round")
        own = []
        # Then the queue fits into the rounds that are left even if none has had a turn until the last round.
        if count is not None and population.clients <= count * (self.rounds - population.rounds):
            own = [
                f"limit-gap never acts here: in {population.rounds} rounds no client can wait nearly {self.rounds}"
            ]
        return own + super().cautions(population)

    def round(self, fed: View) -> Plan:
        self.last = grown(self.last, fed.clients, fed.round - 1)
        plan = self.parts()[0].round(fed)
        request, first = next(plan, None), True
        while request is not None:
            if isinstance(request, Train):
                request = self._with_overdue(fed, request) if first else request
                self.last[request.clients] = fed.round
                first = False
            request = _next(plan, (yield request))

    def _with_overdue(self, fed: View, request: Train) -> Train:
        chosen = request.clients
        # Of equal waits, those that are chosen anyway go first, then chance decides.
        queue = fed.rng.permutation(fed.available)
        queue = queue[np.argsort(~np.isin(queue, chosen), kind="stable")]
        overdue = queue[due(fed.round - self.last[queue], self.rounds, len(chosen))]
        others = np.setdiff1d(chosen, overdue)
        if len(others) + len(overdue) == len(chosen):
            return request
        clients = np.union1d(overdue, fed.sample(len(chosen) - len(overdue), others))
        # A request names clients in any order.
        ranks = np.argsort(chosen)
        place = ranks[np.minimum(np.searchsorted(chosen, clients, sorter=ranks), len(chosen) - 1)]
        known = chosen[place] == clients
        multiplicity, weights = request.multiplicity, request.weights
        if multiplicity is not None:
            multiplicity = np.where(known, multiplicity[place], 1)
        if weights is not None:
            weights = np.where(known, weights[place], weights.mean())
        return replace(
            request,
            clients=clients,
            multiplicity=multiplicity,
            weights=weights,
            lr_factors=_factors(request.lr_factors, place, known),
            pull_factors=_factors(request.pull_factors, place, known),
        )


def _factors(given: Floats | None, place: Ints, known: Bools) -> Floats | None:
    """The factors of other clients; 1 for those without one."""
    return None if given is None else np.where(known, given[place], 1.0)
