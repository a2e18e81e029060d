"""Plausible bugs that other tests once let through: each has a test here that sees it.

`tools/planted_bugs.py` plants them one by one in a copy of the source and looks whether its test fails.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from muster.aggregation.fedavg import FedAvg
from muster.aggregation.trimmed_mean import trimmed_mean
from muster.config.experiment import Experiment
from muster.core.errors import MusterError
from muster.data.partition.base import schemes
from muster.data.sources.base import sources
from muster.engine.base import AskOrder, Evaluation, Failed
from muster.engine.runtime import ClientRuntime
from muster.engine.task import ClientTask, Place
from muster.engine.trial import TrialEngine
from muster.engine.wrapped import WrappedEngine
from muster.experiment.parts import build_parts
from muster.privacy.account import Privacy
from muster.selection.base import Ask, Plan, Selector, Train, View
from muster.selection.oort import Oort
from muster.selection.random import RandomSelection
from muster.selection.terraform import split
from muster.server.loop import Server
from muster.server.metrics import client_scores
from muster.signals.base import Replies
from muster.signals.labels import LabelHistogram
from muster.signals.losses import Loss
from muster.updates.guard import Guard
from muster.updates.table import Updates

ROOT = Path(__file__).parents[2]

# --- a client counts as often as it was drawn ------------------------------------------------------------


@dataclass
class Drawn(Selector):
    """Trains clients in an order that is not that of their ids, each with its own multiplicity and weight."""

    options: dict[str, Any]

    def round(self, fed: View) -> Plan:
        yield Train(np.array([3, 0, 2, 1]), **self.options)


class Loses(WrappedEngine):
    """One client never answers."""

    def __init__(self, inner: Any, lost: int) -> None:
        super().__init__(inner)
        self._lost = lost

    def collect(self) -> Iterator[Updates | Failed]:
        for part in self.inner.collect():
            yield Failed(self._lost, "gone")
            yield part.rows(part.clients != self._lost)


@pytest.mark.parametrize("lost", [None, 0, 2])
@pytest.mark.parametrize("name", ["multiplicity", "weights"])
def test_multiplicities_and_weights_stay_with_their_clients(name: str, lost: int | None) -> None:
    given = {3: 4, 0: 1, 2: 7, 1: 2}
    values = np.array(list(given.values()))
    options = {name: values if name == "multiplicity" else values.astype(float)}
    sizes = [10, 10, 10, 10]
    engine: Any = TrialEngine(4, sizes=sizes)
    if lost is not None:
        engine = Loses(engine, lost)
    (training,) = Server(Drawn(options), FedAvg(), engine).run(1).records[0].trainings
    expected = {client: times for client, times in given.items() if client != lost}
    assert training.clients == sorted(expected)
    total = sum(expected.values())
    np.testing.assert_allclose(training.weights, [expected[client] / total for client in sorted(expected)])


# --- randomness ------------------------------------------------------------------------------------------


def test_every_round_draws_its_own_clients() -> None:
    result = Server(RandomSelection(clients_per_round=5), FedAvg(), TrialEngine(40)).run(6)
    cohorts = {tuple(round[0]) for round in result.selections}
    assert len(cohorts) == 6


def test_dropout_differs_between_rounds_and_clients(tiny: Any) -> None:
    """Seeds of the masks: all different, and a function of the place alone."""
    made = tiny()
    parts = build_parts(made, workers=0)
    with parts.engine:
        engine, model = parts.engine, nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 10))
        runtime = ClientRuntime(parts.data, model, engine.training, engine.algorithm, seed=made.seed)
        tasks = [
            ClientTask.of("train", client, Place(round, iteration, 0), lr=0.1)
            for client in range(3)
            for round in range(3)
            for iteration in range(2)
        ]
        seeds = [runtime.dropout_seed(task) for task in tasks]
    assert len(set(seeds)) == len(tasks)
    assert seeds == [runtime.dropout_seed(task) for task in tasks]


# --- the arithmetic of methods ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clients", "ratio", "dropped"),
    [(5, 0.2, 1), (7, 0.2, 1), (9, 0.2, 1), (10, 0.29, 2), (9, 0.3, 2), (3, 0.3, 0)],
)
def test_a_trimmed_mean_drops_the_whole_part_of_the_share(clients: int, ratio: float, dropped: int) -> None:
    # Powers of four: every other number of values dropped gives another mean.
    rows = (4.0 ** np.arange(clients)).astype(np.float32)[:, None]
    kept = rows[dropped : clients - dropped]
    np.testing.assert_allclose(trimmed_mean(rows, ratio), kept.mean(), rtol=1e-6)


def test_of_equally_good_cuts_terraform_takes_the_one_with_more_hard_clients() -> None:
    # Two clusters and one client exactly between: cutting before or after it leaves the same variance.
    magnitudes, sizes = np.array([0.0, 0.0, 1.0, 2.0, 2.0]), np.full(5, 10)
    assert split(magnitudes, sizes, (0.0, 1.0)).tolist() == [2, 3, 4]
    # The same with rounding errors between the two.
    assert split(magnitudes * 0.1 + 0.7, sizes, (0.0, 1.0)).tolist() == [2, 3, 4]


def test_oort_uses_the_exploration_after_its_decay() -> None:
    """Round t explores with ε·decayᵗ: with decay 0.5 half as many already in the first round that exploits."""
    engine = TrialEngine(100, script={"squared_loss": lambda clients, _: 1.0 + clients / 100})
    selector = Oort(
        clients_per_round=10, exploration=0.8, exploration_decay=0.5, exploration_min=0.0, speed="none"
    )
    result = Server(selector, FedAvg(), engine).run(3)
    seen: set[int] = set()
    new = []
    for round in result.selections:
        new.append(len(set(round[0]) - seen))
        seen |= set(round[0])
    # ε: 0.4 in round 1 (nobody is known yet: all are new), 0.2 in round 2, 0.1 in round 3.
    assert new == [10, 2, 1]


# --- the books -------------------------------------------------------------------------------------------


class Silent(WrappedEngine):
    """Half of the clients do not answer questions."""

    def ask(self, order: AskOrder) -> tuple[Replies, list[Failed]]:
        replies, _ = self.inner.ask(order)
        keep = replies.clients % 2 == 0
        silent = [Failed(client, "silent") for client in replies.clients[~keep].tolist()]
        return Replies(replies.clients[keep], {name: rows[keep] for name, rows in replies.values.items()}), silent


class AsksEverybody(Selector):
    def round(self, fed: View) -> Plan:
        yield Ask(fed.available, (Loss(),))
        yield Train(fed.available[:2])


def test_the_model_was_sent_to_everybody_who_was_asked_whoever_answered() -> None:
    engine = TrialEngine(10)
    model = engine.population.spec.bytes
    costs = Server(AsksEverybody(), FedAvg(), Silent(engine)).run(1).ledger.total()
    assert costs.bytes_down == 10 * model + 2 * model
    assert costs.bytes_up == 5 * 4 + 2 * model


class Reports(Selector):
    def round(self, fed: View) -> Plan:
        yield Train(fed.available, report=(LabelHistogram(),))


def test_what_a_refused_client_told_is_spent_all_the_same(tiny: Any) -> None:
    parts = build_parts(tiny(), workers=0)
    # Nobody's update is short enough: all are refused, and all have told their labels.
    with parts.engine:
        server = Server(
            Reports(),
            FedAvg(),
            parts.engine,
            guard=Guard(max_norm=1e-9),
            privacy=Privacy(signals=["label_histogram"], epsilon=1.0),
        )
        result = server.run(2)
    assert all(len(record.trainings[0].rejected) == 12 for record in result.records)
    (spent,) = result.ledger.privacy.spent()
    assert spent.answers == 2


@pytest.mark.parametrize(("clients", "counted"), [(5, 1), (10, 1), (19, 1), (20, 2), (30, 3)])
def test_the_worst_tenth_is_a_tenth(clients: int, counted: int) -> None:
    # Accuracies 0, 1, 4, 9, …: the mean of the worst k tells k.
    correct = np.arange(clients) ** 2
    count = np.full(clients, clients**2)
    nothing: Any = np.zeros((1, 1), dtype=np.int64)
    evaluation = Evaluation(nothing, 0.0, correct, np.zeros(clients), count)
    row = client_scores(evaluation, np.arange(clients))
    assert row["client_accuracy_worst_tenth"] == pytest.approx(np.mean(correct[:counted] / clients**2))


# --- settings --------------------------------------------------------------------------------------------


def skewed(share: float) -> Any:
    dataset = sources.build("spurious-shapes", {"samples": 400})
    options = {"class_skew": (3, 3), "size": 20, "share": share}
    return schemes.build("group-skew", options).divide(dataset, np.random.default_rng(0))


@pytest.mark.parametrize("share", [0.49, 0.0, -1.0, 1.01, float("nan")])
def test_a_majority_is_at_least_half_and_at_most_everything(share: float) -> None:
    with pytest.raises(MusterError, match="majority share"):
        skewed(share)


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_both_ends_of_a_majority_are_allowed(share: float) -> None:
    assert skewed(share).train.clients == 6


SECTIONS: dict[str, Any] = {
    "availability": {"method": "bernoulli", "probability": 0.5},
    "guard": {"max_norm": 1.0},
    "limits": {"max_samples": 10},
    "filters": [{"method": "clip", "norm": 1.0}],
    "pacing": {"method": "over-select"},
}


@pytest.mark.parametrize("section", SECTIONS)
def test_what_changes_results_changes_the_fingerprint(section: str) -> None:
    changed = Experiment(**{section: SECTIONS[section]})
    assert changed.fingerprint != Experiment().fingerprint


# --- the tool itself -------------------------------------------------------------------------------------


def test_every_bug_can_still_be_planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the tool stops at the first place that has changed."""
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    bugs = importlib.import_module("planted_bugs").BUGS
    gone = [b.name for b in bugs if (ROOT / "src/muster" / b.file).read_text(encoding="utf-8").count(b.right) != 1]
    assert not gone
    assert [bug.name for bug in bugs if not (ROOT / bug.tests).is_file()] == []
