"""How the time of a selection grows with the number of clients, for every registered method.

Clients are made-up numbers (`FakeFederation`), nothing is trained, and only the time inside the
selector counts. Run it on a quiet machine, on one core:

    OMP_NUM_THREADS=1 python benchmarks/selection.py

It prints a table and writes docs/results/selection-scaling.md and docs/images/selection-scaling.png.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib
import numpy as np

from muster.engine.trial import small_spec
from muster.selection.base import Selector, selectors
from muster.selection.combinators import Combinator
from muster.server.testing import FakeFederation, Played

DOCS = Path(__file__).parents[1] / "docs"
CHOSEN = 100
MILLION = (1_000, 10_000, 100_000, 1_000_000)
#: Methods whose memory or time grows with the square of the clients or faster; the classification layer of the
#: model that they look at has 10,000 numbers.
PAIRS = (500, 1_000, 2_000, 5_000)
#: No larger number of clients is tried after a round has taken so many seconds.
PATIENCE = 60.0


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    method: str
    label: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    clients: Sequence[int] = MILLION
    #: Let everybody train once before the measurement, so that every client has a vector to be compared by.
    warm: bool = False
    #: Put all clients into the pool.
    everybody: bool = False

    @property
    def name(self) -> str:
        return f"{self.method} ({self.label})" if self.label else self.method


SPECIAL = (
    Case("power-of-choice", "pow-d", {"variant": "pow-d"}),
    Case("power-of-choice", "rpow-d", {"variant": "rpow-d"}),
    Case("size-weighted", "with replacement", {"replace": True}),
    Case("size-weighted", "without replacement"),
    Case("oort", "no speeds", {"speed": "none"}),
    Case("oort", "speeds asked for", {"speed": "asked"}),
    Case("oort", "speeds measured"),
    Case("tifl", "accuracies every round", {"interval": 1}),
    Case("terraform", "100 in the pool"),
    Case("terraform", "everybody in the pool", everybody=True),
    Case("astrafl", clients=PAIRS, warm=True),
    Case("cluster", clients=PAIRS),
    Case("clustered-similarity", clients=PAIRS, warm=True),
    Case("divfl", clients=PAIRS),
    Case("fedcor", clients=(100, 500, 1_000), options={"warmup": 0, "interval": 1, "clients_per_round": 10}),
    Case("feddiverse-qp", clients=PAIRS[:3]),
    Case("hics", clients=PAIRS, warm=True, options={"signal": "weight_row_mean"}),
)


def cases() -> list[Case]:
    """The special cases above, and every other registered method with its default options."""
    special = {case.method for case in SPECIAL}
    plain = [Case(name) for name in selectors if name not in special and not issubclass(_class(name), Combinator)]
    return sorted([*SPECIAL, *plain], key=lambda case: case.name)


def _class(name: str) -> type:
    entry = selectors.get(name)
    return entry if isinstance(entry, type) else object


@dataclass(frozen=True)
class Timing:
    """Seconds inside the selector."""

    first: float
    later: float


def measure(case: Case, clients: int, rounds: int = 3) -> Timing:
    """The first round, in which some methods set up, and the fastest of later ones."""
    wide = case.clients is not MILLION
    rng = np.random.default_rng(0)
    federation = FakeFederation(
        clients,
        classes=100 if wide else 10,
        spec=small_spec(100, 99) if wide else None,
        seconds=rng.lognormal(2, 1, clients),
        presence=rng.random(clients),
    )
    chosen = clients if case.everybody else CHOSEN
    selector = selectors.build(case.method, {"clients_per_round": chosen} | dict(case.options))
    first = _warm_up(federation, selector) if case.warm else federation.play(selector)
    later = [federation.play(selector).seconds]
    while len(later) < rounds and later[0] < PATIENCE / 10:
        later.append(federation.play(selector).seconds)
    return Timing(first.seconds, min(later))


def _warm_up(federation: FakeFederation, selector: Selector) -> Played:
    """A round in which everybody trains."""
    chosen = selector.get_params()["clients_per_round"]
    object.__setattr__(selector, "clients_per_round", federation.clients)
    played = federation.play(selector)
    object.__setattr__(selector, "clients_per_round", chosen)
    return played


#: What was measured: a line of the table and, for each number of clients, the times.
Measured: TypeAlias = list[tuple[Case, dict[int, Timing]]]


def run(chosen: Sequence[Case], largest: int) -> Measured:
    table: Measured = []
    for case in chosen:
        times: dict[int, Timing] = {}
        for clients in (number for number in case.clients if number <= largest):
            times[clients] = timing = measure(case, clients)
            gc.collect()
            print(f"{case.name:42s} {clients:>9,d} {timing.first:9.4f} {timing.later:9.4f}", flush=True)
            if max(timing.first, timing.later) > PATIENCE:
                break
        if times:
            table.append((case, times))
    return table


def _seconds(value: float) -> str:
    return f"{value:.2g}" if value < 10 else f"{value:.0f}"


def as_markdown(table: Measured) -> str:
    sizes = sorted({clients for _, times in table for clients in times})
    lines = ["| method | " + " | ".join(f"{size:,}" for size in sizes) + " | first round, most clients |"]
    lines.append("|---" * (len(sizes) + 2) + "|")
    for case, times in table:
        cells = [_seconds(times[size].later) if size in times else "" for size in sizes]
        lines.append(f"| {case.name} | {' | '.join(cells)} | {_seconds(times[max(times)].first)} |")
    return "\n".join(lines)


def divided(table: Measured) -> tuple[Measured, Measured]:
    """The methods that reach a million clients, and the others."""
    return (
        [line for line in table if line[0].clients is MILLION],
        [line for line in table if line[0].clients is not MILLION],
    )


PAGE = """# Time of a selection against the number of clients

Seconds inside the selector for one round that trains {chosen} clients, the fastest of three later rounds (of one,
where it takes long); the last column is the first round with the most clients, in which some methods set up.
Everything is in memory, clients answer with made-up numbers, nothing is trained.

Made by `OMP_NUM_THREADS=1 python benchmarks/selection.py` on {machine}, Python {python}, NumPy {numpy}, one core
of {cores}. Other work may have been running on the machine: figures are too high rather than too low.

## Methods that reach a million clients

They see sample counts, losses, histograms of 10 classes and the like. "Everybody in the pool" is a whole round of
Terraform that begins with all clients: several splits, the first of them of all clients.

{linear}

## Methods that compare clients with each other

In pairs, or by solving a programme over all of them. The model's classification layer has 10,000 numbers and 100
classes. FedCor chooses 10 clients and fits its Gaussian process in every round here, by default less often.

{pairs}

![Time of a round against the number of clients, both axes logarithmic](../images/selection-scaling.png)
"""


def write_page(table: Measured, path: Path) -> None:
    linear, pairs = divided(table)
    page = PAGE.format(
        chosen=CHOSEN,
        machine=platform.machine(),
        python=platform.python_version(),
        numpy=np.__version__,
        cores=os.cpu_count(),
        linear=as_markdown(linear),
        pairs=as_markdown(pairs),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")


def plot(table: Measured, path: Path) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(18, 7), layout="constrained")
    colours, markers = matplotlib.colormaps["tab20"], "osD^v<>P"
    titles = ("Methods that reach a million clients", "Methods that compare clients with each other")
    for axis, lines, title in zip(axes, divided(table), titles, strict=True):
        for number, (case, times) in enumerate(lines):
            sizes = sorted(times)
            seconds = [max(times[size].later, 1e-5) for size in sizes]
            look = {"color": colours(number % 20), "marker": markers[number % len(markers)]}
            axis.loglog(sizes, seconds, linewidth=1.5, label=case.name, **look)
        axis.set(title=title, xlabel="clients", ylabel="seconds a round")
        axis.grid(visible=True, which="major", alpha=0.3)
        axis.axhline(1.0, color="grey", linestyle=":", linewidth=1)
        if lines:
            axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="*", help="only these (default: all)")
    parser.add_argument("--largest", type=int, default=MILLION[-1], help="most clients")
    parser.add_argument("--docs", type=Path, default=DOCS, help="where to write page and plot")
    options = parser.parse_args()
    chosen = [case for case in cases() if not options.methods or case.method in options.methods]
    print(f"{'method':42s} {'clients':>9s} {'first s':>9s} {'later s':>9s}")
    table = run(chosen, options.largest)
    for part in divided(table):
        print("\n" + as_markdown(part))
    write_page(table, options.docs / "results" / "selection-scaling.md")
    plot(table, options.docs / "images" / "selection-scaling.png")


if __name__ == "__main__":
    main()
