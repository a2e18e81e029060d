"""Which runs belong together, and what they are called."""

from __future__ import annotations

import numpy as np
import pytest

from muster.core.parameters import ParameterSpec
from muster.results.cases import cases, differing, flat
from muster.selection.history import History
from muster.server.ledger import Costs, Ledger
from muster.server.record import RoundRecord
from muster.server.result import Result


def run(name="a", seed=0, rounds=1, **config) -> Result:
    return Result(
        parameters=np.zeros(1, dtype=np.float32),
        records=[RoundRecord(number + 1, metrics={"accuracy": 0.5}) for number in range(rounds)],
        ledger=Ledger([Costs() for _ in range(rounds)], [{} for _ in range(rounds)]),
        history=History(1),
        spec=ParameterSpec(()),
        name=name,
        config={"name": name, "seed": seed, **config},
    )


def test_runs_that_differ_in_the_seed_are_one_case_with_seeds_in_order():
    found = cases([run(seed=2, rounds=3), run("b", training={"lr": 1}), run(seed=0, rounds=3)])
    assert [(case.name, case.seeds) for case in found] == [("a", [0, 2]), ("b", [0])]


def test_of_the_same_run_the_longer_one_counts():
    (case,) = cases([run(rounds=4), run(rounds=2)])
    assert [len(result.records) for result in case.runs] == [4]


def test_the_same_seed_under_another_name_is_another_case():
    found = cases([run("local", engine={"workers": 0}, x={}), run("flower", flower={"nodes": 3}, x={})])
    assert [case.name for case in found] == ["local", "flower"]


def test_engines_that_were_asked_for_are_different_cases():
    kinds = [run(engine={"kind": kind, "workers": 2}, training={"lr": 1}) for kind in ("vectorised", "inline")]
    assert [case.name for case in cases(kinds)] == ["a (kind=vectorised)", "a (kind=processes)"]


def test_equal_names_get_what_they_differ_in():
    found = cases([run(training={"lr": 0.1, "epochs": 2}), run(training={"lr": 0.5, "epochs": 2})])
    assert [case.name for case in found] == ["a (lr=0.1)", "a (lr=0.5)"]


@pytest.mark.parametrize(
    ("names", "name"),
    [
        (("terraform-seed0", "terraform-seed1"), "terraform"),
        (("terraform s1", "terraform s2"), "terraform"),
        (("classes_0", "classes_1"), "classes"),
        (("x", "y"), "x"),
    ],
)
def test_names_that_carry_the_seed(names, name):
    (case,) = cases([run(own, seed, rounds=1, training={"lr": 1}) for seed, own in enumerate(names)])
    assert case.name == name


def test_what_differs():
    one, two = {"seed": 1, "training": {"lr": 0.1, "epochs": 2}}, {"seed": 2, "training": {"lr": 0.1}}
    assert flat(one) == {"seed": 1, "training.lr": 0.1, "training.epochs": 2}
    assert differing([one, two]) == ["seed", "training.epochs"]
    assert differing([one]) == []
