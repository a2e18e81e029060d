"""The attack study: what its sweep runs, and its tables from made-up results."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from muster.core.parameters import spec_of
from muster.experiment.sweep import load_sweep
from muster.selection.history import History
from muster.server.ledger import Costs, Ledger
from muster.server.record import RoundRecord, TrainingRecord
from muster.server.result import Result
from muster.updates.attacks.base import attackers_of

FOLDER = Path(__file__).parents[2] / "studies" / "attacks"


@pytest.fixture(scope="module")
def tables():
    spec = importlib.util.spec_from_file_location("attack_tables", FOLDER / "tables.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_attackers_are_those_of_the_tables(tables):
    made = load_sweep(FOLDER / "attacks.toml").experiments()
    assert {run.partition["clients"] for run in made} == {tables.CLIENTS}
    assert {step["share"] for run in made for step in run.filters} == {tables.SHARE}
    assert {len(run.title.split(", ")) for run in made} == {3}
    assert len(made) == 8 * 4 * 4 * 3


def run(name: str, seed: int, accuracy: float, clients: list[int]) -> Result:
    ledger = Ledger()
    ledger.rounds[:], ledger.disclosed[:] = [Costs()], [{}]
    training = TrainingRecord(clients, [1 / len(clients)] * len(clients))
    return Result(
        np.zeros(2, dtype=np.float32),
        [RoundRecord(1, [training], metrics={"accuracy": accuracy})],
        ledger,
        History(50),
        spec_of(nn.Linear(1, 1)),
        name=name,
        config={"seed": seed},
    )


def study(accuracy: dict[str, float], seeds: tuple[int, ...] = (0, 1)) -> list[Result]:
    """Every selector loses a point per seed; high-loss takes attackers only, the others none."""
    made = []
    for (attack, value), seed in ((item, seed) for item in accuracy.items() for seed in seeds):
        attackers = list(attackers_of(50, 0.2, seed))
        others = sorted(set(range(50)) - set(attackers))[:10]
        for aggregator in ("fedavg", "median"):
            made.append(run(f"{attack}, {aggregator}, random", seed, value - 0.01 * seed, others))
            made.append(run(f"{attack}, {aggregator}, high-loss", seed, 0.8 * value - 0.01 * seed, attackers))
    return made


def test_points_lost_and_attackers_chosen(tables):
    runs = tables.study(study({"none": 0.8, "sign-flip": 0.5}))
    assert tables.damage(runs, "sign-flip", "random", ["fedavg", "median"]) == pytest.approx([30.0, 30.0])
    assert tables.damage(runs, "sign-flip", "high-loss", ["median"]) == pytest.approx([24.0, 24.0])
    header, row = tables.worse_than_random(runs)
    assert header == ["attack", "random: points lost", "high-loss: further points"]
    assert row == ["sign-flip", "30.0 ± 0.0", "**-6.0 [-6.0, -6.0]**"]
    assert list(tables.participation(runs))[1:] == [["none", "0%", "100%"], ["sign-flip", "0%", "100%"]]
    assert list(tables.scores(runs))[1] == ["none", "fedavg", "79.5 ± 0.7", "63.5 ± 0.7"]


def test_attacks_and_aggregators_that_are_not_complete_are_left_out(tables):
    results = study({"none": 0.8, "ipm": 0.6, "alie": 0.7})
    runs = tables.study(
        result for result in results if not result.name.endswith("random") or "alie" not in result.name
    )
    assert tables.names(runs, 0) == ["none", "ipm"]
    runs = tables.study(result for result in results if result.name != "alie, median, random")
    assert tables.names(runs, 1) == ["fedavg"]


def test_the_picture_shows_every_attack_and_selector(tables):
    figure = tables.heat_map(tables.study(study({"none": 0.8, "sign-flip": 0.5, "alie": 0.7})))
    left = figure.axes[0]
    assert [label.get_text() for label in left.get_yticklabels()] == ["sign-flip", "alie"]
    assert [text.get_text() for text in left.texts] == ["30", "24", "10", "8"]
