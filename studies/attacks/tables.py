"""The tables and the picture of docs/results/attacks.md, from what a workspace has of the study in this folder.

    python studies/attacks/tables.py [WORKSPACE [PICTURE.png]]

Shown are the aggregators that have every run that FedAvg has, the seeds whose runs without an attack are complete,
and the attacks that are complete with all of these.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from muster.config.experiment import from_dict
from muster.core.arrays import Floats
from muster.experiment.backdoor import success_rate
from muster.report.plots.canvas import panels, picture, save_figure
from muster.report.style import shades
from muster.results.store import Store
from muster.server.result import Result
from muster.updates.attacks.base import attackers_of

SWEEP = "attacks-fmnist"
#: Among 50 clients.
CLIENTS, SHARE = 50, 0.2

#: (attack, aggregator, selector) → seed → result.
Study: TypeAlias = dict[tuple[str, str, str], dict[int, Result]]


def study(results: Iterable[Result]) -> Study:
    """Complete runs of attacks that have all combinations, with the seeds that all of them have."""
    found: Study = {}
    for result in results:
        if result.complete:
            attack, aggregator, selector = result.name.split(", ")
            found.setdefault((attack, aggregator, selector), {})[int(result.config["seed"])] = result
    first = {(attack, selector): set(runs) for (attack, one, selector), runs in found.items() if one == "fedavg"}
    full = [
        name
        for name in names(found, 1)
        if all(
            set(found.get((attack, name, selector), {})) >= seeds for (attack, selector), seeds in first.items()
        )
    ]
    found = {key: runs for key, runs in found.items() if key[1] in full}
    shared = {
        attack: set.intersection(*(set(found.get((attack, a, s), {})) for a in full for s in names(found, 2)))
        for attack in names(found, 0)
    }
    seeds = shared["none"]
    return {
        key: {seed: runs[seed] for seed in sorted(seeds)} for key, runs in found.items() if shared[key[0]] >= seeds
    }


def names(runs: Study, place: int) -> list[str]:
    """Attacks (0), aggregators (1) or selectors (2)."""
    return list(dict.fromkeys(key[place] for key in runs))


def accuracies(runs: Study, attack: str, aggregator: str, selector: str) -> Floats:
    """In the last round, in per cent, seed by seed."""
    return np.array([100 * run.final() for run in runs[attack, aggregator, selector].values()])


def damage(runs: Study, attack: str, selector: str, aggregators: Sequence[str]) -> Floats:
    """Points of accuracy that an attack costs, seed by seed, averaged over aggregators."""
    return np.mean(
        [accuracies(runs, "none", one, selector) - accuracies(runs, attack, one, selector) for one in aggregators],
        axis=0,
    )


def attackers_share(run: Result) -> float:
    """How many of the trainings of a run were by attackers, those whose updates were refused included."""
    attackers = set(attackers_of(CLIENTS, SHARE, int(run.config["seed"])))
    told = [
        client
        for record in run.records
        for training in record.trainings
        for client in (*training.clients, *training.rejected, *training.failed)
    ]
    return len([client for client in told if client in attackers]) / len(told)


def scores(runs: Study) -> Iterator[list[str]]:
    yield ["attack", "aggregator", *names(runs, 2)]
    for attack in names(runs, 0):
        for aggregator in names(runs, 1):
            cells = [_spread(accuracies(runs, attack, aggregator, selector)) for selector in names(runs, 2)]
            yield [attack, aggregator, *cells]


def participation(runs: Study) -> Iterator[list[str]]:
    """Of the trainings, averaged over aggregators and seeds."""
    yield ["attack", *names(runs, 2)]
    for attack in names(runs, 0):
        cells = []
        for selector in names(runs, 2):
            of_all = [runs[attack, aggregator, selector].values() for aggregator in names(runs, 1)]
            cells.append(f"{np.mean([attackers_share(run) for own in of_all for run in own]):.0%}")
        yield [attack, *cells]


def worse_than_random(runs: Study) -> Iterator[list[str]]:
    """How much more an attack costs with a selector than with random selection, paired by seed."""
    others = [selector for selector in names(runs, 2) if selector != "random"]
    yield ["attack", "random: points lost", *(f"{selector}: further points" for selector in others)]
    for attack in names(runs, 0):
        if attack == "none":
            continue
        lost = {selector: damage(runs, attack, selector, names(runs, 1)) for selector in names(runs, 2)}
        yield [
            attack,
            _spread(lost["random"]),
            *(_interval(lost[selector] - lost["random"]) for selector in others),
        ]


def backdoors(runs: Study, workspace: Path) -> Iterator[list[str]]:
    """The share of marked test pictures that the final models take for the attackers' class."""
    yield ["aggregator", *names(runs, 2)]
    with Store(workspace, create=False) as store:
        for aggregator in names(runs, 1):
            cells = []
            for selector in names(runs, 2):
                fingerprints = [
                    from_dict(run.config).fingerprint for run in runs["backdoor", aggregator, selector].values()
                ]
                trained = [store.result(fingerprint) for fingerprint in fingerprints]
                rates = [100 * success_rate(from_dict(run.config), run.parameters) for run in trained]
                cells.append(_spread(np.array(rates)))
            yield [aggregator, *cells]


def _spread(values: Floats) -> str:
    return f"{values.mean():.1f} ± {values.std(ddof=1):.1f}" if len(values) > 1 else f"{values[0]:.1f}"


def _interval(gaps: Floats) -> str:
    """The mean of differences and Student's 95 % interval; bold where that excludes zero."""
    if len(gaps) < 2:
        return f"{gaps.mean():+.1f} (one seed)"
    half = float(stats.t.ppf(0.975, len(gaps) - 1)) * gaps.std(ddof=1) / np.sqrt(len(gaps))
    text = f"{gaps.mean():+.1f} [{gaps.mean() - half:+.1f}, {gaps.mean() + half:+.1f}]"
    return f"**{text}**" if abs(gaps.mean()) > half else text


def markdown(rows: Iterator[list[str]]) -> str:
    header, *lines = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *lines))


@picture
def heat_map(runs: Study) -> Figure:
    """Points of accuracy lost, attacks × selectors: without a defence and with the others, in the mean."""
    attacks = [attack for attack in names(runs, 0) if attack != "none"]
    selectors = names(runs, 2)
    robust = [name for name in names(runs, 1) if name != "fedavg"]
    kinds = {"FedAvg": ["fedavg"], f"mean of {', '.join(robust)}": robust}
    figure, axes = panels(len(kinds), 2, size=(4.6, 1.4 + 0.36 * len(attacks)))
    tables = [
        np.array([[damage(runs, attack, one, aggregators).mean() for one in selectors] for attack in attacks])
        for aggregators in kinds.values()
    ]
    most = max(float(table.max()) for table in tables)
    for place, title, table in zip(axes, kinds, tables, strict=True):
        image = place.imshow(table, aspect="auto", cmap=shades(), vmin=0, vmax=most)
        for row, column in np.ndindex(table.shape):
            tint = "white" if table[row, column] > 0.45 * most else "black"
            place.text(column, row, f"{table[row, column]:.0f}", ha="center", va="center", color=tint, fontsize=8)
        place.grid(visible=False)
        place.set_title(title)
        place.set_xticks(range(len(selectors)), selectors, rotation=25, ha="right")
        place.set_yticks(range(len(attacks)), attacks)
    figure.colorbar(image, ax=axes, pad=0.02).set_label("points of accuracy lost")
    return figure


def main(workspace: Path, file: Path | None) -> None:
    with Store(workspace, create=False) as store:
        runs = study(store.results(sweep=SWEEP, parameters=False))
    if file is not None:
        save_figure(heat_map(runs), file)
    seeds = len(next(iter(runs.values())))
    print(f"{len(names(runs, 0))} attacks ({', '.join(names(runs, 0))}), {seeds} seeds\n")
    for title, rows in (
        ("Accuracy in the last round, %", scores(runs)),
        ("Points lost, averaged over aggregators", worse_than_random(runs)),
        ("Attackers among those that trained", participation(runs)),
        ("Marked pictures taken for the attackers' class, %", backdoors(runs, workspace)),
    ):
        print(f"## {title}\n\n{markdown(rows)}\n", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "runs"), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
