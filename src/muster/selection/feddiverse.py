"""FedDiverse: cohorts of clients whose data are skewed in different ways (Németh et al., 2025).

Every client reports three numbers once: class imbalance, attribute imbalance and spurious correlation (CI, AI,
SC). A round then takes clients three at a time: one drawn for the current kind of skew, the one least similar to
it, and one along the direction that both leave open.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from muster.core.arrays import Bools, Floats, Ints, Vector
from muster.core.component import Population, grown, state
from muster.core.errors import ConfigError
from muster.heterogeneity.estimate import EstimateRecipe
from muster.selection.base import Ask, Plan, Selector, Train, View, check_count, selectors
from muster.signals.base import Replies, Signal
from muster.signals.heterogeneity import BiasedModel, HeterogeneityTriplet, SharedTriplet

Cross = Literal["signed", "abs"]
Ties = Literal["random", "id"]

#: Columns of the triplets in the order in which they are the first criterion: SC, CI, AI.
PRIORITIES = (2, 0, 1)
#: Alignments that differ by less than this are ties.
TIE = 1e-6
#: A cross product shorter than this has no direction.
_NO_DIRECTION = 1e-12


@selectors.register("feddiverse")
@dataclass
class FedDiverse(Selector):
    """Combine clients with class imbalance, attribute imbalance and spurious correlation in every round."""

    clients_per_round: int
    #: T0: rounds of FedAvg in which all clients train with equal weight before the triplets are estimated.
    pretraining_rounds: int = 1
    #: "paper": the rule as published; "ref": the rule of the released code, which normalises differently.
    preset: Literal["paper", "ref"] = "paper"
    #: How the third client is aligned with the cross product of the first two.
    cross: Cross = "signed"
    ties: Ties = "random"
    #: Continue with the next kind of skew in the next round instead of starting again with SC.
    rotate_across_rounds: bool = False
    #: "estimated": every client has its own biased model (the paper); "shared": all use the one of the client
    #: that estimates the highest SC (ours); "true": clients know their attributes.
    estimate: Literal["estimated", "shared", "true"] = "estimated"
    #: What a client reports if its model makes no mistakes, or only mistakes: "skip" (CI, 0, 0), "single" (CI, 1,
    #: 0).
    degenerate: Literal["single", "skip"] = "skip"
    #: Where biased models start: after the pre-training (the paper), or from the initial parameters.
    biased_start: Literal["pretrained", "initial"] = "pretrained"
    #: "fresh": with a new classification layer for two classes too.
    biased_head: Literal["global", "fresh"] = "global"
    #: 0: the global model is taken as it is.
    biased_steps: int = 50
    attribute_steps: int = 10
    gce_q: float = 0.3
    estimate_lr: float = 1e-3
    estimate_batch: int = 28

    triplets: Floats = state(lambda: np.zeros((0, 3)))
    answered: Bools = state(lambda: np.zeros(0, dtype=np.bool_))
    pretrained: int = state(int)
    #: The biased model that all clients use (estimate = "shared"); empty: none yet.
    shared_model: Vector = state(lambda: np.zeros(0, dtype=np.float32))
    #: Triples chosen so far, for the rotation across rounds.
    triples: int = state(int)

    def check(self, population: Population) -> None:
        check_count(self, self.clients_per_round, population)
        if self.pretraining_rounds < 0:
            raise ConfigError(f"FedDiverse: pretraining_rounds is {self.pretraining_rounds}", expected="0 or more")
        if self.preset == "ref" and self.clients_per_round % 3:
            raise ConfigError(
                f"FedDiverse: clients_per_round is {self.clients_per_round}",
                expected="a multiple of 3 with preset = 'ref'",
            )
        self._check_estimate()

    def _check_estimate(self) -> None:
        positive: dict[str, float] = {
            "attribute_steps": self.attribute_steps,
            "estimate_lr": self.estimate_lr,
            "estimate_batch": self.estimate_batch,
            "gce_q": self.gce_q,
        }
        for name, value in positive.items():
            if not 0 < value < np.inf:
                raise ConfigError(f"FedDiverse: {name} is {value}", expected="a positive number")
        if self.gce_q > 1:
            raise ConfigError(f"FedDiverse: gce_q is {self.gce_q}", expected="at most 1")
        if self.biased_steps < 0:
            raise ConfigError(f"FedDiverse: biased_steps is {self.biased_steps}", expected="0 or more")
        if self.biased_steps == 0 and (self.estimate == "shared" or self.biased_head == "fresh"):
            raise ConfigError(
                "FedDiverse: biased_steps is 0, so all biased models are alike, and a fresh head knows nothing",
                expected="1 or more with estimate = 'shared' or biased_head = 'fresh'",
            )

    def cautions(self, population: Population) -> list[str]:
        if self.pretraining_rounds >= population.rounds:
            return ["feddiverse selects no one here: all rounds are pre-training, in which every client trains"]
        if self.clients_per_round == 1 and not self.rotate_across_rounds:
            return [
                "feddiverse looks only at spurious correlation here: a round of one client has just the first of "
                "three, which is drawn by it; choose three or more, or set rotate_across_rounds"
            ]
        return super().cautions(population)

    def gives_fedavg(self) -> bool:
        return self.pretraining_rounds > 0

    def needs(self) -> tuple[Signal, ...]:
        if self.estimate != "shared":
            return (self._triplet(),)
        return self._triplet(), BiasedModel(recipe=self._recipe()), SharedTriplet()

    def _recipe(self) -> EstimateRecipe:
        return EstimateRecipe(
            biased_steps=self.biased_steps,
            attribute_steps=self.attribute_steps,
            q=self.gce_q,
            lr=self.estimate_lr,
            batch_size=self.estimate_batch,
            head=self.biased_head,
        )

    def _triplet(self, models: int = 1) -> HeterogeneityTriplet:
        estimate: Literal["true", "estimated"] = "true" if self.estimate == "true" else "estimated"
        return HeterogeneityTriplet(
            estimate=estimate, degenerate=self.degenerate, recipe=self._recipe(), models=models
        )

    def round(self, fed: View) -> Plan:
        self.triplets = grown(self.triplets, fed.clients, np.nan)
        self.answered = grown(self.answered, fed.clients, False)
        pretraining = self.pretrained < self.pretraining_rounds
        if not pretraining or self.biased_start == "initial":
            yield from self._measure(fed)
        if pretraining:
            self.pretrained += 1
            yield all_train(fed)
        else:
            yield Train(self._choose(fed))

    def _measure(self, fed: View) -> Plan:
        """Ask for the triplets that are not known yet."""
        unknown = fed.available[~self.answered[fed.available]]
        if not len(unknown):
            return
        if not len(self.shared_model):
            models = 1 if fed.classes == 2 or self.biased_steps == 0 else fed.classes
            signal = self._triplet(models)
            replies = yield Ask(unknown, (signal,))
            if self.estimate != "shared":
                self._learn(replies, signal)
                return
            donors = by_correlation(replies.finite(signal.name), fed.rng)
            if not len(donors):
                # No client sees a spurious correlation, so no model shows attributes: the estimates are kept.
                self._learn(replies, signal)
                return
            yield from self._share(fed, donors, models)
        if len(self.shared_model):
            shared = SharedTriplet()
            self._learn((yield Ask(unknown, (shared,), self.shared_model)), shared)

    def _share(self, fed: View, donors: Ints, models: int) -> Plan:
        """Have the first of `donors` that can send its biased model; if none can, the next round tries again."""
        signal = BiasedModel(recipe=self._recipe(), models=models)
        for donor in donors:
            sent = (yield Ask(np.array([donor]), (signal,))).finite(signal.name)
            if len(sent):
                self.shared_model = sent[signal.name][0].astype(np.float32)
                fed.notes["biased_model_of"] = int(donor)
                return

    def _learn(self, replies: Replies, signal: Signal) -> None:
        self.triplets[replies.clients] = replies[signal.name]
        self.answered[replies.clients] = True

    def _choose(self, fed: View) -> Ints:
        count = min(self.clients_per_round, len(fed.available))
        pool = fed.available[self.answered[fed.available]]
        if self.preset == "ref":
            picked = pick_released(self.triplets[pool], count, fed.rng)
        else:
            start = self.triples if self.rotate_across_rounds else 0
            picked = pick(self.triplets[pool], count, fed.rng, cross=self.cross, ties=self.ties, start=start)
        self.triples += -(-len(picked) // 3)
        chosen = pool[picked]
        if len(chosen) < count:
            # Clients without a triplet only fill free places.
            chosen = np.concatenate([chosen, fed.sample(count - len(chosen), np.setdiff1d(fed.available, pool))])
        return np.sort(chosen)


def all_train(fed: View) -> Train:
    """A round of pre-training: FedAvg with all clients, equally weighted."""
    return Train(fed.available, weights=np.ones(len(fed.available)), fedavg=True)


def by_correlation(triplets: Replies, rng: np.random.Generator) -> Ints:
    """Clients that estimate some spurious correlation, the most first; ties in random order."""
    sc = triplets["heterogeneity_triplet"][:, 2]
    order = rng.permutation(len(sc))
    order = order[np.argsort(-sc[order], kind="stable")]
    return triplets.clients[order[sc[order] > 0]]


def pick(
    triplets: Floats,
    count: int,
    rng: np.random.Generator,
    *,
    cross: Cross = "signed",
    ties: Ties = "random",
    start: int = 0,
) -> Ints:
    """Positions of `count` clients in the order in which they are picked; rows are (CI, AI, SC).

    Of every three, the first is drawn with probability ∝ SC (then CI, then AI, …; `start` rotates), the second has
    the smallest dot product with the first, and the third the largest with the cross product of the two ("abs":
    in absolute value). Directions are normalised to sum 1; a triplet of zeros has no skew to offer and gets
    (⅓, ⅓, ⅓). A triplet that is not a number gets the same direction and mean probabilities.
    """
    raw, missing = _usable(triplets)
    if count >= len(triplets):
        return np.arange(len(triplets))
    unit = _directions(raw)
    unit[:, missing] = 1 / 3
    cumulated = np.cumsum(raw, axis=1)
    picked: list[int] = []
    while len(picked) < count:
        triple, role = divmod(len(picked), 3)
        if role == 0:
            kind = PRIORITIES[(start + triple) % 3]
            picked.append(_draw(raw[kind], cumulated[kind], picked, rng))
        elif role == 1:
            picked.append(_least(unit[:, picked[-1]] @ unit, picked, ties, rng))
        else:
            first, second = unit[:, picked[-2]], unit[:, picked[-1]]
            picked.append(_least(_closeness(unit, first, second, cross), picked, ties, rng))
    return np.array(picked, dtype=np.int64)


def pick_released(triplets: Floats, count: int, rng: np.random.Generator) -> Ints:
    """As `pick`, by the rule of the authors' released code; `count` is rounded up to a multiple of three.

    The three kinds of skew come in random order. For every triple, each kind is normalised to sum 1 over clients
    and then each client to length 1, on top of what earlier triples left; picked clients become zero vectors. A
    client with no skew at all is a zero vector too, so it is always the least similar.
    """
    raw, _ = _usable(triplets)
    count = -(-count // 3) * 3
    if count >= len(triplets):
        return np.arange(len(triplets))
    matrix = raw[rng.permutation(3)]
    picked: list[int] = []
    while len(picked) < count:
        sums = matrix.sum(axis=1, keepdims=True)
        matrix = np.divide(matrix, sums, out=np.zeros_like(matrix), where=sums > 0)
        first = _draw(matrix[0], np.cumsum(matrix[0]), picked, rng)
        lengths = np.linalg.norm(matrix, axis=0)
        matrix = np.divide(matrix, lengths, out=np.zeros_like(matrix), where=lengths > 0)
        second = _least(matrix[:, first] @ matrix, [*picked, first], "random", rng)
        normal = np.cross(matrix[:, first], matrix[:, second])
        normal /= max(float(np.linalg.norm(normal)), _NO_DIRECTION)
        third = _least(-(normal @ matrix), [*picked, first, second], "random", rng)
        picked += [first, second, third]
        matrix[:, picked[-3:]] = 0
        matrix = matrix[[2, 0, 1]]
    return np.array(picked, dtype=np.int64)


def _usable(triplets: Floats) -> tuple[Floats, Ints]:
    """The triplets as three rows of numbers that are not negative, and which clients' are missing (now means)."""
    rows = np.array(np.transpose(triplets), dtype=np.float64, order="C")
    known = np.isfinite(rows).all(axis=0)
    missing = np.flatnonzero(~known)
    np.maximum(rows, 0.0, out=rows)
    if len(missing):
        rows[:, missing] = rows[:, known].mean(axis=1, keepdims=True) if known.any() else 0.0
    return rows, missing


def _directions(rows: Floats) -> Floats:
    """Every client's triplet divided by its sum; thirds where the sum is zero."""
    sums = rows.sum(axis=0)
    return np.asarray(np.divide(rows, sums, out=np.full_like(rows, 1 / 3), where=sums > 0))


def _closeness(unit: Floats, first: Floats, second: Floats, cross: Cross) -> Floats:
    """How little every client lies along the direction that the first two leave open."""
    normal = np.cross(first, second)
    if np.linalg.norm(normal) < _NO_DIRECTION:
        return np.asarray((first + second) @ unit)
    along = normal @ unit
    return np.asarray(-np.abs(along) if cross == "abs" else -along)


def _draw(weights: Floats, cumulated: Floats, taken: list[int], rng: np.random.Generator) -> int:
    """One client that is not taken, ∝ weight; uniformly if none has weight. `cumulated`: the cumulative weights.

    The draw skips the intervals of the taken clients, so that the weights need not be summed up again.
    """
    uniform = rng.random()
    gone = sorted(taken)
    place = uniform * (cumulated[-1] - weights[gone].sum())
    for client in gone:
        if place < cumulated[client] - weights[client]:
            break
        place += weights[client]
    found = int(np.searchsorted(cumulated, place, side="right"))
    if found < len(weights) and found not in taken:
        return found
    # No other has weight, or so little that rounding decides.
    rest = np.setdiff1d(np.arange(len(weights)), gone)
    sums = np.cumsum(weights[rest] if weights[rest].any() else np.ones(len(rest)))
    return int(rest[min(int(np.searchsorted(sums, uniform * sums[-1], side="right")), len(rest) - 1)])


def _least(scores: Floats, taken: list[int], ties: Ties, rng: np.random.Generator) -> int:
    """The client with the lowest score that is not taken; among ties at random, or the first."""
    scores[taken] = np.inf
    tied = np.flatnonzero(scores <= scores.min() + TIE)
    return int(tied[0] if ties == "id" else tied[rng.integers(len(tied))])
