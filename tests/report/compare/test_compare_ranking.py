"""Ranks over problems: by hand, against SciPy and scikit-posthocs; and problems, each judged on its own."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import scikit_posthocs
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from scipy.stats import friedmanchisquare

from muster.core.errors import ConfigError
from muster.report.compare import Options, compare, render
from muster.report.compare.across import problems_needed
from muster.report.compare.ranking import alike, critical_difference, friedman_p, nemenyi_p, ranking
from muster.report.gallery import gallery
from muster.report.page import report_page
from muster.report.plots import draw
from muster.report.tables import Better, Mark

#: Problems × methods.
SCORES = np.array(
    [
        [0.86, 0.92, 0.91, 0.89],
        [0.93, 0.95, 0.93, 0.92],
        [0.71, 0.70, 0.75, 0.60],
        [0.55, 0.58, 0.57, 0.52],
        [0.81, 0.83, 0.80, 0.79],
    ]
)
METHODS = ("random", "terraform", "oort", "divfl")


# --- statistics --------------------------------------------------------------------------------------------------


def test_ranks_by_hand():
    found = ranking(METHODS, SCORES, Better.HIGHER)
    assert found.ranks.tolist() == [[4, 1, 2, 3], [2.5, 1, 2.5, 4], [2, 3, 1, 4], [3, 1, 2, 4], [2, 1, 3, 4]]
    np.testing.assert_allclose(found.mean, [2.7, 1.4, 2.1, 3.8])
    assert found.wins.tolist() == [0, 4, 1, 0]
    assert found.decidable


def test_a_small_loss_is_good_and_ties_are_shared():
    found = ranking(("a", "b"), np.array([[0.1, 0.3], [0.1 + 0.2, 0.3]]), Better.LOWER)
    assert found.ranks.tolist() == [[1, 2], [1.5, 1.5]], "0.1 + 0.2 is 0.3 on paper"
    assert found.wins.tolist() == [2, 1]
    assert math.isnan(found.friedman_p)


@settings(max_examples=60, deadline=None)
@given(npst.arrays(np.int64, st.tuples(st.integers(3, 8), st.integers(3, 6)), elements=st.integers(0, 5)))
def test_against_scipy_and_scikit_posthocs(scores):
    found = ranking(tuple(map(str, range(scores.shape[1]))), scores / 10, Better.HIGHER)
    if (found.ranks == found.ranks[:, :1]).all():
        assert found.friedman_p == 1.0
    else:
        assert found.friedman_p == pytest.approx(friedmanchisquare(*scores.T).pvalue)
    oracle = scikit_posthocs.posthoc_nemenyi_friedman(scores).to_numpy()
    p = nemenyi_p(found.mean, found.problems)
    off = ~np.eye(len(p), dtype=bool)
    np.testing.assert_allclose(p[off], oracle[off], atol=1e-8)


@pytest.mark.parametrize(
    ("methods", "quantile"),
    [(2, 1.960), (3, 2.343), (4, 2.569), (5, 2.728), (6, 2.850), (7, 2.949), (8, 3.031), (9, 3.102), (10, 3.164)],
)
def test_the_critical_values_are_those_of_demsars_table(methods, quantile):
    problems = 14
    expected = quantile * math.sqrt(methods * (methods + 1) / (6 * problems))
    assert critical_difference(methods, problems) == pytest.approx(expected, abs=1e-3)


def test_the_critical_difference_is_where_p_is_five_per_cent():
    limit = critical_difference(4, 10)
    assert nemenyi_p(np.array([1.0, 1.0 + limit, 2.0, 3.0]), 10)[0, 1] == pytest.approx(0.05)


def test_everything_tied_and_too_little_to_test():
    assert friedman_p(np.full((4, 3), 2.0)) == 1.0
    assert math.isnan(friedman_p(np.array([[1.0, 2.0, 3.0]])))
    assert math.isnan(critical_difference(1, 5))


def test_problems_that_it_takes():
    for methods in (2, 4, 10, 30):
        needed = problems_needed(methods)
        assert critical_difference(methods, needed) <= methods - 1 < critical_difference(methods, needed - 1)


def alike_by_all_pairs(mean, critical):
    """The textbook: every interval of places whose ends are close enough, without those inside another."""
    ranks = np.sort(mean)
    close = [
        (first, last)
        for first in range(len(ranks))
        for last in range(first + 1, len(ranks))
        if ranks[last] <= ranks[first] + critical
    ]
    return [(a, b) for a, b in close if not any((c <= a and b <= d) and (a, b) != (c, d) for c, d in close)]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(2, 20), min_size=1, max_size=8), st.integers(0, 12))
def test_bars_join_what_cannot_be_told_apart(ranks, critical):
    mean = np.array(ranks) / 2
    assert alike(mean, critical / 2) == alike_by_all_pairs(mean, critical / 2)


# --- comparisons -------------------------------------------------------------------------------------------------


@pytest.fixture
def runs(run_of):
    """Terraform is the best at α = 0.3, random at α = 3; every run's number follows from its place."""
    ends = {("random", 0.3): 0.5, ("terraform", 0.3): 0.7, ("oort", 0.3): 0.6}
    ends |= {("random", 3.0): 0.9, ("terraform", 3.0): 0.8, ("oort", 3.0): 0.85}
    return [
        run_of(method, seed, [0.1, end + seed / 100], partition={"alpha": alpha})
        for (method, alpha), end in ends.items()
        for seed in range(3)
    ]


def test_each_problem_is_judged_on_its_own(runs):
    comparison = compare(runs)
    first, second = comparison.judged
    assert [first.name, second.name] == ["alpha=0.3", "alpha=3.0"]
    for judged, best, target in ((first, "terraform", 51.0), (second, "random", 91.0)):
        scores = judged.tables["scores"]
        cells = dict(zip([row[0].value for row in scores.rows], scores.column("accuracy"), strict=True))
        assert [name for name, cell in cells.items() if cell.mark is Mark.BEST] == [best]
        assert judged.baseline.name == "random"
        assert {run.config["partition"]["alpha"] for run in judged.baseline.runs} == {
            float(judged.name.removeprefix("alpha="))
        }
        assert f"≥ {target:.1f} %" in judged.tables["targets"].title
        tests = judged.tables["significance"]
        assert [row[0].value for row in tests.rows] == ["terraform", "oort"]
        assert tests.column("p, Holm")[0].value == pytest.approx(0.5), "two comparisons, not five"
    assert not comparison.remarks


def test_the_table_over_problems(runs):
    comparison = compare(runs)
    table = comparison.across["ranks"]
    assert [column.title for column in table.columns] == [
        *("method", "alpha=0.3", "alpha=3.0", "mean rank", "wins", "against random", "better, worse")
    ]
    assert [cell.value for cell in table.column("mean rank")] == [2.0, 2.0, 2.0]
    assert [cell.value for cell in table.column("wins")] == [1, 1, 0]
    assert [cell.value for cell in table.column("against random")][1:] == pytest.approx([0.05, 0.025])
    assert [cell.value for cell in table.column("better, worse")] == ["–", "1, 1", "1, 1"]
    assert "it takes at least" in " ".join(table.notes)
    assert comparison.ranking is not None
    assert comparison.ranking.methods == ("random", "terraform", "oort")


@pytest.mark.parametrize("spread", ["interval", "deviation"])
def test_it_is_said_what_spreads_are_over(runs, spread):
    table = compare(runs, Options(spread=spread)).across["ranks"]
    assert len(table.column("alpha=0.3")[1].values) == 3, "seeds"
    assert len(table.column("mean rank")[1].values) == len(table.column("against random")[1].values) == 2, (
        "problems"
    )
    assert "over seeds" in table.notes[0]
    assert "The spread of mean ranks and differences is over problems, not over seeds." in table.notes
    unlike = [run for run in runs if run.name != "random" or run.config["partition"]["alpha"] == 0.3]
    notes = compare(unlike, Options(spread=spread)).across["ranks"].notes
    assert "The spread of mean ranks is over problems, not over seeds." in notes, (
        "no common baseline, no differences"
    )


def test_a_method_that_a_problem_lacks_has_no_rank(runs):
    partial = [run for run in runs if run.name != "oort" or run.config["partition"]["alpha"] == 0.3]
    comparison = compare(partial)
    table = comparison.across["ranks"]
    assert math.isnan(table.column("mean rank")[2].value)
    assert math.isnan(table.column("alpha=3.0")[2].value)
    assert "Without a rank, because a problem lacks them: oort." in table.notes
    assert comparison.ranking.methods == ("random", "terraform")


def test_a_method_that_lacks_seeds_has_no_rank(runs):
    """Oort has only its best seed at α = 0.3, where it would be the second."""
    partial = [run for run in runs if run.name != "oort" or run.config["partition"]["alpha"] == 3.0]
    lucky = next(run for run in reversed(runs) if run.name == "oort" and run.config["partition"]["alpha"] == 0.3)
    comparison = compare([*partial, lucky])
    table = comparison.across["ranks"]
    assert comparison.ranking.methods == ("random", "terraform")
    assert [cell.value for cell in table.column("wins")][:2] == [1, 1]
    assert math.isnan(table.column("mean rank")[2].value)
    assert table.column("alpha=0.3")[2].value == pytest.approx(0.62), "what there is, is shown"
    assert "Without a rank, because others have more seeds: oort (1 of 3 seeds in alpha=0.3)." in table.notes
    assert not any("a problem lacks them" in note for note in table.notes)


def test_without_two_methods_that_have_all_seeds_there_are_no_ranks(runs):
    one_seed = [run for run in runs if run.name == "terraform" or run.config["seed"] == 0]
    comparison = compare(one_seed)
    assert comparison.ranking is None
    first, second = comparison.across["ranks"].notes
    assert first.startswith("No ranks: ")
    assert "random (1 of 3 seeds in alpha=0.3, 1 of 3 seeds in alpha=3.0)" in second
    with pytest.raises(ConfigError, match="not two methods that all of them have with all seeds"):
        draw("ranks", one_seed)


def test_a_repeated_run_keeps_nobody_from_a_rank(runs):
    assert compare([*runs, runs[0]]).ranking.methods == ("random", "terraform", "oort")


def test_ranks_at_equal_work(run_of):
    """Oort is better by round, and worse by training: it trains twice as many clients."""
    results = [
        run_of(name, 0, [0.2, end], partition={"alpha": alpha}, selections=[ids] * 2)
        for alpha in (1, 2)
        for name, end, ids in (("random", 0.6, [0, 1]), ("oort", 0.7, [0, 1, 2, 3]))
    ]
    at_end, equal = compare(results), compare(results, Options(at="client_trainings"))
    assert at_end.ranking.mean.tolist() == [2, 1]
    assert equal.ranking.mean.tolist() == [1, 2]
    words = "Not at equal work: at the end, oort 2.00 times as many client trainings"
    assert [any(note.startswith(words) for note in found.across["ranks"].notes) for found in (at_end, equal)] == [
        True,
        False,
    ]


def test_equal_work_needs_no_words(runs):
    assert not any("equal work" in note for note in compare(runs).across["ranks"].notes)


def test_together_and_by_are_one_table(runs):
    assert len(compare(runs, Options(together=True)).alone.cases) == 6
    assert len(compare(runs, Options(by=("selection.method",))).alone.cases) == 3
    assert "Not the same problem" in " ".join(compare(runs, Options(together=True)).remarks)


def test_baselines_and_lonely_problems(runs, run_of):
    comparison = compare([*runs, run_of("oort", 0, [0.1, 0.2], partition={"alpha": 9})], Options(baseline="oort"))
    assert [judged.baseline.name for judged in comparison.judged] == ["oort"] * 3
    assert "Problems with one method only, which are compared with nothing: alpha=9." in comparison.remarks
    with pytest.raises(ConfigError, match="no case is called 'ort'") as told:
        compare(runs, Options(baseline="ort"))
    assert "Possible: oort, random, terraform" in str(told.value)  # a case of several problems is named once
    with pytest.raises(ConfigError, match="there are no ranks: all runs work on one problem"):
        compare(runs[:3], Options(tables=("ranks",)))
    with pytest.raises(ConfigError, match=r"no run has the setting 'partition\.beta'"):
        compare(runs, Options(problem=("partition.beta",)))


def test_every_format_has_every_problem(runs):
    comparison = compare(runs, Options(tables=("scores", "ranks")))
    text = render(comparison, "markdown")
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        *("## alpha=0.3", "### Scores at the end", "## alpha=3.0", "### Scores at the end"),
        *("## Over all problems", "### Accuracy over 2 problems"),
    ]
    latex = render(comparison, "latex")
    for label in ("scores-alpha-0.3", "scores-alpha-3.0", "ranks"):
        assert rf"\label{{tab:{label}}}" in latex
    assert {tuple(line.split(",")[:2]) for line in render(comparison, "csv").splitlines()[1:]} == {
        ("alpha=0.3", "scores"),
        ("alpha=3.0", "scores"),
        ("", "ranks"),
    }
    data = json.loads(render(comparison, "json"))
    assert [problem["name"] for problem in data["problems"]] == ["alpha=0.3", "alpha=3.0"]
    assert data["ranking"]["mean_ranks"] == [2.0, 2.0, 2.0]


def test_the_page_has_problems_and_ranks(runs, monkeypatch):
    monkeypatch.setattr("muster.report.html.figure", lambda draw, alt: f"[{alt}]")
    page = report_page(runs)
    assert "3 methods on 2 problems" in page
    assert page.index("Accuracy over 2 problems") < page.index("<h3>alpha=0.3</h3>") < page.index("<h3>alpha=3.0<")
    assert "Mean ranks over 2 problems" in page
    shown = [picture.problem for picture in gallery(compare(runs)) if picture.section == "Curves"]
    assert set(shown) == {"alpha=0.3", "alpha=3.0"}


def test_the_critical_difference_picture(runs):
    (axes,) = draw("ranks", runs).axes
    words = [text.get_text() for text in axes.texts]
    assert any("too few problems" in word for word in words)
    for name in ("random", "terraform", "oort"):
        assert any(name in word and "2.00" in word for word in words)
    with pytest.raises(ConfigError, match="there are no ranks"):
        draw("ranks", runs[:9])
