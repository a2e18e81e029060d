"""Problems: what belongs together, and what it is called."""

from __future__ import annotations

import pytest

from muster.config.identity import problem_sections
from muster.results.problems import distinct_names, problems


@pytest.fixture
def run(made):
    def make(method, seed=0, *, name="", alpha=0.3, selection=None, **config):
        return made(
            name or method,
            seed,
            [0.1],
            data={"source": "digits"},
            partition={"scheme": "dirichlet", "alpha": alpha},
            selection={"method": method, **(selection or {})},
            **config,
        )

    return make


def shown(found):
    return {problem.name: [(case.name, case.seeds) for case in problem.cases] for problem in found}


def test_as_a_sweep_names_its_runs(run):
    results = [
        run(method, seed, name=f"{method}, alpha={alpha}", alpha=alpha)
        for seed in (0, 1)
        for method in ("random", "oort")
        for alpha in (0.3, 3.0)
    ]
    assert shown(problems(results)) == {
        "alpha=0.3": [("random", [0, 1]), ("oort", [0, 1])],
        "alpha=3.0": [("random", [0, 1]), ("oort", [0, 1])],
    }
    (first, _) = problems(results)
    assert first.full_name(first.cases[0]) == "random, alpha=0.3"


def test_names_that_say_nothing_alike_give_way_to_the_methods(run):
    results = [
        run(method, alpha=alpha, name=f"{prefix}-{method}")
        for method in ("random", "oort")
        for alpha, prefix in ((0.3, "hard"), (3.0, "easy"))
    ]
    assert shown(problems(results)) == {
        "alpha=0.3": [("random", [0]), ("oort", [0])],
        "alpha=3.0": [("random", [0]), ("oort", [0])],
    }


def test_variants_of_a_method_are_told_apart_by_what_they_differ_in(run):
    results = [
        run("terraform", alpha=alpha, name=f"run {alpha} {eta}", selection={"min_clients": eta})
        for alpha in (0.3, 3.0)
        for eta in (2, 4)
    ]
    names = [case.name for problem in problems(results) for case in problem.cases]
    assert names == ["terraform (min_clients=2)", "terraform (min_clients=4)"] * 2


def test_one_problem_has_no_name(run):
    assert shown(problems([run("random"), run("oort")])) == {"": [("random", [0]), ("oort", [0])]}


def test_where_no_problem_has_two_methods_all_are_taken_together(run):
    rates = [run("random", training={"lr": lr}, name=f"lr={lr}") for lr in (0.1, 0.2)]
    assert shown(problems(rates)) == {"": [("lr=0.1", [0]), ("lr=0.2", [0])]}


def test_more_keys_make_more_problems(run):
    results = [
        run(method, selection={"clients_per_round": count}, name=f"{method}, clients_per_round={count}")
        for method in ("random", "oort")
        for count in (5, 10)
    ]
    assert len(problems(results)) == 1
    assert shown(problems(results, ["selection.clients_per_round"])) == {
        "clients_per_round=5": [("random", [0]), ("oort", [0])],
        "clients_per_round=10": [("random", [0]), ("oort", [0])],
    }


def test_centralised_training_is_a_guest_in_every_problem_with_its_data(run):
    results = [run(method, training={"lr": lr}) for method in ("random", "oort") for lr in (0.1, 0.2)]
    alone = run("random", name="all data", training={"mode": "centralised", "lr": 1.0})
    found = shown(problems([alone, *results]))
    assert [[name for name, _ in cases] for cases in found.values()] == [["random", "oort", "all data"]] * 2
    elsewhere = run("random", name="all data", alpha=9.0, training={"mode": "centralised"})
    assert len(problems([elsewhere, *results])) == 3


def test_a_problem_is_what_is_not_the_method(run):
    config = run("oort", training={"lr": 0.1}, guard={"max_norm": 3}, engine={"kind": "inline"}).config
    assert set(problem_sections(config)) == {"rounds", "data", "partition", "training"}


def test_how_far_clients_are_believed_is_the_method(run):
    """With a bound on sample counts and without one, runs stand in one table."""
    results = [run("random"), run("random", name="bounded", limits={"max_samples": 50})]
    assert shown(problems(results)) == {"": [("random", [0]), ("bounded", [0])]}
    assert problem_sections(results[0].config) == problem_sections(results[1].config)


def test_names_have_no_more_words_than_it_takes():
    rows = [
        {"data.source": "digits", "partition.alpha": 0.3, "training.lr": 0.1},
        {"data.source": "digits", "partition.alpha": 3.0, "training.lr": 0.1},
        {"data.source": "mnist", "partition.alpha": 0.3, "training.lr": 0.5},
    ]
    assert distinct_names(rows) == ["digits, alpha=0.3", "digits, alpha=3.0", "mnist"]
    same_words = [{"a.x": 1, "b.x": 2}, {"a.x": 2, "b.x": 1}]
    assert distinct_names(same_words) == ["x=1", "x=2"]
    assert distinct_names([{"a.x": 1}, {"a.x": "1"}]) == ["x=1 #1", "x=1 #2"]
