"""Fed-CBS: groups of clients whose pooled labels are balanced (Zhang et al., 2023).

The quadratic class imbalance degree of a group is ‖Σ_k (h_k − n_k/C)‖² / (Σ_k n_k)²: with centred histograms
nothing cancels, and one product of the running sum with all histograms judges every candidate for the next place.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.core.arrays import Floats, Ints, Vector
from muster.core.component import Population, state
from muster.core.errors import ConfigError
from muster.heterogeneity.cohort import imbalance
from muster.selection._memory import ask_histograms, told
from muster.selection.base import Plan, Selector, Train, View, check_count, selectors
from muster.signals.base import Signal, signals

__all__ = ["FedCBS", "imbalance"]

#: Imbalances below this count as this much: a perfectly balanced group has a finite weight.
FLOOR = 1e-6
#: Logarithms of weights, divided by the place, that differ by less are ties: they are judged in single precision.
_TIE = 1e-5
#: Candidates whose weights are added up at a time, to find the drawn one without a running sum over all.
_BLOCK = 4096


@selectors.register("fedcbs")
@dataclass
class FedCBS(Selector):
    """Build a group client by client, preferring those that balance its pooled labels."""

    clients_per_round: int
    #: λ: how much the first pick prefers rarely selected clients.
    exploration: float = 10.0
    #: Draw with probability ∝ imbalance^(−place), or always take the best.
    mode: Literal["sample", "greedy"] = "sample"

    #: Label histograms, one row per client; NaN: not known yet.
    _histograms: Floats = state(lambda: np.zeros((0, 0)))

    def check(self, population: Population) -> None:
        check_count(self, self.clients_per_round, population)
        if not self.exploration >= 0:
            raise ConfigError(f"FedCBS: exploration is {self.exploration}", expected="at least 0")

    def needs(self) -> tuple[Signal, ...]:
        return (signals.build("label_histogram", {}),)

    def round(self, fed: View) -> Plan:
        (histogram,) = self.needs()
        self._histograms = yield from ask_histograms(histogram, self._histograms, fed)
        yield Train(self._choose(fed, self._histograms))

    def _choose(self, fed: View, histograms: Floats) -> Ints:
        if len(fed.available) <= self.clients_per_round:
            return fed.available
        known = told(histograms)[fed.available]
        pool = fed.available[known]
        pulls = 1 + fed.history.rounds[pool]
        bonus = self.exploration * np.sqrt(1.5 * math.log(fed.round + 1) / pulls)
        candidates = Candidates.of(histograms if len(pool) == len(histograms) else histograms[pool])
        chosen = pool[build_group(candidates, self.clients_per_round, bonus, self.mode, fed.rng)]
        # Clients that did not report their labels come last.
        filled = fed.sample(self.clients_per_round - len(chosen), among=fed.available[~known])
        return np.sort(np.concatenate([chosen, filled]))


@dataclass(frozen=True)
class Candidates:
    """Histograms in the form that makes judging all of them one pass over memory: float32, classes × clients."""

    centred: Vector
    squares: Vector
    sizes: Vector

    @classmethod
    def of(cls, histograms: Floats | Ints) -> Candidates:
        sizes = histograms.sum(axis=1)
        centred = np.empty(histograms.shape[::-1], dtype=np.float32)
        np.subtract(histograms.T, sizes / histograms.shape[1], out=centred, casting="same_kind")
        return cls(centred, np.einsum("cn,cn->n", centred, centred), sizes.astype(np.float32))

    def __len__(self) -> int:
        return len(self.sizes)

    def imbalances(self, members: Ints, out: Vector, scratch: Vector) -> Vector:
        """QCID of the group `members` with each candidate added to it, in `out`; `scratch` is overwritten."""
        total = self.centred[:, members].sum(axis=1, dtype=np.float64)
        size = self.sizes[members].sum(dtype=np.float64)
        np.matmul((2 * total).astype(np.float32), self.centred, out=out)
        out += self.squares
        out += np.float32(total @ total)
        np.add(self.sizes, np.float32(size), out=scratch)
        scratch *= scratch
        out /= scratch
        return np.maximum(out, 0.0, out=out)

    def buffers(self) -> tuple[Vector, Vector]:
        """Memory for `imbalances`: fresh pages for every pick would cost more than the arithmetic."""
        return np.empty(len(self), dtype=np.float32), np.empty(len(self), dtype=np.float32)


def build_group(
    candidates: Candidates,
    count: int,
    bonus: Floats,
    mode: Literal["sample", "greedy"],
    rng: np.random.Generator,
) -> Ints:
    """Positions of `count` distinct candidates.

    The first has weight 1/QCID + `bonus`, the i-th QCID^(−i) of the group with it; weights are kept as logarithms.
    "greedy" takes the largest, at random where several are.
    """
    values, scratch = candidates.buffers()
    chosen = np.empty(min(count, len(candidates)), dtype=np.int64)
    for place in range(len(chosen)):
        candidates.imbalances(chosen[:place], values, scratch)
        np.maximum(values, np.float32(FLOOR), out=values)
        if place == 0:
            np.log(1.0 / values + bonus, out=values, casting="same_kind")
        else:
            np.log(values, out=values)
            values *= np.float32(-(place + 1))
        values[chosen[:place]] = -np.inf
        if mode == "greedy":
            chosen[place] = rng.choice(np.flatnonzero(values >= values.max() - _TIE * (place + 1)))
        else:
            chosen[place] = draw_by_log_weight(values, rng)
    return chosen


def draw_by_log_weight(log_weights: Vector, rng: np.random.Generator) -> int:
    """A position with probability ∝ exp(log weight). Overwrites its argument."""
    log_weights -= log_weights.max()
    weights = np.exp(log_weights, out=log_weights)
    whole = len(weights) // _BLOCK * _BLOCK
    blocks = weights[:whole].reshape(-1, _BLOCK).sum(axis=1)
    sums = np.cumsum(np.append(blocks, weights[whole:].sum()), dtype=np.float64)
    block = int(np.searchsorted(sums, rng.random() * sums[-1], side="right"))
    inside = np.cumsum(weights[block * _BLOCK : (block + 1) * _BLOCK], dtype=np.float64)
    return block * _BLOCK + int(np.searchsorted(inside, rng.random() * inside[-1], side="right"))
