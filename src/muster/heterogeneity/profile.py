"""A federation as a handful of numbers, and how far two federations are apart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from muster.heterogeneity.inspection import Inspection

#: Number → the difference that counts as one step: a quarter of the way from none to total for skews and shares,
#: about three times as much or as many for amounts. Steps do not depend on which federations are known.
STEPS = {
    **dict.fromkeys(("GCI", "GAI", "GSC", "CCI", "CAI", "CSC"), 0.25),
    "label divergence, bits": 0.25,
    "Gini of sizes": 0.25,
    "cohort, share of clients": 0.25,
    "log10 of clients": 0.5,
    "log10 of a client's samples, median": 0.5,
}
#: Federations that are further apart, in steps, are not alike.
NEAR = 2.0


def profile(inspection: Inspection) -> dict[str, float]:
    """The numbers of `STEPS`; skews of attributes are 0 where there are none."""
    metrics = {name: inspection.metrics.get(name, 0.0) for name in ("GCI", "GAI", "GSC", "CCI", "CAI", "CSC")}
    return metrics | {
        "label divergence, bits": inspection.divergences["Jensen–Shannon (bits)"].mean,
        "Gini of sizes": inspection.size_gini,
        "cohort, share of clients": inspection.cohort / inspection.clients,
        "log10 of clients": math.log10(inspection.clients),
        "log10 of a client's samples, median": math.log10(max(1.0, float(np.median(inspection.counts.sizes)))),
    }


def steps_apart(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, float]:
    """How many steps lie between two profiles, number by number."""
    return {name: abs(one[name] - other[name]) / step for name, step in STEPS.items()}


def distance(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Euclidean distance of two profiles in steps."""
    return math.hypot(*steps_apart(one, other).values())
