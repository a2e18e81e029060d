"""One method, one colour: on every page, in every picture, whatever else is drawn beside it.

A colour follows from the name of the method alone. There are more methods than colours that people can tell apart,
so two methods may have the same one; in a picture that shows both, their lines and marks differ. Variants of one
method have its colour in several shades.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.colors import to_hex, to_rgb

from muster.report.style import LINES, MARKERS, is_dark

#: On light and on dark ground: Okabe and Ito's palette (without its yellow), then Tol's.
_COLOURS = (
    ("#000000", "#E6E9EC"),
    ("#0072B2", "#2E95D3"),
    ("#D55E00", "#E8702A"),
    ("#009E73", "#1CB98C"),
    ("#C8709F", "#CC79A7"),
    ("#56B4E9", "#8CCBF2"),
    ("#E69F00", "#E69F00"),
    ("#882255", "#F0E442"),
    ("#332288", "#8F84E0"),
    ("#999933", "#C9C95A"),
    ("#661100", "#C77A5E"),
    ("#AA4499", "#D67FC9"),
    ("#117733", "#6FBF73"),
    ("#888888", "#9AA3AB"),
    ("#44AA99", "#7FD8C9"),
    ("#6A3D9A", "#B79AE0"),
)

#: Places in the palette, for good: a new method goes to the end, so that no other changes its colour. The methods
#: that are seen together most often come first, since a colour comes back after sixteen.
_SELECTORS = (
    *("random", "terraform", "astrafl", "feddiverse", "probe-fairness", "oort", "power-of-choice", "divfl"),
    *("hics", "fedcor", "fedcbs", "diversity-score", "fedpns", "high-loss", "cluster", "hcsfed"),
    *("oracle", "clustered-similarity", "clustered-size", "feddiverse-qp", "fedcs", "round-robin"),
    *("retrain-random", "size-weighted", "sliding-window", "dirichlet-participation", "limit-gap", "mix"),
    *("warmup", "within", "refl", "tifl", "pisces"),
)
_AGGREGATORS = (
    *("fedavg", "simprox", "fedadam", "fedavgm", "fedyogi", "feddyn", "scaffold", "fednova"),
    *("qfedavg", "krum", "median", "trimmed-mean", "geometric-median", "simagg", "fedatt", "norm-bounding"),
    *("fedadagrad", "multi-krum", "fedbuff", "fedasync", "ca2fl", "fadas", "bulyan", "fltrust"),
    *("centred-clipping", "dnc", "sign-vote"),
)
_PLACES = {name: place for names in (_AGGREGATORS, _SELECTORS) for place, name in enumerate(names)}
#: How far the last of several variants is mixed with the ground.
_FADED = 0.6


@dataclass(frozen=True)
class Look:
    """How one case is drawn."""

    colour: str
    dash: str
    mark: str

    @property
    def line(self) -> dict[str, Any]:
        return {"color": self.colour, "linestyle": self.dash}

    @property
    def dots(self) -> dict[str, Any]:
        return {"color": self.colour, "marker": self.mark}


def looks(names: Sequence[str], *, dark: bool | None = None) -> list[Look]:
    """The looks of cases that are drawn together; without `dark` for the ground that is set."""
    ground = 1 if (is_dark() if dark is None else dark) else 0
    methods = [method_of(name) for name in names]
    places = [_place(method) for method in methods]
    colours = [place % len(_COLOURS) for place in places]
    found = []
    for name, method, place in zip(names, methods, places, strict=True):
        same_colour = sorted(
            {other for other, its in zip(names, colours, strict=True) if its == place % len(_COLOURS)},
            key=lambda other: (_place(method_of(other)), other),
        )
        variants = sorted({other for other, its in zip(names, methods, strict=True) if its == method})
        colour = _COLOURS[place % len(_COLOURS)][ground]
        if len(variants) > 1:
            colour = _mixed(colour, variants.index(name) / (len(variants) - 1) * _FADED, ground)
        step = same_colour.index(name)
        found.append(Look(colour, LINES[step % len(LINES)], MARKERS[(place + step) % len(MARKERS)]))
    return found


def method_of(name: str) -> str:
    """The method in a case's name: "terraform" of "Terraform" and of "terraform (min_clients=2)"."""
    first = re.split(r" \(|, ", name, maxsplit=1)[0].lower()
    return first if first in _PLACES else name


def _place(method: str) -> int:
    if method in _PLACES:
        return _PLACES[method]
    return zlib.crc32(method.encode()) % len(_COLOURS)


def _mixed(colour: str, share: float, ground: int) -> str:
    towards = (1.0, 1.0, 1.0) if ground == 0 else (0.12, 0.13, 0.15)
    red, green, blue = (
        (1 - share) * own + share * other for own, other in zip(to_rgb(colour), towards, strict=True)
    )
    return to_hex((red, green, blue))
