"""Learning-rate schedules over rounds, as functions of the round alone, or of the losses measured so far.

They follow PyTorch's schedulers of the same names, stepped once a round, or once a mini-batch. Nothing has to be
kept for a resume.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Literal

from muster.core.errors import ConfigError

ScheduleName = Literal[
    "constant", "step", "multistep", "exponential", "plateau", "cosine", "warm-restarts", "one-cycle", "linear"
]

#: The options that each schedule looks at.
USES: dict[ScheduleName, tuple[str, ...]] = {
    "constant": (),
    "step": ("decay_every", "decay"),
    "multistep": ("milestones", "decay"),
    "exponential": ("decay",),
    "plateau": ("patience", "decay", "final_share"),
    "cosine": ("period", "final_share"),
    "warm-restarts": ("period", "period_growth", "final_share"),
    "one-cycle": ("warmup", "start_share", "final_share"),
    "linear": ("final_share",),
}
#: Schedules that follow the progress of the run, in whatever steps it is made.
PER_BATCH = ("one-cycle", "cosine", "linear")
#: Rounds of the first period of warm restarts, where nothing is said.
FIRST_PERIOD = 10
#: A loss must fall by this share of the best one to count as better.
_BETTER = 1e-4


def cosine(progress: float) -> float:
    """From 1 to 0 along half a cosine wave, while `progress` goes from 0 to 1."""
    return (1 + math.cos(math.pi * min(1.0, progress))) / 2


def warm_restarts(round: int, period: int, growth: int) -> float:
    """A cosine that starts again after `period` rounds, and then after `growth` times as many as before."""
    while round >= period:
        round -= period
        period *= growth
    return cosine(round / period)


def one_cycle(round: int, rounds: int, warmup: float, start: float, end: float) -> float:
    """From `start` up to 1 in the share `warmup` of the rounds, then down to `end`; both along cosines."""
    peak, last = warmup * rounds - 1, rounds - 1
    if round <= peak:
        return 1 - (1 - start) * cosine(round / peak) if peak > 0 else 1.0
    begin = max(0.0, peak)
    return end + (1 - end) * cosine((round - begin) / (last - begin) if last > begin else 0.0)


def plateaus(losses: Iterable[float], patience: int) -> int:
    """How often more than `patience` losses in a row were no better than the best before them."""
    best, bad, found = math.inf, 0, 0
    for loss in losses:
        better = loss < best * (1 - _BETTER)
        best, bad = (loss, 0) if better else (best, bad + 1)
        if bad > patience:
            found, bad = found + 1, 0
    return found


@dataclass(frozen=True)
class Schedule:
    """The learning rate over rounds. `lr` is the first one; with one-cycle, the highest."""

    lr: float = 0.1
    schedule: ScheduleName = "constant"
    #: step: rounds between two decays.
    decay_every: int = 10
    #: multistep: the rounds after which it decays.
    milestones: tuple[int, ...] = ()
    #: plateau: evaluations without a better loss before it decays.
    patience: int = 10
    #: step, multistep, exponential, plateau: factor of a decay.
    decay: float = 0.5
    #: warm-restarts: rounds of the first period (None: 10). cosine: rounds until the end (None: the last round).
    period: int | None = None
    #: warm-restarts: how much longer every period is than the one before.
    period_growth: int = 1
    #: one-cycle: share of the rounds in which the learning rate rises, and its share of `lr` in the first.
    warmup: float = 0.3
    start_share: float = 0.04
    #: plateau, cosine, warm-restarts, one-cycle, linear: share of `lr` that is left at the end.
    final_share: float = 0.0
    #: When the learning rate changes: with every round or, in centralised training, with every mini-batch.
    schedule_per: Literal["round", "batch"] = "round"
    #: one-cycle with every mini-batch: momentum at the highest learning rate, and at both ends; None: constant.
    momentum_range: tuple[float, float] | None = None

    def check(self) -> None:
        names = ("lr", "decay_every", "decay", "period", "period_growth")
        for key in names:
            value = getattr(self, key)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"bad value for 'training.{key}': {value}", expected="a positive number")
        for key in ("warmup", "start_share", "final_share"):
            if not 0 <= getattr(self, key) <= 1:
                raise ConfigError(f"bad value for 'training.{key}': {getattr(self, key)}", expected="0 to 1")
        if self.patience < 0:
            raise ConfigError(f"bad value for 'training.patience': {self.patience}", expected="0 or more")
        if self.schedule == "multistep" and not self.milestones:
            raise ConfigError(
                "training.schedule = 'multistep' needs milestones",
                fix="name the rounds after which the learning rate decays, e.g. milestones = [50, 75]",
            )
        if any(late <= early for early, late in zip((0, *self.milestones), self.milestones, strict=False)):
            raise ConfigError(
                f"bad value for 'training.milestones': {list(self.milestones)}",
                expected="rounds that ascend, from 1",
            )
        if self.schedule_per == "batch" and self.schedule not in PER_BATCH:
            raise ConfigError(
                f"training.schedule_per = 'batch' with training.schedule = '{self.schedule}'",
                expected=f"one of the schedules that follow the progress of the run: {', '.join(PER_BATCH)}",
            )
        if self.momentum_range is not None:
            low, high = self.momentum_range
            if self.schedule != "one-cycle" or self.schedule_per != "batch" or not 0 <= low <= high < 1:
                raise ConfigError(
                    f"bad value for 'training.momentum_range': {list(self.momentum_range)}",
                    expected="0 ≤ lowest ≤ highest < 1, with schedule = 'one-cycle' and schedule_per = 'batch'",
                )

    def cautions(self) -> list[str]:
        """What a user should know before round 1: options that belong to another schedule than the run's."""
        of_others = {option for options in USES.values() for option in options} - {*USES[self.schedule]}
        set_in_vain = [
            f"training.{f.name}"
            for f in fields(self)
            if f.name in of_others and getattr(self, f.name) != f.default
        ]
        if not set_in_vain:
            return []
        have = "has" if len(set_in_vain) == 1 else "have"
        return [f"{' and '.join(set_in_vain)} {have} no effect here: training.schedule is '{self.schedule}'"]

    def depends_on_length(self) -> str:
        """Why it depends on how many rounds there are, as the end of "because …"; empty: it does not."""
        if self.schedule in ("one-cycle", "linear") or (self.schedule == "cosine" and self.period is None):
            return f"training.schedule = '{self.schedule}' ends with the last round"
        return ""

    def learning_rate(self, round: int, rounds: int, losses: Iterable[float] = ()) -> float:
        """The learning rate of a (0-based) round, after evaluations that measured `losses`."""
        return self.lr * self._share(round, rounds, losses)

    def at_batch(self, round: int, rounds: int, batch: int, batches: int) -> tuple[float, float | None]:
        """Learning rate and, where it moves too, momentum of one of a round's `batches` mini-batches.

        Schedules over rounds are over mini-batches here, of which every round has as many.
        """
        number, total = round * batches + batch, rounds * batches
        momentum = None
        if self.momentum_range is not None:
            low, high = self.momentum_range
            momentum = high - (high - low) * one_cycle(number, total, self.warmup, start=0.0, end=0.0)
        return self.lr * self._share(number, total, (), unit=batches), momentum

    def _share(self, round: int, rounds: int, losses: Iterable[float], unit: int = 1) -> float:
        """`unit`: how many of what `round` and `rounds` count make a round."""
        arrival = rounds - 1 if self.period is None else self.period * unit
        progress, end = min(1.0, round / max(1, rounds - 1)), self.final_share
        match self.schedule:
            case "constant":
                return 1.0
            case "step":
                return float(self.decay ** (round // self.decay_every))
            case "multistep":
                return float(self.decay ** bisect.bisect_right(self.milestones, round))
            case "exponential":
                return float(self.decay**round)
            case "plateau":
                return max(end, float(self.decay ** plateaus(losses, self.patience)))
            case "cosine":
                return end + (1 - end) * cosine(round / max(1, arrival))
            case "warm-restarts":
                return end + (1 - end) * warm_restarts(round, self.period or FIRST_PERIOD, self.period_growth)
            case "one-cycle":
                return one_cycle(round, rounds, self.warmup, self.start_share, end)
            case "linear":
                return 1 - (1 - end) * progress
