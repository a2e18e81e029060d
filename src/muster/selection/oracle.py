"""An oracle that knows all label histograms: an upper bound for methods that have to guess them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.core.arrays import Floats, Ints
from muster.core.component import Population, state
from muster.selection._memory import ask_histograms, told
from muster.selection.base import Plan, Selector, Train, View, check_count, selectors
from muster.selection.fedcbs import Candidates
from muster.signals.base import Signal, signals

#: Imbalances that differ by less are ties; the histograms are judged in single precision.
_TIE = 1e-7


@selectors.register("oracle")
@dataclass
class Oracle(Selector):
    """Complete a random client to the group with the most balanced pooled labels, knowing all histograms."""

    clients_per_round: int

    #: Label histograms, one row per client; NaN: not known yet.
    _histograms: Floats = state(lambda: np.zeros((0, 0)))

    def check(self, population: Population) -> None:
        check_count(self, self.clients_per_round, population)

    def cautions(self, population: Population) -> list[str]:
        if self.clients_per_round == 1 < population.clients:
            return ["oracle is random selection here: the first client is random, and there is no other"]
        return super().cautions(population)

    def needs(self) -> tuple[Signal, ...]:
        return (signals.build("label_histogram", {}),)

    def round(self, fed: View) -> Plan:
        (histogram,) = self.needs()
        self._histograms = yield from ask_histograms(histogram, self._histograms, fed)
        known = told(self._histograms)[fed.available]
        pool = fed.available[known]
        chosen = pool[:0]
        if len(pool):
            first = int(fed.rng.integers(len(pool)))
            trainings = fed.history.trainings[pool].astype(np.int64)
            group = complete(self._histograms[pool], first, self.clients_per_round, trainings, fed.rng)
            chosen = pool[group]
        filled = fed.sample(self.clients_per_round - len(chosen), among=fed.available[~known])
        yield Train(np.sort(np.concatenate([chosen, filled])))


def complete(histograms: Floats | Ints, first: int, count: int, trainings: Ints, rng: np.random.Generator) -> Ints:
    """Positions of `count` clients: `first`, then repeatedly the one that leaves the pool most balanced.

    Ties go to the client that was trained least; among several of those `rng` draws.
    """
    candidates = Candidates.of(histograms)
    values, scratch = candidates.buffers()
    chosen = [first]
    while len(chosen) < min(count, len(histograms)):
        candidates.imbalances(np.array(chosen), values, scratch)
        values[chosen] = np.inf
        ties = np.flatnonzero(values <= values.min() + _TIE)
        chosen.append(int(rng.choice(ties[trainings[ties] == trainings[ties].min()])))
    return np.array(chosen, dtype=np.int64)
