"""Whole comparisons of made-up runs: cases, tables, marks, remarks and formats."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from muster.core.errors import ConfigError, OutputError
from muster.report.compare import Options, compare, render, write_comparison
from muster.report.compare.comparison import PROBLEM_TABLES
from muster.report.compare.sections import censored
from muster.report.tables import Mark
from muster.server.ledger import Costs

NAN = math.nan


@pytest.fixture
def runs(run_of):
    """Random selection trains two clients a round, oort four: it is better by round, worse by training."""
    slow = [run_of("random", seed, [0.2, 0.4, 0.6 + seed / 100, 0.7 + seed / 100]) for seed in range(3)]
    greedy = [
        run_of("oort", seed, [0.3, 0.5, 0.65 + seed / 100, 0.8 - seed / 100], selections=[[0, 1, 2, 3]] * 4)
        for seed in range(3)
    ]
    return [*slow, *greedy]


def values(table, title):
    return [cell.value for cell in table.column(title)]


# --- tables ------------------------------------------------------------------------------------------------------


def test_scores(runs):
    table = compare(runs).tables["scores"]
    assert values(table, "case") == ["random", "oort"]
    assert values(table, "seeds") == [3, 3]
    assert values(table, "accuracy") == pytest.approx([0.71, 0.79])
    # As many client trainings as random has in all, 8, are two of oort's rounds.
    assert values(table, "after 8 client trainings") == pytest.approx([0.71, 0.5])
    assert [cell.mark for cell in table.column("accuracy")] == [Mark.SECOND, Mark.BEST]
    assert [cell.mark for cell in table.column("after 8 client trainings")] == [Mark.BEST, Mark.SECOND]
    assert values(table, "trainings") == [8, 16]
    assert values(table, "sent") == [640, 1280]


def test_last_and_at(runs):
    assert values(compare(runs, Options(last=2)).tables["scores"], "accuracy") == pytest.approx([0.66, 0.725])
    at = compare(runs, Options(at="round=2")).tables["scores"]
    assert values(at, "accuracy") == pytest.approx([0.4, 0.5])
    assert at.title == "Scores after 2 rounds"
    equal = compare(runs, Options(at="client_trainings")).tables
    assert values(equal["scores"], "accuracy") == pytest.approx([0.71, 0.5])
    assert equal["significance"].column("difference")[0].value == pytest.approx(-0.21)


def test_three_accuracies_worst_client_and_worst_group_stand_beside_each_other(run_of):
    metrics = {
        "client_accuracy_mean": 0.6,
        "participant_accuracy": 0.7,
        "client_accuracy_worst": 0.1,
        "client_accuracy_worst_tenth": 0.2,
        "worst_group_accuracy": 0.3,
    }
    table = compare([run_of(name, 0, [0.5], metrics=metrics) for name in ("random", "oort")]).tables["scores"]
    titles = [column.title for column in table.columns]
    assert titles[2:-2] == [
        "accuracy",
        "after 2 client trainings",
        "clients' own data",
        "participants only",
        "worst client",
        "worst tenth of clients",
        "worst group",
    ]


def test_the_last_iteration_stands_beside_them_where_some_run_trains_again(run_of):
    metrics = {"participant_accuracy": 0.7, "last_iteration_accuracy": 0.8}
    once = [run_of(name, 0, [0.5], metrics=metrics) for name in ("random", "oort")]
    table = compare(once).tables["scores"]
    assert "last iteration only" not in [column.title for column in table.columns]
    once[1].records[0].trainings *= 2
    again = compare(once).tables["scores"]
    assert values(again, "last iteration only") == pytest.approx([0.8, 0.8])
    assert any("last training" in note for note in again.notes)


def test_budgets_by_hand(runs):
    table = compare(runs).tables["budgets"]
    assert values(table, "after 4 rounds") == pytest.approx([0.71, 0.79])
    assert values(table, "after 8 client trainings") == pytest.approx([0.71, 0.5])
    assert values(table, "after 640 B") == pytest.approx([0.71, 0.5])
    assert values(table, "area per round") == pytest.approx([(0.2 + 0.4 + 0.61) / 3, (0.3 + 0.5 + 0.66) / 3])
    # From oort's first evaluation, after 4 trainings, to 8: random holds 0.4, then 0.61; oort 0.3.
    assert values(table, "area per client training") == pytest.approx([(0.4 + 0.61) / 2, 0.3])
    assert not any("virtual" in column.title for column in table.columns)


def test_virtual_seconds_are_compared_where_all_have_them(run_of):
    timed = Costs(2, 0, 0, 0, 80, 80, 0.0, 5.0)
    runs = [run_of("random", 0, [0.1, 0.2], costs=timed), run_of("oort", 0, [0.3, 0.4], costs=timed)]
    assert values(compare(runs).tables["budgets"], "after 10.0 virtual s") == [0.2, 0.4]
    mixed = compare([runs[0], run_of("oort", 0, [0.3, 0.4])])
    assert any("per virtual second" in remark for remark in mixed.remarks)


def test_targets_are_censored_not_imputed(runs):
    table = compare(runs, Options(targets=(0.71,))).tables["targets"]
    assert table.title == "To reach accuracy ≥ 71.0 %"
    never, always = table.column("rounds")
    # Seeds 1 and 2 of random reach 0.71 in round 4, seed 0 stops at 0.70 after 4 rounds.
    assert (never.value, never.above, never.note) == (4.0, True, "2 of 3 reached")
    assert (always.value, always.above) == (4.0, False)
    assert [cell.mark for cell in table.column("rounds")] == [None, None]


def test_without_a_target_it_is_the_baselines_end(runs):
    tables = compare(runs, Options(baseline="oort")).tables
    assert tables["targets"].title == "To reach accuracy ≥ 79.0 % (mean of oort at the end)"
    two = compare(runs, Options(targets=(0.3, 0.5))).tables
    assert [name for name in two if name.startswith("targets")] == ["targets", "targets-2"]


def test_a_bound_is_below_the_mean_whatever_the_missing_values_are():
    cell = censored([3.0, NAN], [10.0, 10.0])
    assert (cell.value, cell.spread, cell.above, cell.note) == (6.5, None, True, "1 of 2 reached")
    assert censored([NAN, NAN], [10.0, 20.0]).value == 15.0
    assert censored([3.0, 5.0], [10.0, 10.0]).above is False


def test_participation_and_overhead(run_of):
    asked = Costs(2, 4, 40, 30, 80 + 160, 80 + 16, 0.002)
    runs = [
        run_of("random", 0, [0.1] * 4, selections=[[0, 1], [2, 3], [0, 1], [2, 3]]),
        run_of("oort", 0, [0.1] * 4, costs=asked, asks=[(["loss"], 4, 4)], disclosed={"the loss": 4}),
    ]
    tables = compare(runs).tables
    assert values(tables["participation"], "Gini") == [0.0, 0.5]
    assert values(tables["participation"], "coverage") == [1.0, 0.5]
    assert values(tables["participation"], "longest wait") == [2, 5]
    overhead = tables["overhead"]
    assert values(overhead, "asks") == [0, 1]
    assert values(overhead, "extra down") == [0, 160]
    assert values(overhead, "extra up") == [0, 16]
    assert values(overhead, "samples probed") == [0, 30]
    assert "whole round" not in [column.title for column in overhead.columns], "nobody measured it"
    assert values(overhead, "disclosed besides the model update") == ["nothing", "the loss (4 a round)"]


@pytest.mark.parametrize("shuffle", range(5))
def test_the_order_of_results_changes_no_number(runs, shuffle):
    def by_case(results):
        comparison = compare(results, Options(baseline="random"))
        return {
            name: {row[0].value: [(cell.value, cell.spread, cell.mark) for cell in row] for row in table.rows}
            for name, table in comparison.tables.items()
        }

    mixed = random.Random(shuffle).sample(runs, len(runs))
    assert by_case(mixed) == by_case(runs)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(finals=st.lists(st.lists(st.floats(0, 1), min_size=2, max_size=2), min_size=2, max_size=4))
def test_the_best_mark_is_on_the_largest_mean(run_of, finals):
    results = [run_of(f"m{n}", seed, [end]) for n, own in enumerate(finals) for seed, end in enumerate(own)]
    cells = compare(results, Options(tables=("scores",))).tables["scores"].column("accuracy")
    shown = [f"{100 * cell.value:.1f}" for cell in cells]
    best = {text for text, cell in zip(shown, cells, strict=True) if cell.mark is Mark.BEST}
    assert best == (set() if len(set(shown)) == 1 else {max(shown, key=float)})


# --- cases and baselines -----------------------------------------------------------------------------------------


def test_the_baseline_is_random_else_the_first(runs, run_of):
    assert compare(runs[::-1]).baseline.name == "random"
    others = [run_of(name, 0, [0.1]) for name in ("oort", "divfl")]
    assert compare(others).baseline.name == "oort"
    assert compare(others, Options(baseline="divfl")).baseline.name == "divfl"
    with pytest.raises(ConfigError, match="no case is called 'ort'"):
        compare(others, Options(baseline="ort"))


def test_by_pools_what_is_not_named(run_of):
    results = [
        run_of(name, seed, [0.1 * seed + lr], training={"lr": lr})
        for name in ("random", "oort")
        for seed in (0, 1)
        for lr in (0.1, 0.2)
    ]
    assert len(compare(results).cases) == 4
    pooled = compare(results, Options(by=("selection.method",)))
    assert [(case.name, len(case.runs)) for case in pooled.cases] == [("random", 4), ("oort", 4)]
    assert values(pooled.tables["scores"], "runs") == [4, 4]
    assert any("differ in training.lr: the spread is not over seeds alone" in remark for remark in pooled.remarks)
    by_rate = compare(results, Options(by=("training.lr", "selection.method")))
    assert [case.name for case in by_rate.cases][:2] == ["lr=0.1, random", "lr=0.2, random"]
    with pytest.raises(ConfigError, match=r"no run has the setting 'training\.rate'"):
        compare(results, Options(by=("training.rate",)))


def test_sorted_best_first(runs):
    assert [case.name for case in compare(runs, Options(sort=True)).cases] == ["oort", "random"]
    assert [case.name for case in compare(runs, Options(sort=True, metric="loss")).cases] == ["oort", "random"]


def test_one_case_alone_is_shown_without_tests(run_of):
    comparison = compare([run_of("random", seed, [0.1]) for seed in range(2)])
    assert "significance" not in comparison.tables
    assert [cell.mark for cell in comparison.tables["scores"].column("accuracy")] == [None]


def test_centralised_training_is_compared_by_rounds_only(run_of):
    alone = [run_of("central", seed, [0.9, 0.95], costs=Costs(1, 9, 99, seconds=1.0)) for seed in range(2)]
    for run in alone:
        run.config["selection"]["method"] = "random"  # the default that nobody asked for
    together = [*alone, *(run_of("oort", seed, [0.5, 0.6]) for seed in range(2))]
    comparison = compare(together)
    assert comparison.baseline.name == "central", "the first, not a random selection that there was not"
    assert values(comparison.tables["scores"], "after 4 client trainings") == pytest.approx(
        [NAN, 0.6], nan_ok=True
    )
    assert values(comparison.tables["budgets"], "after 2 rounds") == [0.95, 0.6]
    assert values(comparison.tables["budgets"], "after 320 B") == pytest.approx([NAN, 0.6], nan_ok=True)
    assert math.isnan(comparison.tables["targets"].column("client trainings")[0].value)
    assert math.isnan(comparison.tables["participation"].column("Gini")[0].value)
    assert math.isnan(comparison.tables["overhead"].column("extra up")[0].value)
    assert "No federation: central." in " ".join(comparison.remarks)
    assert "budgets" in compare(alone).tables


# --- what a reader is warned of ----------------------------------------------------------------------------------


def remarks(results, **options):
    return " ".join(compare(results, Options(**options)).remarks)


def test_nothing_to_warn_of(runs):
    assert remarks(runs) == ""


def test_other_seeds_rounds_and_problems_are_flagged(run_of):
    seeds = [run_of("random", seed, [0.1]) for seed in (0, 1)] + [run_of("oort", 0, [0.1])]
    assert "Not the same seeds (random: 0, 1; oort: 0)" in remarks(seeds)
    assert "One seed of each" in remarks([run_of(name, 0, [0.1]) for name in ("random", "oort")])
    rounds = [run_of("random", 0, [0.1, 0.2]), run_of("oort", 0, [0.1])]
    assert "Different numbers of rounds (random: 2; oort: 1)" in remarks(rounds)
    other = [
        run_of(name, 0, [0.1], partition={"alpha": alpha}) for name, alpha in (("random", 0.1), ("oort", 1.0))
    ]
    assert "Not the same problem: partition.alpha differ" in remarks(other)
    rates = [run_of(name, 0, [0.1], training={"lr": lr}) for name, lr in (("random", 0.1), ("oort", 1.0))]
    assert "Beside methods these settings differ: training.lr" in remarks(rates)


def test_unfinished_runs_are_left_out_and_named(run_of):
    begun = run_of("oort", 1, [0.9], complete=False)
    begun.config["rounds"] = 5
    results = [run_of("random", 0, [0.1, 0.2]), run_of("oort", 0, [0.1, 0.3]), begun]
    assert values(compare(results).tables["scores"], "accuracy") == [0.2, 0.3]
    assert "oort seed 1: 1 of 5 rounds" in remarks(results)
    taken = compare(results, Options(unfinished=True))
    assert "oort" in " ".join(taken.remarks)
    assert sum(len(case.runs) for case in taken.cases) == 3
    with pytest.raises(ConfigError, match="nothing to compare: 1 runs, none finished"):
        compare([begun])


def test_repeats_count_once(run_of):
    results = [run_of("random", 0, [0.1]), run_of("random", 0, [0.1]), run_of("oort", 0, [0.2])]
    assert values(compare(results).tables["scores"], "seeds") == [1, 1]
    assert "1 of the runs repeat a case and seed" in remarks(results)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"metric": "acuracy"}, "no run has measured 'acuracy'"),
        ({"also": ("f2",)}, "no run has measured 'f2'"),
        ({"last": 0}, "bad value for 'last': 0"),
        ({"correction": "bonferroni"}, "unknown correction"),
        ({"tables": ("score",)}, "unknown table 'score'"),
        ({"at": "rounds=3"}, "unknown unit of work 'rounds'"),
        ({"at": "round=three"}, "bad amount of work"),
    ],
)
def test_mistakes(runs, options, problem):
    with pytest.raises(ConfigError, match=problem):
        compare(runs, Options(**options))


def test_other_metrics_stand_beside_the_one_that_is_compared(run_of):
    runs = [run_of(name, 0, [0.5, 0.6], metrics={"f1": 0.25, "recall": 0.5}) for name in ("random", "oort")]
    assert "f1" not in [column.title for column in compare(runs).tables["scores"].columns]
    table = compare(runs, Options(also=("recall", "f1", "accuracy"))).tables["scores"]
    titles = [column.title for column in table.columns]
    assert titles.index("recall") + 1 == titles.index("f1")
    assert titles.count("accuracy") == 1
    assert [cell.value for cell in table.column("f1")] == [0.25, 0.25]


# --- formats -----------------------------------------------------------------------------------------------------


def test_every_format_has_every_table(runs, tmp_path):
    comparison = compare(runs, Options(last=2))
    made = [name for name in PROBLEM_TABLES if name != "time"]  # no run has any
    assert list(comparison.tables) == made
    for suffix in ("md", "tex", "csv", "json"):
        write_comparison(comparison, tmp_path / "new" / f"c.{suffix}")
    data = json.loads((tmp_path / "new" / "c.json").read_text())
    (problem,) = data["problems"]
    assert list(problem["tables"]) == made
    assert (problem["name"], problem["baseline"]) == ("", "random")
    assert problem["cases"] == [{"name": "random", "seeds": [0, 1, 2]}, {"name": "oort", "seeds": [0, 1, 2]}]
    assert data["options"]["last"] == 2
    assert (tmp_path / "new" / "c.md").read_text().count("\n### ") == len(made) - 1
    assert (tmp_path / "new" / "c.tex").read_text().count(r"\begin{table}") == len(made)
    lines = (tmp_path / "new" / "c.csv").read_text().splitlines()
    assert {tuple(line.split(",")[:2]) for line in lines[1:]} == {("", name) for name in made}


def test_markdown_of_scores(runs):
    options = Options(tables=("scores",), spread="deviation")
    text = render(compare(runs[:2] + runs[3:5], options), "markdown")
    assert text.splitlines()[2:6] == [
        "| case | seeds | accuracy, % | after 8 client trainings, % | trainings | sent, kB |",
        "|---|---|---|---|---|---|",
        "| random | 2 | <ins>70.5 ± 0.7</ins> | **70.5 ± 0.7** | 8 | 0.6 |",
        "| oort | 2 | **79.5 ± 0.7** | <ins>50.0</ins> | 16 | 1.3 |",
    ]
    assert "Mean ± standard deviation over seeds." in text
    with_intervals = render(compare(runs[:2] + runs[3:5], Options(tables=("scores",))), "markdown")
    assert with_intervals.splitlines()[4:6] == [
        "| random | 2 | <ins>70.5 [64.1, 76.9]</ins> | **70.5 [64.1, 76.9]** | 8 | 0.6 |",
        "| oort | 2 | **79.5 [73.1, 85.9]** | <ins>50.0</ins> | 16 | 1.3 |",
    ]
    assert "its 95 % interval over seeds (Student's)" in with_intervals


def test_files_that_cannot_be_written(runs, tmp_path):
    comparison = compare(runs)
    with pytest.raises(ConfigError, match=r"unknown format of .*x\.docx"):
        write_comparison(comparison, tmp_path / "x.docx")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        write_comparison(comparison, tmp_path / "file" / "x.md")
