"""How often 95 % intervals of a mean contain it: Student's and the BCa bootstrap, few values and many.

    python tools/interval_coverage.py

Means of normal values, and of values with a skewness of 1 (gamma, shape 4).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from muster.core.arrays import Floats
from muster.report.intervals import bootstrapped, student
from muster.report.tables import markdown

COUNTS = (3, 5, 10, 20, 30, 50)
#: Samples for each number: a bootstrap takes its time.
STUDENT, BOOTSTRAP = 100_000, 1_000
SHAPE = 4.0


def covered(ends: tuple[Floats, Floats], mean: float) -> float:
    low, high = ends
    return float(np.mean((low <= mean) & (mean <= high)))


def row(count: int, draw: Callable[[np.random.Generator, tuple[int, int]], Floats], mean: float) -> list[str]:
    rng = np.random.default_rng(0)
    shares = (
        covered(student(draw(rng, (count, STUDENT))), mean),
        covered(bootstrapped(draw(rng, (count, BOOTSTRAP))), mean),
    )
    return [f"{share:.1%}".replace("%", " %") for share in shares]


def main() -> None:
    kinds = (
        (lambda rng, shape: rng.standard_normal(shape), 0.0),
        (lambda rng, shape: rng.gamma(SHAPE, size=shape), SHAPE),
    )
    header = ["values", "normal: Student's", "normal: BCa", "skewed: Student's", "skewed: BCa"]
    print(markdown(header, [[str(n), *(cell for kind in kinds for cell in row(n, *kind))] for n in COUNTS]))


if __name__ == "__main__":
    main()
