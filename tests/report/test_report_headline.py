"""The headline: who is best, by how much, how sure; and what a notebook shows of it."""

from __future__ import annotations

import math

import pytest

from muster.report.compare import Options, compare
from muster.report.headline import headlines, standings


def headline(comparison):
    """What is said of the only problem."""
    (said,) = headlines(comparison)
    return said


def runs(made, scores):
    """Two rounds a run; `scores` has the final accuracies of each method, one a seed."""
    return [
        made(name, seed, [0.1, score], selection={"method": name})
        for name, own in scores.items()
        for seed, score in enumerate(own)
    ]


def test_the_best_is_named_with_its_lead(made):
    said = headline(compare(runs(made, {"random": [0.5, 0.6], "oort": [0.7, 0.8], "terraform": [0.6, 0.7]})))
    assert said == [
        "oort is best with 75.0 % accuracy, 10.0 points ahead of terraform.",
        "The baseline random reaches 55.0 %.",
        "Ahead of random in 2 of 2 seeds: too few to be sure, it takes at least 7.",
    ]


def test_of_a_loss_the_smallest_is_best(made):
    comparison = compare(runs(made, {"random": [0.5], "oort": [0.7]}), Options(metric="loss"))
    assert [standing.case.name for standing in standings(comparison.alone, comparison.options)] == [
        "oort",
        "random",
    ]
    first, last = headline(comparison)
    assert first == "oort is best with 0.3000 loss, 0.2000 ahead of random."
    assert last.startswith("One seed: ")


def test_two_that_look_equal_share_the_place(made):
    said = headline(compare(runs(made, {"random": [0.5], "oort": [0.50001]})))
    assert said[0] == "oort and random share the first place: 50.0 %."


def test_many_seeds_make_sure(made):
    seeds = range(8)
    sure = {"random": [0.5 + seed / 100 for seed in seeds], "oort": [0.6 + seed / 100 for seed in seeds]}
    assert "more than chance explains (p ≤ 0.00781)" in headline(compare(runs(made, sure)))[-1]
    unsure = {"random": [0.5] * 8, "oort": [0.5 + (-1) ** seed * (seed + 2) / 100 for seed in seeds]}
    assert "which chance explains as well" in headline(compare(runs(made, unsure)))[-1]


def test_one_case(made):
    assert headline(compare(runs(made, {"oort": [0.7]}))) == [
        "oort reaches 70.0 % accuracy.",
        "One seed: nothing is known about the spread.",
    ]


def test_what_was_not_measured_is_not_best(made):
    found = runs(made, {"random": [0.5], "oort": [0.7]})
    for record in found[1].records:
        record.metrics["accuracy"] = math.nan
    found[1].__dict__.pop("metrics", None)
    assert headline(compare(found))[0] == "random reaches 50.0 % accuracy."


@pytest.fixture
def unequal_work(made):
    """Oort is better by round, and worse by training: it trains twice as many clients. Eight seeds."""
    return [
        made(name, seed, [0.2, end + seed / 100], selections=[[ids]] * 2, selection={"method": name})
        for seed in range(8)
        for name, end, ids in (("random", 0.6, [0, 1]), ("oort", 0.7, [0, 1, 2, 3]))
    ]


def test_at_equal_work_the_headline_says_what_the_tables_say(unequal_work):
    assert headline(compare(unequal_work))[0].startswith("oort is best with 73.5 % accuracy, ")
    options = Options(at="client_trainings", sort=True)
    comparison = compare(unequal_work, options)
    assert headline(comparison) == [
        "random is best with 63.5 % accuracy after 4 client trainings, 43.5 points ahead of oort.",
        "Ahead of oort in 8 of 8 seeds: more than chance explains (p ≤ 0.00781).",
    ]
    assert [case.name for case in comparison.cases] == ["random", "oort"], "sorted by the same"
    scores = comparison.tables["scores"].column("accuracy")
    assert [standing.score for standing in standings(comparison.alone, options)] == pytest.approx(
        [cell.value for cell in scores]
    )


def test_of_several_problems_each_says_how_sure_it_is(made):
    found = [
        made(name, seed, [0.1, end], selection={"method": name}, partition={"alpha": alpha})
        for alpha, best in ((0.1, "oort"), (1.0, "random"))
        for seed in range(2)
        for name in ("random", "oort")
        for end in [0.7 if name == best else 0.6]
    ]
    first, second = headlines(compare(found))
    assert first[0].endswith("0.1: oort is best with 70.0 % accuracy, 10.0 points ahead of random.")
    assert second[0].endswith("1.0: random is best with 70.0 % accuracy, 10.0 points ahead of oort.")
    assert first[-1] == "Ahead of random in 2 of 2 seeds: too few to be sure, it takes at least 6."
    assert second[-1] == "Ahead of oort in 2 of 2 seeds: too few to be sure, it takes at least 6."


def test_sorted_cases_without_a_score_come_last(made):
    found = runs(made, {"random": [0.5], "oort": [0.7], "terraform": [0.6]})
    late = made("late", 0, [math.nan, 0.9], selection={"method": "late"})
    comparison = compare([late, *found], Options(at="round=1", sort=True))
    assert comparison.cases[-1].name == "late"
    assert compare([late, *found], Options(sort=True)).cases[0].name == "late"


def test_cases_without_a_common_seed_are_not_called_one_seed(made):
    own = [made("random", seed, [0.1, 0.5], selection={"method": "random"}) for seed in (0, 1)]
    theirs = [made("oort", seed, [0.1, 0.7], selection={"method": "oort"}) for seed in (2, 3)]
    assert headline(compare([*own, *theirs]))[-1] == (
        "oort and random share no seed with a value: whether that is chance, only the same seeds can tell, "
        "at least 6."
    )


def test_without_correction_the_headline_corrects_nothing(made):
    seeds = range(6)
    scores = {
        name: [end + seed / 100 for seed in seeds]
        for name, end in (("random", 0.5), ("oort", 0.7), ("terraform", 0.6))
    }
    assert headline(compare(runs(made, scores)))[-1].endswith("too few to be sure, it takes at least 7.")
    plain = headline(compare(runs(made, scores), Options(correction="none")))[-1]
    assert plain == "Ahead of random in 6 of 6 seeds: more than chance explains (p ≤ 0.0312)."


# --- notebooks -------------------------------------------------------------------------------------------


def test_a_result_is_short_in_a_notebook(made):
    result = made("<b>x</b>", accuracies=[at / 3000 for at in range(2000)], clients=500)
    shown = result._repr_html_()
    assert len(shown) < 3000
    assert "&lt;b&gt;x&lt;/b&gt;" in shown
    assert "66.6 %" in shown
    assert "<svg" in shown
    assert repr(result) == "Result('<b>x</b>': 2000 rounds, accuracy 0.6663)"


def test_a_comparison_is_short_in_a_notebook(made):
    comparison = compare(runs(made, {f"method-{n}": [0.5 + n / 100, 0.6] for n in range(40)}))
    shown = comparison._repr_html_()
    assert len(shown) < 15_000
    assert "is best with" in shown
    assert "and 28 more cases" in shown
    assert len(repr(comparison)) < 1000


def test_a_picture_shows_itself(made):
    assert made().plot()._repr_png_().startswith(b"\x89PNG")


@pytest.mark.parametrize("accuracies", [[], [0.5]])
def test_hardly_anything_to_show(made, accuracies):
    assert "rounds" in made(accuracies=accuracies)._repr_html_()
    assert repr(made(accuracies=accuracies))


def test_a_best_that_has_trained_more_is_judged_at_equal_work_too(run_of):
    """`busy` trains twice as many clients a round: at the end 0.9, after as many trainings as `calm` only 0.5."""
    runs = [run_of("calm", seed, [0.3, 0.5, 0.6, 0.7], selections=[[0, 1]] * 4) for seed in range(2)]
    runs += [run_of("busy", seed, [0.4, 0.5, 0.8, 0.9], selections=[[0, 1, 2, 3]] * 4) for seed in range(2)]
    ((first, *others),) = headlines(compare(runs))
    assert first.startswith("busy is best with 90.0 %")
    assert others[-1] == (
        "Not at equal work: busy has trained 2.00 times as many clients as the method with the fewest; after "
        "equally many calm is best with 70.0 %, and busy has 50.0 %."
    )
    ((_, *others),) = headlines(compare(runs, Options(at="client_trainings")))
    assert "equal work" not in " ".join(others)


def test_equal_runs_are_not_said_to_be_ahead(run_of):
    ((first, second),) = headlines(compare([run_of(name, seed, [0.5]) for name in "ab" for seed in range(3)]))
    assert first == "a and b share the first place: 50.0 %."
    assert second == "a and b are equal in every seed."
