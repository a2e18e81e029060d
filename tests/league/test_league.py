"""The league: plans, resuming, tuning on seeds of its own, guests, and everything on one page."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from muster.aggregation.base import aggregators
from muster.core.component import Population
from muster.core.errors import ConfigError
from muster.engine.trial import small_spec
from muster.experiment.components import build_data
from muster.experiment.parts import build_parts
from muster.league.evidence import evidence_of
from muster.league.file import from_values, load_league
from muster.league.outcome import choose, failures, run_league
from muster.league.page import write_page as write_pages
from muster.league.planning import LeaguePlan, guest_class, guests_of, plan, points, seeds_in_words
from muster.report.measured import BEGIN, END
from muster.results.store import Store
from muster.selection.base import selectors

VALUES: dict[str, Any] = {
    "name": "little",
    "last": 1,
    "tuning_seeds": [100],
    "scales": {"smoke": {"seeds": 2, "rounds": 2}, "tuned": {"seeds": 1, "rounds": 2, "tuning": True}},
    "problems": [
        {
            "name": f"alpha {alpha}",
            "cohort": 4,
            "rounds": 9,
            "data": {"source": "digits"},
            "partition": {"scheme": "dirichlet", "clients": 12, "alpha": alpha},
            "model": {"name": "logistic"},
            "training": {"lr": 0.1, "batch_size": 32},
            **({"devices": {"model": "lognormal"}} if alpha == 1.0 else {}),
        }
        for alpha in (0.5, 1.0)
    ],
    "tables": [
        {
            "name": "Selection",
            "compares": "selection",
            "baseline": "random",
            "leave_out": {
                name: "not here" for name in selectors.names() if name not in ("random", "terraform", "fedcs")
            },
            "requires": {"fedcs": "devices"},
            "changes": {"fedcs": {"selection": {"candidates": 1.0, "deadline": 1e6}}},
            "grid": {"terraform": {"min_clients": [1, 2]}},
        },
    ],
}

MODULE = '''
from dataclasses import dataclass

from muster.selection import Plan, Selector, Train, View


@dataclass
class First(Selector):
    """Always the clients with the smallest ids."""

    clients_per_round: int

    def round(self, fed: View) -> Plan:
        yield Train(fed.available[: self.clients_per_round])
'''


def write_page(outcome, path, command):
    return write_pages(outcome, evidence_of(outcome), path, command)[0]


@pytest.fixture
def league():
    return from_values(VALUES)


# --- the file that comes with Muster -----------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["smoke", "small", "full"])
def test_the_shipped_league_is_sound(scale):
    planned = plan(load_league(), scale)
    runs = [*planned.tuning_runs(), *planned.runs({})]
    for problem, count in planned.seeds.items():
        assert {r.experiment.seed for r in planned.runs({}) if r.problem == problem} == set(range(count))
    assert all(run.experiment.fingerprint for run in runs)
    assert len({(r.table, r.problem, r.method, r.experiment.seed, repr(r.point)) for r in runs}) == len(runs)


def test_every_method_is_in_the_shipped_league_or_left_out_with_a_reason():
    selection, aggregation = load_league().tables
    assert {*selection.methods, *selection.leave_out} == set(selectors.names())
    assert {*aggregation.methods, *aggregation.leave_out} == set(aggregators.names())
    assert all(selection.leave_out.values())
    assert len(load_league().problems) >= 8


@pytest.mark.parametrize("name", ["digits", "digits, phones", "digits, phones that come and go"])
def test_embedded_problems_can_be_divided_with_every_seed(name):
    planned = plan(load_league(), "full", problems=[name])
    for run in planned.runs({}):
        if run.method == "random":
            assert build_data(run.experiment).clients == run.experiment.partition["clients"]


@pytest.mark.parametrize("name", ["digits", "digits, phones", "digits, phones that come and go"])
def test_embedded_problems_fit_all_of_their_methods(name):
    """Everything that can be seen before round 1 is in order, and no default makes a method another one."""
    for run in plan(load_league(), "full", problems=[name], seeds=1).runs({}):
        parts = build_parts(run.experiment, workers=0)
        try:
            server = parts.server()
            server.check(run.experiment.rounds)
            assert server.cautions(run.experiment.rounds) == []
        finally:
            parts.engine.close()


def test_no_grid_of_the_shipped_league_makes_a_method_another():
    """Else tuning may choose such a point: with a cohort of 15, 12 candidates are size-weighted sampling."""
    registries: dict[str, Any] = {"selection": selectors, "aggregation": aggregators}
    league = load_league()
    kinds = {table.name: table.compares for table in league.tables}
    for run in all_tuning_runs(league):
        options = dict(getattr(run.experiment, kind := kinds[run.table]))
        method = registries[kind].build(options.pop("method"), options)
        clients = run.experiment.partition.get("clients", 24)  # PACS is divided by a table
        population = Population(
            np.arange(100, 100 + clients),
            10,
            small_spec(10, hidden=250),
            run.experiment.rounds,
            attributes=2,
            has_devices=True,
            cohort=run.experiment.selection["clients_per_round"],
            timed_availability=True,
            late_answers=False,
        )
        method.check(population)
        assert method.cautions(population) == [], f"{run.method} with {run.point} in {run.problem}"


def all_tuning_runs(league):
    """Also of problems whose data are not on this machine."""
    seeds = {problem.name: 1 for problem in league.problems}
    return LeaguePlan(league, "full", seeds, league.problems, {}, {}).tuning_runs()


def test_a_control_is_tuned_like_the_method_that_it_controls():
    selection, _ = load_league().tables
    assert all(
        selection.grid_for("retrain-random", problem.name) == selection.grid_for("terraform", problem.name) != {}
        for problem in load_league().problems
    )


# --- plans -------------------------------------------------------------------------------------------------------


def test_rows_are_those_that_a_problem_is_for(league):
    planned = plan(league, "smoke")
    (table,) = league.tables
    without, with_devices = planned.problems
    assert planned.rows(table, without) == ["random", "terraform"]
    assert planned.rows(table, with_devices) == ["random", "fedcs", "terraform"]
    runs = planned.runs({("Selection", "alpha 0.5", "terraform"): {"min_clients": 2}})
    assert len(runs) == 2 * (2 + 3)
    settings = {(run.problem, run.method): run.experiment.selection for run in runs}
    assert settings["alpha 0.5", "terraform"] == {
        "method": "terraform",
        "clients_per_round": 4,
        "min_clients": 2,
    }
    assert settings["alpha 1.0", "fedcs"]["deadline"] == 1e6
    assert {run.experiment.rounds for run in runs} == {2}, "no more than the scale allows"


def test_a_method_may_need_a_larger_cohort():
    (table,) = VALUES["tables"]
    small, large = VALUES["problems"][0], VALUES["problems"][1] | {"cohort": 5}
    league = from_values(
        VALUES | {"problems": [small, large], "tables": [table | {"least_cohort": {"terraform": 5}}]}
    )
    planned = plan(league, "smoke")
    rows = [planned.rows(league.tables[0], problem) for problem in planned.problems]
    assert rows == [["random"], ["random", "fedcs", "terraform"]]


def test_a_problem_may_have_a_number_of_seeds_of_its_own():
    league = from_values(VALUES | {"scales": {"smoke": {"seeds": 1, "seeds_of": {"alpha 1.0": 3}}}})
    planned = plan(league, "smoke")
    assert planned.seeds == {"alpha 0.5": 1, "alpha 1.0": 3}
    seeds = [(run.problem, run.experiment.seed) for run in planned.runs({}) if run.method == "random"]
    assert seeds == [("alpha 0.5", 0), ("alpha 1.0", 0), ("alpha 1.0", 1), ("alpha 1.0", 2)]
    assert plan(league, "smoke", seeds=2).seeds == {"alpha 0.5": 2, "alpha 1.0": 2}
    assert [seeds_in_words(counts) for counts in ([1], [5, 5], [10, 5])] == ["1 seed", "5 seeds", "5 to 10 seeds"]


def test_tuning_has_seeds_of_its_own(league):
    assert plan(league, "smoke").tuning_runs() == []
    tuning = plan(league, "tuned").tuning_runs()
    assert {run.experiment.seed for run in tuning} == {100}
    assert [run.point["min_clients"] for run in tuning] == [1, 2, 1, 2]
    assert points({"a": [1, 2], "b": [3]}) == [{"a": 1, "b": 3}, {"a": 2, "b": 3}]
    assert points({}) == [{}]


def test_a_problem_may_have_a_grid_of_its_own_and_a_grid_options_of_other_sections():
    (table,) = VALUES["tables"]
    grids = {
        "grid": {"terraform": {"algorithm.mu": [0.1]}},
        "grid_in": {"alpha 1.0": {"fedcs": {"candidates": [0.5, 1.0]}}},
    }
    changes = {"terraform": {"algorithm": {"method": "fedprox"}}}
    league = from_values(VALUES | {"tables": [table | grids | {"changes": changes}]})
    tuning = plan(league, "tuned").tuning_runs()
    assert [(run.problem, run.method, dict(run.point)) for run in tuning] == [
        ("alpha 0.5", "terraform", {"algorithm.mu": 0.1}),
        ("alpha 1.0", "fedcs", {"candidates": 0.5}),
        ("alpha 1.0", "fedcs", {"candidates": 1.0}),
        ("alpha 1.0", "terraform", {"algorithm.mu": 0.1}),
    ]
    assert tuning[0].experiment.algorithm == {"method": "fedprox", "mu": 0.1}
    assert tuning[0].experiment.selection == {"method": "terraform", "clients_per_round": 4}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"tables": []}, "the league has no tables"),
        ({"sceles": {}}, "unknown key 'sceles'"),
        ({"tuning_seeds": [1]}, "overlap"),
        ({"tuning_seeds": []}, "there are no tuning_seeds"),
        ({"scales": {"smoke": {"seeds": 1, "seeds_of": {"alpha": 2}}}}, "names the problem 'alpha'"),
        ({"scales": {"smoke": {"seeds": 1, "seeds_of": {"alpha 0.5": 101}}}}, "the 101 seeds .* overlap"),
        ({"scales": {"smoke": {"seeds": 1, "seeds_of": {"alpha 0.5": 0}}}}, "has 0 seeds"),
        ({"scales": {"smoke": {"seeds": 1, "problems": ["alpha"]}}}, "names the problem 'alpha'"),
        ({"tables": [VALUES["tables"][0] | {"compares": "models"}]}, "compares 'models'"),
        ({"tables": [VALUES["tables"][0] | {"grid": {"teraform": {}}}]}, "unknown selection method 'teraform'"),
        ({"tables": [VALUES["tables"][0] | {"grid_in": {"alpha": {}}}]}, "a grid for the problem 'alpha'"),
        (
            {"tables": [VALUES["tables"][0] | {"grid_in": {"alpha 0.5": {"teraform": {}}}}]},
            "unknown selection method 'teraform'",
        ),
        ({"problems": [*VALUES["problems"], VALUES["problems"][0]]}, "the same name"),
        ({"problems": [{"name": "x", "cohort": 4}]}, "problem 'x' of the league does not say which data"),
        ({"problems": [VALUES["problems"][0] | {"data": {"path": "x"}}]}, "does not say which data"),
        ({"problems": [VALUES["problems"][0] | {"data": "digits"}]}, "does not say which data"),
        ({"problems": [{"name": "x"}]}, "missing key 'problems\\[0\\].cohort'"),
    ],
)
def test_mistakes_in_the_file(change, problem):
    with pytest.raises(ConfigError, match=problem):
        from_values(VALUES | change)


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("First", "bad selector 'First'"),
        ("no_such_module:First", "cannot import 'no_such_module'"),
        ("json:JSONDecoder", "is not a selector"),
    ],
)
def test_guests_that_are_none(word, problem):
    with pytest.raises(ConfigError, match=problem):
        guest_class(word)


def test_choices_that_are_none(league):
    with pytest.raises(ConfigError, match="no scale 'huge'"):
        plan(league, "huge")
    with pytest.raises(ConfigError, match="no problem 'beta'"):
        plan(league, problems=["beta"], scale="smoke")
    with pytest.raises(ConfigError, match="no table 'gamma'"):
        plan(league, tables=["gamma"], scale="smoke")
    with pytest.raises(ConfigError, match="reach into those for tuning"):
        plan(league, "smoke", seeds=101)


def test_checkpoints_are_rare_and_no_part_of_what_is_run(league):
    run = plan(league, "smoke").runs({})[0].experiment
    assert run.checkpoint == {"every": 10}
    assert run.fingerprint == replace(run, checkpoint={}).fingerprint


def test_one_table_alone():
    league = load_league()
    alone = plan(league, "smoke", tables=["Aggregation"])
    assert {run.table for run in alone.runs({})} == {"Aggregation"}
    assert {run.table for run in plan(league, "smoke").runs({})} == {"Selection", "Aggregation"}


# --- runs --------------------------------------------------------------------------------------------------------


@pytest.fixture
def guest(tmp_path, monkeypatch):
    (tmp_path / "league_guest.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "league_guest:First"
    sys.modules.pop("league_guest", None)


def test_two_guests_of_one_name_are_told_apart(guest, tmp_path):
    (tmp_path / "league_other.py").write_text(MODULE)
    try:
        both = guests_of([guest, "league_other:First", guest])
        assert list(both) == ["league_guest:First", "league_other:First"]
        assert both["league_guest:First"] is not both["league_other:First"]
        assert list(guests_of([guest])) == ["First"]
    finally:
        sys.modules.pop("league_other", None)


def test_a_league_from_end_to_end(league, tmp_path, guest):
    planned = plan(league, "tuned", guests=[guest])
    with Store(tmp_path / "store") as store:
        outcome = run_league(planned, store, jobs=2, workers=0)
        again = run_league(planned, store, jobs=2, workers=0)
        assert len(store.runs()) == 4 + 7, "four to tune; two problems with three methods, one with devices more"
    assert outcome.complete
    assert not outcome.failed
    assert failures(outcome) is None
    (table,) = outcome.tables
    assert table.comparison.ranking.methods == ("random", "terraform", "First")
    assert [judged.baseline.name for judged in table.comparison.judged] == ["random", "random"]
    assert set(table.by_unit) == {"round", "client_trainings", "bytes"}, "one problem alone has devices"
    assert set(outcome.chosen) == {("Selection", name, "terraform") for name in ("alpha 0.5", "alpha 1.0")}
    assert again.chosen == outcome.chosen
    assert (again.tables[0].comparison.ranking.ranks == table.comparison.ranking.ranks).all()
    with Store(tmp_path / "store") as store:
        judged = run_league(planned, store, only_known=True)
        assert len(store.runs()) == 11, "nothing was run"
    assert (judged.tables[0].comparison.ranking.ranks == table.comparison.ranking.ranks).all()
    page = write_page(outcome, tmp_path / "page.md", "muster league").read_text()
    for words in (
        "## The short answer",
        "## Selection",
        "### Ranks",
        "at equal bytes",
        "### Gains over random",
        "### Besides accuracy",
        "### Chosen options",
        "`muster league`",
        "the seed 100,",
        "not here",
        "page-problems.md",
    ):
        assert words in page
    rows = [line for line in page.splitlines() if line.startswith("| Selection | terraform |")]
    assert all("| `min_clients = 1, 2` | `min_clients = " in row for row in rows), (
        "what was tried, and what was chosen"
    )
    assert sorted(name for row in rows for name in row.rsplit("|", 2)[1].strip().split("; ")) == [
        "alpha 0.5",
        "alpha 1.0",
    ]
    assert "Selection: alpha 1.0" in (tmp_path / "page-problems.md").read_text()
    assert all((tmp_path / f"page-selection-{kind}.png").exists() for kind in ("ranks", "gains"))
    whole = write_page(outcome, tmp_path / "page.html", "muster league").read_text()
    assert whole.count("<img") >= 2
    assert "Selection: alpha 1.0" in whole
    with pytest.raises(ConfigError, match=r"unknown format of .*page\.txt"):
        write_page(outcome, tmp_path / "page.txt", "")


@pytest.fixture
def tell(made, monkeypatch, tmp_path):
    """The outcome of a league whose results are made up: methods reach their numbers, plus a bit by seed."""

    def judged(planned, reached):
        results = {
            run.experiment.fingerprint: made(
                run.method, seed := run.experiment.seed, [0.2, reached[run.method] + seed / 50]
            )
            for run in planned.runs({})
        }
        monkeypatch.setattr("muster.league.outcome._run", lambda *_, **__: (results, {}, True))
        with Store(tmp_path / "store") as store:
            return run_league(planned, store)

    return judged


@pytest.fixture
def told(league, tell):
    """Terraform gains 0.1 with every seed."""
    return tell(plan(league, "smoke"), {"random": 0.5, "terraform": 0.6, "fedcs": 0.4})


def test_the_evidence_has_differences_to_the_baseline_and_every_federation(told):
    found = evidence_of(told)
    assert [problem.name for problem in found.problems] == ["alpha 0.5", "alpha 1.0"]
    assert found.problems[0].profile["log10 of clients"] == pytest.approx(math.log10(12))
    assert found.problems[0].profile["cohort, share of clients"] == pytest.approx(4 / 12)
    assert found.problems[0].gains["terraform"].value == pytest.approx(0.1)
    assert found.problems[0].gains["terraform"].clearly_better
    assert found.problems[1].gains["fedcs"].clearly_worse


def test_the_page_says_first_what_follows(told, tmp_path):
    page = write_page(told, tmp_path / "page.md", "muster league").read_text()
    answer = page.split("\n## Selection\n")[0]
    # +10.0 in both problems: Terraform is what to try, with its price in disclosure and the part of chance.
    assert "- Which to take: try `terraform` (+10.0 [+10.0, +10.0] points; clients tell nothing)" in answer
    assert "of 2 methods, 0.1 would by chance alone" in answer
    assert "above zero: `terraform` +10.0" in answer
    assert "clearly worse in none: `terraform` (2 of 2)" in answer
    assert "### Selection: which method?\n\n3 methods, compared with `random`." in answer
    assert "| alpha 1.0 | 2 | 12 × " in answer
    assert "fedcs" in page.split("Without a rank")[1].split(".")[0]
    assert "interval over problems (Student's)" in page


def test_where_nobody_gains_the_baseline_is_what_to_take(league, tell, tmp_path):
    outcome = tell(plan(league, "smoke"), {"random": 0.5, "terraform": 0.5, "fedcs": 0.4})
    page = write_page(outcome, tmp_path / "page.md", "muster league").read_text()
    assert "- Which to take: `random`. On average over problems no method gained over it clearly.\n" in page
    assert "try what was clearly better" not in page, "nobody was, anywhere"
    assert "| none | none |" in page, "no gain is the largest"
    assert "`random` is number" not in page, "it is among the first three"


def test_problems_with_other_numbers_of_seeds_are_judged_with_theirs(tell, tmp_path):
    league = from_values(VALUES | {"scales": {"smoke": {"seeds": 2, "seeds_of": {"alpha 1.0": 4}}}})
    outcome = tell(plan(league, "smoke"), {"random": 0.5, "terraform": 0.6, "fedcs": 0.4})
    assert outcome.tables[0].seeds == {"alpha 0.5": 2, "alpha 1.0": 4}
    assert not outcome.short
    assert [problem.seeds for problem in evidence_of(outcome).problems] == [2, 4]
    page = write_page(outcome, tmp_path / "page.md", "muster league").read_text()
    assert "- 2 to 4 seeds: intervals within a problem are wide" in page
    assert "| alpha 0.5 | 2 | 12 × " in page
    assert "| alpha 1.0 | 4 | 12 × " in page
    assert "2 problems, 2 to 4 seeds each" in page
    details = (tmp_path / "page-problems.md").read_text()
    assert "4 seeds; intervals: Student's." in details.split("Selection: alpha 1.0")[1]


def test_a_page_of_aggregators_speaks_of_aggregation(tell, tmp_path):
    table = {
        "name": "Aggregation",
        "compares": "aggregation",
        "baseline": "fedavg",
        "leave_out": {name: "not here" for name in aggregators.names() if name not in ("fedavg", "median")},
    }
    planned = plan(from_values(VALUES | {"tables": [*VALUES["tables"], table]}), "smoke", tables=["Aggregation"])
    outcome = tell(planned, {"fedavg": 0.5, "median": 0.6})
    page = write_page(outcome, tmp_path / "league-aggregation.md", "muster league --table Aggregation").read_text()
    assert page.startswith("# The league 'little': Aggregation, smoke\n")
    assert "2 methods, compared with `fedavg`, all with `random` selection." in page
    assert "### Gains over fedavg" in page
    assert "Ranks are the same at equal rounds" in page
    assert "Gini" not in page, "it is the same for all: nobody selects"
    assert sorted(path.name for path in tmp_path.glob("*.png")) == [
        f"league-aggregation-aggregation-{kind}.png" for kind in ("gains", "ranks")
    ]


def test_words_of_people_stay(told, tmp_path):
    (tmp_path / "images").mkdir()
    page = tmp_path / "docs.md"
    page.write_text(f"# Mine\n\nbefore\n\n{BEGIN}\nold\n{END}\n\nafter\n")
    text = write_page(told, page, "muster league").read_text()
    assert text.startswith("# Mine\n\nbefore\n")
    assert text.endswith("after\n")
    assert "old" not in text.split()
    assert "](images/docs-selection-ranks.png)" in text
    assert (tmp_path / "images" / "docs-selection-gains.png").exists()


def test_the_best_point_is_chosen_at_equal_work_and_only_with_all_of_its_seeds(league, made):
    planned = plan(league, "tuned")
    runs = [run for run in planned.tuning_runs() if run.problem == "alpha 0.5"]
    poor, good = (made("terraform", 100, accuracies) for accuracies in ([0.2, 0.3], [0.2, 0.6]))
    keys = [run.experiment.fingerprint for run in runs]
    place = ("Selection", "alpha 0.5", "terraform")
    assert choose(planned, runs, dict(zip(keys, (poor, good), strict=True)))[place] == {"min_clients": 2}
    assert choose(planned, runs, dict(zip(keys, (good, poor), strict=True)))[place] == {"min_clients": 1}
    assert choose(planned, runs, {keys[0]: poor})[place] == {"min_clients": 1}
    assert choose(planned, runs, {}) == {}


def test_methods_that_lack_a_seed_are_not_judged(league, tmp_path, made, monkeypatch):
    """Terraform has lost its second seed in one problem, the baseline in the other."""
    planned = plan(league, "smoke")
    lost = {("alpha 0.5", "terraform", 1), ("alpha 1.0", "random", 1)}
    results = {
        run.experiment.fingerprint: made(run.method, run.experiment.seed, [0.2, 0.6])
        for run in planned.runs({})
        if (run.problem, run.method, run.experiment.seed) not in lost
    }
    monkeypatch.setattr("muster.league.outcome._run", lambda *_, **__: (results, {}, True))
    with Store(tmp_path / "store") as store:
        outcome = run_league(planned, store)
    (table,) = outcome.tables
    (judged,) = table.comparison.judged
    assert judged.name == "alpha 0.5"
    assert [(case.name, case.seeds) for case in judged.cases] == [("random", [0, 1])]
    assert outcome.short == {
        "terraform, alpha 0.5 (Selection)": "1 of 2 seeds have a result, so it is not in the table",
        "random, alpha 1.0 (Selection)": "1 of 2 seeds have a result, so the problem is not in the table",
    }
    page = write_page(outcome, tmp_path / "page.md", "muster league").read_text()
    assert "terraform, alpha 0.5 (Selection): 1 of 2 seeds have a result" in page


def test_runs_that_fail_are_named(league, tmp_path):
    broken = replace(
        league.problems[0],
        sections={
            **league.problems[0].sections,
            "partition": {"scheme": "dirichlet", "clients": 12, "alpha": -1.0},
        },
    )
    planned = plan(replace(league, problems=(broken, league.problems[1])), "smoke", seeds=1)
    with Store(tmp_path / "store") as store:
        outcome = run_league(planned, store, jobs=1, workers=0)
    assert len(outcome.failed) == 2
    assert "random, alpha 0.5, seed 0" in outcome.failed
    (table,) = outcome.tables
    assert [judged.name for judged in table.comparison.judged] == ["alpha 1.0"]
    page = write_page(outcome, tmp_path / "page.md", "muster league").read_text()
    assert "What is missing" in page
    assert "random, alpha 0.5, seed 0: " in page
    assert "2 runs of the league have no result" in str(failures(outcome))
