"""How far clients are believed: bounds on the sample counts that they state and on the numbers that rank them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from muster.core.arrays import Floats, Ints
from muster.core.errors import ConfigError
from muster.signals.base import Replies, Signal


@dataclass(frozen=True)
class ClientLimits:
    """The section [limits]. Nothing is bounded unless it says so."""

    #: No client counts as more samples than this; on a federation a node that states more is not admitted.
    max_samples: int | None = None
    #: No client counts as more than this many times the median client's samples; in evaluations, test samples.
    max_samples_over_median: float | None = None
    #: Numbers that rank clients (losses, norms) are brought down to this quantile of an exchange's answers.
    signal_quantile: float | None = None
    #: The same with this many times the median of the answers.
    signal_over_median: float | None = None

    def check(self) -> None:
        self._require("max_samples", self.max_samples is None or self.max_samples >= 1, "at least 1")
        for name in ("max_samples_over_median", "signal_over_median"):
            value = getattr(self, name)
            self._require(name, value is None or 1 <= value < np.inf, "1 or more")
        quantile = self.signal_quantile
        self._require("signal_quantile", quantile is None or 0 < quantile < 1, "above 0, below 1")

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise ConfigError(f"bad value for 'limits.{name}': {getattr(self, name)}", expected=expected)

    def counted(self, sizes: Ints) -> Ints:
        """How many samples count for clients that state `sizes`; the array itself where nothing is bounded.

        >>> ClientLimits(max_samples_over_median=3).counted(np.array([100, 10**9, 120])).tolist()
        [100, 360, 120]
        """
        most = self.largest_count(sizes)
        return sizes if most is None else np.minimum(sizes, most)

    def largest_count(self, sizes: Ints) -> int | None:
        """The largest count that counts where clients state `sizes`; None: any does."""
        bounds = [] if self.max_samples is None else [self.max_samples]
        if self.max_samples_over_median is not None and len(sizes):
            bounds.append(max(1, int(self.max_samples_over_median * float(np.median(sizes)))))
        return min(bounds, default=None)

    def believed(self, replies: Replies, signals: tuple[Signal, ...]) -> Replies:
        """The replies with numbers that rank clients brought down to the bounds."""
        if self.signal_quantile is None and self.signal_over_median is None:
            return replies
        ranking = {signal.name for signal in signals if signal.ranks}
        values = {
            name: bounded(rows, self.signal_quantile, self.signal_over_median) if name in ranking else rows
            for name, rows in replies.values.items()
        }
        return Replies(replies.clients, values)


def bounded(values: Floats, quantile: float | None, over_median: float | None) -> Floats:
    """Values with the largest brought down to a quantile of them, or to a multiple of their median.

    The quantile is one of the values, the lower where it falls between two: a single liar never sets it.

    >>> bounded(np.array([1.0, 2.0, 3.0, 1e18]), 0.9, None).tolist()
    [1.0, 2.0, 3.0, 3.0]
    """
    if not len(values):
        return values
    if quantile is not None:
        values = np.minimum(values, np.quantile(values, quantile, method="lower"))
    if over_median is not None:
        median = float(np.median(values))
        # Above a median below zero (of a loss of one's own) by as much as above its opposite.
        most = over_median * median if median >= 0 else (2 - over_median) * median
        values = np.minimum(values, most)
    return values
