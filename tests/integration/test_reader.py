"""A reader's first contribution: a selector, an aggregator, a filter and a signal are four files, nothing else.

The files are put into the rooms of a copy of the package, which then runs them by name from an experiment file. If
any of them had to be announced elsewhere (a list of names, a schema, a table), the run would not know it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import muster
from muster.experiment.components import build_data

FILES = {
    "signals/classes_held.py": '''
"""How many classes a client holds."""

import numpy as np

from muster.signals.base import Signal, signals


@signals.register("classes_held")
class ClassesHeld(Signal):
    """How many classes the client has samples of."""

    name = "classes_held"
    discloses = "how many classes the client holds (one number)"

    def measure(self, client):
        return np.array([len(np.unique(client.labels))])
''',
    "selection/most_classes.py": '''
"""Train the clients with the most classes."""

from dataclasses import dataclass

import numpy as np

from muster.selection.base import Ask, Selector, Train, selectors
from muster.signals.classes_held import ClassesHeld


@selectors.register("most-classes")
@dataclass
class MostClasses(Selector):
    """Ask everybody how many classes it holds, and train those with the most."""

    clients_per_round: int

    def needs(self):
        return (ClassesHeld(),)

    def round(self, fed):
        held = yield Ask(fed.available, (ClassesHeld(),))
        ranks = np.lexsort((fed.rng.permutation(len(held)), -held["classes_held"]))
        yield Train(np.sort(held.clients[ranks[: self.clients_per_round]]))
''',
    "updates/halve.py": '''
"""Halved movements."""

from dataclasses import dataclass

from muster.updates.filters import Filter, Filtered, Side, filters


@filters.register("halve")
@dataclass(frozen=True)
class Halve(Filter):
    """Goes half as far."""

    side: Side = "client"

    discloses = "nothing new, in a test"

    def apply(self, updates, spec, draws):
        updates.movements[:, spec.trainable] /= 2
        return Filtered(updates, changed=len(updates))
''',
    "aggregation/equal_mean.py": '''
"""The plain mean."""

from dataclasses import dataclass

import numpy as np

from muster.aggregation.base import Aggregator, aggregators


@aggregators.register("equal-mean")
@dataclass(kw_only=True)
class EqualMean(Aggregator):
    """Every update counts the same."""

    def aggregate(self, current, updates, spec):
        return self.averaged(current, updates, np.full(len(updates), 1 / len(updates)), spec)
''',
}

EXPERIMENT = """
rounds = 2

[partition]
scheme = "dirichlet"
clients = 8
alpha = 0.2

[training]
epochs = 1

[selection]
method = "most-classes"
clients_per_round = 3

[aggregation]
method = "equal-mean"

[[filters]]
method = "halve"
"""


@pytest.fixture
def package(tmp_path):
    """Where a copy of the package lies that has four files more."""
    folder = tmp_path / "copy"
    shutil.copytree(Path(muster.__file__).parent, folder / "muster", ignore=shutil.ignore_patterns("__pycache__"))
    for name, content in FILES.items():
        assert not (folder / "muster" / name).exists()
        (folder / "muster" / name).write_text(content.lstrip(), encoding="utf-8")
    return folder


def muster_of(package: Path, *arguments: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"}
    command = [sys.executable, "-m", "muster.cli.main", *arguments]
    done = subprocess.run(
        command, env=environment, cwd=package, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_four_files_run_by_name_and_need_no_other_edit(package):
    (package / "experiment.toml").write_text(EXPERIMENT, encoding="utf-8")
    muster_of(package, "run", "experiment.toml", "--out", "result", "--workers", "0")
    rounds = json.loads((package / "result" / "selections.json").read_text(encoding="utf-8"))
    ledger = json.loads((package / "result" / "ledger.json").read_text(encoding="utf-8"))

    data = build_data(muster.load(package / "experiment.toml"))
    held = np.array([len(np.unique(data.client(client)[1])) for client in range(data.clients)])
    assert len(rounds) == 2
    for record in rounds:
        (training,) = record["trainings"]
        chosen = training["clients"]
        assert len(chosen) == 3
        assert held[chosen].min() >= np.delete(held, chosen).max(), "the selector, and the signal that it asks for"
        assert training["weights"] == [1 / 3] * 3, "the aggregator"
        assert training["filtered"] == {"client halve": {"seen": 3, "changed": 3, "refused": 0}}, "the filter"
    for told in ledger["disclosed"]:
        assert told["how many classes the client holds (one number)"] == 8
        assert told["nothing new, in a test"] == 3


@pytest.mark.slow
def test_the_command_line_lists_them(package):
    listed = muster_of(package, "list")
    for name in ("classes_held", "most-classes", "halve", "equal-mean"):
        assert name in listed
