"""Our numbers beside published ones: hand-made results, so that every cell of the tables is known."""

from __future__ import annotations

import dataclasses
import io
import math
import shlex

import pytest
from rich.console import Console

from muster.papers.entries import Value, entries, entry
from muster.papers.measures import measured
from muster.papers.outcome import outcome
from muster.papers.planning import plan
from muster.papers.report import heading, page, write_pages
from muster.report.render import to_rich

ROUNDS = 6


@pytest.fixture
def table2():
    """Scenario 4 with FedAvg, as if all data were here."""
    return plan(entry("terraform/table2"), "small", cells="4", here=lambda source: True)


@pytest.fixture
def results(table2, run_of):
    """Each method as good as in the paper on participants, but Terraform, which trains twice, is 20 points off."""
    made = {}
    for run in table2.runs:
        printed = table2.entry.published.at(run.row, "4").value / 100
        own = printed - 0.2 if "Terraform" in run.row else printed
        selections = [[0, 1, 0, 1]] * ROUNDS if "Terraform" in run.row else None
        metrics = {"participant_accuracy": own + 0.001 * (run.seed - 1), "client_accuracy_mean": 0.6}
        result = run_of(
            run.row, run.seed, [0.1 * i for i in range(ROUNDS)], selections=selections, metrics=metrics
        )
        made[run.experiment.fingerprint] = result
    return made


def test_every_cell_is_compared_and_none_is_hidden(table2, results):
    found = outcome(table2, results)
    assert [number.row for number in found.numbers] == list(table2.rows)
    assert not found.missing
    by_row = {number.row: number for number in found.numbers}
    random, terraform = by_row["FedAvg / Random"], by_row["FedAvg / Terraform"]
    assert random.ours.mean == pytest.approx(85.18)
    assert random.ours.std == pytest.approx(0.1)
    assert random.difference == pytest.approx(0, abs=1e-9)
    assert not random.off
    assert terraform.difference == pytest.approx(-20)
    assert terraform.off


def test_the_papers_accuracy_comes_first_and_the_other_two_beside_it(table2, results):
    number = outcome(table2, results).numbers[0]
    assert number.value.metric == "participant_accuracy"
    assert number.beside["client_accuracy_mean"].mean == pytest.approx(60)
    assert "last_iteration_accuracy" not in number.beside, "every round trains once"
    # The mean of the last five of 0, 10, …, 50 %.
    assert number.beside["accuracy"].mean == pytest.approx(30)
    header = page(outcome(table2, results)).tables[0][1]
    assert header[1:3] == ["paper, %", "ours: participants"]
    assert header[5:7] == ["ours: pooled test set", "ours: mean over clients"]


def test_the_last_iteration_is_shown_where_a_run_of_the_cell_trains_again(table2, results):
    for run in table2.runs:
        for record in results[run.experiment.fingerprint].records:
            record.metrics["last_iteration_accuracy"] = 0.4
            if "Terraform" in run.row:
                record.trainings *= 2
    found = outcome(table2, results)
    assert all(number.beside["last_iteration_accuracy"].mean == pytest.approx(40) for number in found.numbers)
    assert "ours: last iteration" in page(found).tables[0][1]


def test_at_equal_work_a_method_that_trains_twice_has_half_the_rounds(table2, results, run_of):
    for run in table2.runs:
        if "Terraform" in run.row:
            curve = [0.1 * i for i in range(ROUNDS)]
            growing = run_of(run.row, run.seed, curve, selections=[[0, 1, 0, 1]] * ROUNDS)
            for record in growing.records:
                record.metrics["participant_accuracy"] = record.metrics["accuracy"]
            results[run.experiment.fingerprint] = growing
    found = {number.row: number for number in outcome(table2, results).numbers}
    terraform = found["FedAvg / Terraform"]
    assert terraform.trainings.mean == 2 * found["FedAvg / Random"].trainings.mean == 24
    # 12 trainings are three of its rounds: the mean of 0, 10 and 20 %.
    assert terraform.equal_work["participant_accuracy"].mean == pytest.approx(10)
    assert terraform.equal_work["accuracy"].mean == pytest.approx(10)


def test_missing_runs_are_counted_and_explained(table2, results):
    lost = table2.runs[0].experiment.fingerprint
    del results[lost]
    found = outcome(table2, results, {lost: "no valid update"})
    assert found.missing == (("4", "FedAvg / Random", 0, "no valid update"),)
    assert found.numbers[0].ours.seeds == 2
    assert "1 run has no result: no valid update" in page(found).remarks


def test_nothing_run_yet_shows_published_numbers_only(table2):
    found = outcome(table2, {})
    assert all(not number.ours.known and not number.off for number in found.numbers)
    assert {checked.verdict for checked in found.claims} == {"not run"}
    row = page(found).tables[0][2][0]
    assert row[:4] == ["FedAvg / Random", "85.18", "–", "–"]


def test_places_and_marks_in_the_table(table2, results):
    rows = {row[0]: row for row in page(outcome(table2, results)).tables[0][2]}
    assert rows["FedAvg / Terraform"][3:5] == ["-20.0 ≠", "1, 6"]
    assert rows["FedAvg / HiCS-FL"][4] == "2, 1"


def test_no_place_before_all_rows_have_run(table2, results):
    without = {run.experiment.fingerprint for run in table2.runs if run.row == "FedAvg / Oort"}
    some = {fingerprint: result for fingerprint, result in results.items() if fingerprint not in without}
    _, header, rows = page(outcome(table2, some)).tables[0]
    places = header.index("place: paper, ours")
    assert {row[places].partition(", ")[2] for row in rows} == {"–"}
    assert {row[places].partition(", ")[0] for row in rows} == {"1", "2", "3", "4", "5", "6"}


def test_the_heading_says_what_differs(table2):
    lines = heading(table2)
    assert any("model: mlp (hidden 200) instead of fmnist-cnn" in line for line in lines)
    assert any(line.startswith("not asked for here: cells 1, 2, 3") for line in lines)
    smoke = heading(plan(entry("simprox/table4"), "smoke", here=lambda source: source == "digits"))
    assert any("data: digits instead of medic" in line for line in smoke)


def test_pages_for_terminals_and_as_markdown(table2, results, tmp_path):
    shown = page(outcome(table2, results))
    assert "FedAvg / Terraform" in _terminal_text(shown)
    write_pages([shown], tmp_path / "new" / "page.md")
    text = (tmp_path / "new" / "page.md").read_text(encoding="utf-8")
    assert text.startswith("## terraform/table2: ")
    assert "| FedAvg / Terraform | 86.08 |" in text
    assert shown._repr_html_().count("<table>") == len(shown.tables)
    assert "| Terraform has the highest accuracy (FedAvg) | 4 | does not hold: FedAvg / Terraform − " in text


def _terminal_text(shown):
    console = Console(width=80, record=True, file=io.StringIO())
    for table in shown.as_tables():
        console.print(to_rich(table, 80))
    return console.export_text()


def test_a_table_with_several_values_a_run(run_of):
    made = plan(entry("astrafl/table3"), "small", cells="W3", rows="Random", seeds=1, here=lambda source: True)
    result = run_of("random", 0, [0.1, 0.2, 0.55, 0.6, 0.59, 0.58])
    found = outcome(made, {made.runs[0].experiment.fingerprint: result})
    ours = {number.value.name: number.ours.mean for number in found.numbers}
    # Statistics are of the later half.
    assert ours["Min Acc"] == pytest.approx(58)
    assert ours["Max Acc"] == pytest.approx(60)
    assert ours["Avg Acc"] == pytest.approx(59)
    assert ours["Std (×10⁻³)"] == pytest.approx(8.165, abs=1e-3)
    _, header, rows = page(found).tables[0]
    assert header[1:4] == ["Min Acc: paper", "ours", "Max Acc: paper"], "one row has no place"
    assert rows[0][:3] == ["W3: Random", "56.86", "58.0"]
    assert not any("Places" in line for line in page(found).remarks)
    assert header[-1] == "client trainings"
    assert rows[0][-1] == "12"


def test_places_in_tables_with_several_values_and_deviations_count_from_the_smallest(run_of):
    spreads = {"Random": 0.01, "High Loss": 0.02, "Cluster": 0.03, "ASTraFL": 0.04}
    made = plan(
        entry("astrafl/table3"), "small", cells="W3", rows=",".join(spreads), seeds=1, here=lambda source: True
    )
    results = {
        run.experiment.fingerprint: run_of(run.row, 0, [0.5, 0.6 - spreads[run.row], 0.6 + spreads[run.row]])
        for run in made.runs
        if run.row in spreads
    }
    _, header, rows = page(outcome(made, results)).tables[0]
    std, best = (header.index(f"{name}: paper") + 2 for name in ("Std (×10⁻³)", "Max Acc"))
    by_case = {row[0]: row for row in rows}
    assert by_case["W3: Random"][std].endswith(", 1")
    assert by_case["W3: ASTraFL"][best].endswith(", 1")


def test_at_scale_smoke_nothing_is_judged(run_of, tmp_path):
    """Two rounds of one seed would otherwise "refute" a paper."""
    made = plan(entry("terraform/table2"), "smoke", cells="4", here=lambda source: True)
    results = {run.experiment.fingerprint: run_of(run.row, 0, [0.1, 0.2]) for run in made.runs}
    for result in results.values():
        for record in result.records:
            record.metrics["participant_accuracy"] = record.metrics["accuracy"]
    found = outcome(made, results)
    assert {str(checked) for checked in found.claims} == {"not judged: scale smoke is too short"}
    assert all(number.ours.known and number.difference < -50 for number in found.numbers)
    assert not any(number.off for number in found.numbers)
    assert {checked.verdict for checked in outcome(made, {}).claims} == {"not run"}
    shown = page(found)
    assert {row[2] for row in shown.tables[-1][2]} == {"not judged: scale smoke is too short"}
    assert "≠" not in shown.markdown()
    assert not any(word in shown.markdown() for word in ("| holds", "does not hold"))
    assert any("no claim about them is judged" in line for line in shown.remarks)


def test_on_stand_in_data_nothing_is_judged(run_of):
    """Whatever comes out on other data, the paper said nothing about it."""
    made = plan(entry("simprox/table3"), "small", here=lambda source: source == "digits")
    assert {run.experiment.data["source"] for run in made.runs} == {"digits"}
    good, bad = ([0.9 + 0.001 * seed] * 4 for seed in (1, -1)), [0.1] * 4
    results = {}
    for run in made.runs:
        accuracies = next(good, [0.9] * 4) if run.row == "SimProx" else bad
        results[run.experiment.fingerprint] = run_of(run.row, run.seed, accuracies)
    found = outcome(made, results)
    assert {str(checked) for checked in found.claims} == {"not judged: stand-in data"}
    assert not any(number.off for number in found.numbers)
    assert "≠" not in page(found).markdown()
    cases = [row[0] for row in page(found).tables[0][2]]
    assert cases == ["Banking77 (stand-in): FedAvg", "Banking77 (stand-in): SimProx"], "not the paper's data"


def test_one_seed_is_not_judged(run_of):
    made = plan(entry("terraform/table2"), "small", cells="4", seeds=1, here=lambda source: True)
    results = {run.experiment.fingerprint: run_of(run.row, 0, [0.1 * len(run.row) / 100] * 3) for run in made.runs}
    for result in results.values():
        for record in result.records:
            record.metrics["participant_accuracy"] = record.metrics["accuracy"]
    found = outcome(made, results)
    assert {str(checked) for checked in found.claims} == {"not judged: one seed"}
    assert not any(number.off for number in found.numbers)
    assert "One seed says nothing about chance: no number is marked and no claim is judged." in page(found).remarks


def test_the_best_of_some_rows_is_not_the_best_of_all(table2, run_of):
    """Two rows out of six, and the paper's own method is far ahead: that says nothing about the other four."""
    rows = "FedAvg / Random,FedAvg / Terraform"
    made = plan(entry("terraform/table2"), "small", cells="4", rows=rows, here=lambda source: True)
    results = {}
    for run in made.runs:
        ahead = 0.2 if "Terraform" in run.row else 0.0
        metrics = {"participant_accuracy": 0.5 + ahead + 0.001 * run.seed}
        results[run.experiment.fingerprint] = run_of(run.row, run.seed, [0.5] * ROUNDS, metrics=metrics)
    said = {checked.claim.text: str(checked) for checked in outcome(made, results).claims}
    highest = said["Terraform has the highest accuracy (FedAvg)"]
    assert highest == "not judged: 4 of the rows that it is about were not asked for"
    assert not any(verdict.startswith("holds") for verdict in said.values())


def test_the_column_at_equal_work_appears_when_any_row_has_it(table2, results):
    for run in table2.runs:
        if run.row == table2.rows[0]:
            del results[run.experiment.fingerprint]
    header = page(outcome(table2, results)).tables[0][1]
    assert "at equal work: participants" in header
    assert "at equal work: pooled test set" in header


def test_cells_that_are_the_same_runs_say_so():
    lines = heading(plan(entry("terraform/table2"), "smoke", cells="1,1*,4", here=lambda source: True))
    assert "the same runs at this scale: cell 1, cell 1*" in lines
    assert not any("cell 4" in line for line in lines)
    assert not [
        line
        for line in heading(plan(entry("terraform/table2"), "paper", here=lambda source: True))
        if "the same runs" in line
    ]


def test_federations_are_judged_at_any_scale():
    """Nothing is run for them, so nothing is too short."""
    made = plan(entry("feddiverse/figure3"), "smoke")
    assert made.can_judge
    assert "no claim is judged" not in page(outcome(made, {})).markdown()


def test_federations_that_are_drawn_are_counted_seed_by_seed(monkeypatch):
    digits = dataclasses.replace(
        entry("simprox/figure2"),
        cells={"digits": {"data": {"source": "digits"}, "partition": {"scheme": "iid", "clients": 7}}},
    )
    found = outcome(plan(digits, "paper", seeds=2), {})
    ours = {number.value.name: number.ours for number in found.numbers}
    assert ours["classes"].mean == ours["fewest classes of a client"].mean == 10
    assert ours["classes"].seeds == 2
    assert ours["largest client"].mean - ours["smallest client"].mean <= 1
    assert [checked.verdict for checked in found.claims] == ["does not hold"], "iid clients have all classes"
    monkeypatch.setattr("muster.papers.measures.is_here", lambda source: False)
    assert [checked.verdict for checked in outcome(plan(digits, "paper"), {}).claims] == ["not run"]


def test_federations_are_compared_without_runs():
    made = plan(entry("feddiverse/figure3"), "paper", cells="WaterBirds")
    found = {number.value.name: number.ours.mean for number in outcome(made, {}).numbers}
    assert found["GSC"] == pytest.approx(0.670, abs=5e-4)
    assert found["CCI"] == pytest.approx(0.262, abs=5e-4)


# --- measures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pick", "expected"),
    [("final", 60), ("best", 90), ("at", 40), ("tenths", 50), ("overall", 50), ("mean", 70), ("min", 60)],
)
def test_picks(run_of, pick, expected):
    accuracies = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.9, 0.7, 0.6]
    assert measured(run_of("a", 0, accuracies), Value("accuracy", pick=pick, at=0.4)) == pytest.approx(expected)


def test_selections_and_clusters(made):
    run = made(selections=[[[0, 1]], [[1, 2]], [[5]]], clusters=[[0, 0, 1, 1, 2, 2], [0] * 6, [0, 1, 0, 1, -1, 0]])
    assert measured(run, Value("selection_share", clients=(0, 1))) == pytest.approx(60)
    assert measured(run, Value("most_selected", factor=1)) == 2
    assert measured(run, Value("least_selected", factor=1)) == 0
    clusters = [measured(run, Value("clusters", pick="at", at=at / 3, factor=1)) for at in (1, 2, 3)]
    assert clusters == [3, 1, 2]


def test_a_metric_that_a_run_does_not_have(run_of):
    assert math.isnan(measured(run_of("a", 0, [0.5]), Value("worst_group_accuracy")))


def test_it_says_which_seeds_how_often_it_was_evaluated_by_what_and_how_to_run_it_again(run_of):
    asked = plan(
        entry("terraform/table2"),
        "small",
        cells="1*,4",
        rows="FedAvg / Random,FedAvg / Terraform",
        seeds=2,
        here=lambda source: True,
    )
    metrics = {"participant_accuracy": 0.5}
    results = {r.experiment.fingerprint: run_of(r.row, r.seed, [0.1, 0.2], metrics=metrics) for r in asked.runs}
    found = page(dataclasses.replace(outcome(asked, results), made_by=("0.1.0 (abc)", "0.2.0")))
    assert found.heading[0].endswith("scale small, 2 seeds (0 to 1)")
    assert "Numbers of the end are means of the last 5 evaluations, after every second round." in found.remarks
    assert any(
        "A seed decides the division among clients, the first model and every draw" in r for r in found.remarks
    )
    assert found.remarks[-1] == (
        "To run it again: `muster reproduce terraform/table2 --scale small --cells '1*,4' "
        "--rows 'FedAvg / Random,FedAvg / Terraform' --seeds 2`. "
        "Its runs were made by Muster 0.1.0 (abc) and 0.2.0."
    )


def test_an_evaluation_that_is_not_averaged_says_how_often_there_is_one():
    made = plan(entry("simprox/table2"), "small", here=lambda source: True)
    assert "Evaluated after every fifth round." in page(outcome(made, {})).remarks


@pytest.mark.parametrize("id", [*entries()])
def test_the_command_asks_for_the_same_again(id):
    """Whatever characters names have."""
    for scale in ("smoke", "small"):
        whole = plan(entry(id), scale, here=lambda source: True)
        assert whole.command == f"muster reproduce {id} --scale {scale}"
        for part in (
            plan(entry(id), scale, cells=whole.cells[-1], rows=whole.rows[-1], seeds=4, here=lambda source: True),
            plan(entry(id), scale, rows=",".join(whole.rows[1:] or whole.rows), here=lambda source: True),
        ):
            words = shlex.split(part.command)[5:]
            options = dict(zip(words[::2], words[1::2], strict=True))
            again = plan(
                entry(id),
                scale,
                cells=options.get("--cells"),
                rows=options.get("--rows"),
                seeds=int(options["--seeds"]) if "--seeds" in options else None,
                here=lambda source: True,
            )
            assert (again.cells, again.rows, again.seeds) == (part.cells, part.rows, part.seeds)


def test_a_claim_about_more_rows_than_were_asked_for_is_not_judged_and_says_so(run_of):
    """Both rows have run: "not run" would not be so, although best or second of two says nothing."""
    rows = "FedDiverse,Uniform random"
    asked = plan(entry("feddiverse/table1"), "small", cells="CMNIST GSC", rows=rows, here=lambda source: True)
    metrics = {"worst_group_accuracy": 0.5}
    results = {r.experiment.fingerprint: run_of(r.row, r.seed, [0.1], metrics=metrics) for r in asked.runs}
    second_best, above_random = outcome(asked, results).claims
    assert str(second_best) == "not judged: 5 of the rows that it is about were not asked for"
    assert above_random.verdict == "not judged"
    assert "rows" not in above_random.why
    assert {claim.verdict for claim in outcome(asked, {}).claims} == {"not run"}


def test_a_claim_about_more_cells_than_there_are_is_not_judged_and_says_so(run_of):
    for cells, left in (("IID", 4), ("IID,N_c = 1", 3)):
        asked = plan(entry("probing/figure8"), "small", cells=cells, rows="J = 16", here=lambda source: True)
        results = {r.experiment.fingerprint: run_of(r.row, r.seed, [0.1, 0.2]) for r in asked.runs}
        (claim,) = outcome(asked, results).claims
        assert str(claim) == f"not judged: {left} of the cells that it is about are not here"
