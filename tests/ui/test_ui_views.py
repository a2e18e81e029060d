"""What the page says about runs is what the results say, number by number."""

from __future__ import annotations

import base64
from dataclasses import asdict, replace

import numpy as np
import pytest

from muster.core.errors import DataError
from muster.experiment.inspection import inspect_experiment
from muster.heterogeneity.inspection import inspect
from muster.heterogeneity.tables import Counts
from muster.league.evidence import recommended
from muster.report.compare import compare
from muster.report.looks import looks
from muster.report.render import cell_text
from muster.results.store import Store
from muster.ui import federation
from muster.ui.app import PageSettings, Views
from muster.ui.comparing import Results
from muster.ui.database import reading
from muster.ui.participation import FATES, LEFT_OUT, TRAINED, Participation, ordered, selection_map


def columns_of(page):
    return page.ask("runs")["columns"]


def by_method(results, method):
    return next((key, run) for key, run in results.items() if run.config["selection"]["method"] == method)


def test_the_list_has_every_run_with_its_last_metrics_and_costs(page, results):
    found = page.ask("runs")
    columns = found["columns"]
    assert columns["fingerprint"] == list(results)
    assert columns["status"] == ["complete"] * len(results)
    for at, run in enumerate(results.values()):
        assert columns["name"][at] == run.name
        assert (columns["done"][at], columns["rounds"][at]) == (5, 5)
        last = run.records[-1].metrics
        assert {name: values[at] for name, values in found["metrics"].items()} == pytest.approx(last)
        total = run.ledger.total()
        assert columns["client_trainings"][at] == total.client_trainings
        assert columns["bytes"][at] == total.bytes_down + total.bytes_up


def test_settings_that_differ_can_be_told_apart_by_the_list(page):
    found = page.ask("runs")
    method = found["settings"]["selection.method"]
    assert [method["values"][place] for place in method["own"]] == ["random", "random", "terraform", "random"]
    assert found["settings"]["devices.method"]["own"] == [-1, -1, -1, 0], "one run alone has it"
    assert "data.source" not in found["settings"], "all have it in common"


def test_a_run(page, results):
    key, run = by_method(results, "terraform")
    facts = page.ask(f"run/{key}")
    assert facts["method"] == "terraform"
    assert facts["metric_names"] == list(run.records[-1].metrics)
    assert not facts["timed"]
    assert 'method = "terraform"' in facts["config"]["toml"]
    assert facts["config"]["commands"] == ["muster run experiment.toml"]
    assert facts["environment"] == run.provenance.environment


def test_curves_are_the_metrics(page, results):
    for key, run in results.items():
        found = page.ask(f"run/{key}/curves", metrics="accuracy,loss")
        rows = run.metrics
        assert found["rounds"] == [row["round"] for row in rows]
        for metric in ("accuracy", "loss"):
            assert found["metrics"][metric] == [row[metric] for row in rows]
        assert found["work"]["client_trainings"] == [row["client_trainings"] for row in rows]
        assert found["work"]["bytes"] == [row["bytes_down"] + row["bytes_up"] for row in rows]
        assert ("virtual_seconds" in found["work"]) == (rows[-1]["virtual_seconds"] > 0)


def test_a_window_of_a_curve_keeps_the_work_before_it(page, results):
    key, run = by_method(results, "terraform")
    found = page.ask(f"run/{key}/curves", **{"metrics": "accuracy", "from": 3, "to": 4})
    assert found["rounds"] == [3, 4]
    assert found["work"]["client_trainings"] == [run.metrics[at]["client_trainings"] for at in (2, 3)]


@pytest.mark.parametrize("by", ["client", "trained", "accuracy", "samples", "class imbalance"])
def test_the_map_has_every_selection_in_its_place(page, results, by):
    key, run = by_method(results, "terraform")
    found = page.ask(f"run/{key}/map", by=by)
    trained = np.frombuffer(base64.b64decode(found["planes"]["trained"]), np.uint8)
    table = trained.reshape(found["height"], found["width"])
    expected = np.zeros((12, 5), dtype=np.int64)
    for at, record in enumerate(run.records):
        for training in record.trainings:
            expected[training.clients, at] += 1
    assert sorted(found["order"]) == list(range(12))
    assert np.array_equal(table, expected[found["order"]])
    if by == "trained":
        assert np.all(np.diff(expected.sum(axis=1)[found["order"]]) <= 0), "those that trained most come first"


def test_the_map_cannot_be_ordered_by_anything(page, results):
    assert "cannot be ordered" in page.ask(f"run/{next(iter(results))}/map", by="x", status=404)["problem"]


def test_the_clients(page, results):
    for key, run in results.items():
        table = page.ask(f"run/{key}/clients", facts="1")
        assert table["trained"] == run.history.trainings.tolist()
        last = [None if number < 0 else number + 1 for number in run.history.last_round.tolist()]
        assert table["last round"] == last
        own = run.records[-1].client_accuracy
        assert [np.nan if value is None else value for value in table["accuracy"]] == pytest.approx(
            own.tolist(), nan_ok=True
        )
        assert sum(table["weight"]) == pytest.approx(sum(len(record.trainings) for record in run.records))
        assert sum(table["samples"]) > 1000


def test_one_client(page, results):
    key, run = by_method(results, "terraform")
    client = run.records[0].trainings[0].clients[0]
    found = page.ask(f"run/{key}/client/{client}")
    expected = [
        (record.round, training.weights[training.clients.index(client)])
        for record in run.records
        for training in record.trainings
        if client in training.clients
    ]
    assert [(own["round"], own["weight"]) for own in found["history"]] == expected
    told = found["reports"]["final_layer_norm"]
    assert len(told["rounds"]) == len(told["values"]) >= 1
    assert found["accuracy"]["values"] == pytest.approx(
        [float(record.client_accuracy[client]) for record in run.records]
    )
    labels = page.ask(f"run/{key}/client/{client}/labels")
    assert sum(labels["own"]) > 0
    assert sum(labels["all"]) == pytest.approx(1)
    for path in ("client/99", "client/99/labels"):
        assert "no client 99" in page.ask(f"run/{key}/{path}", status=404)["problem"]
    cell = page.ask(f"run/{key}/cell", client=client, round=1)
    assert cell["trainings"][0]["weight"] == expected[0][1]
    assert "final_layer_norm" in cell["told"]


def test_costs_and_disclosures(page, results):
    for key, run in results.items():
        found = page.ask(f"run/{key}/costs")
        assert found["total"] == pytest.approx(asdict(run.ledger.total()))
        assert {row["kind"]: row["times"] for row in found["disclosed"]} == run.ledger.total_disclosed()


def test_events(page, results):
    found = page.ask(f"run/{next(iter(results))}/events")
    assert [event["kind"] for event in found["events"]] == ["complete", "started"]
    assert found["counts"] == {"complete": 1, "started": 1}
    only = page.ask(f"run/{next(iter(results))}/events", kind="started")
    assert [event["kind"] for event in only["events"]] == ["started"]


def test_the_timeline(page, results):
    key, run = next((key, run) for key, run in results.items() if run.config.get("devices"))
    assert page.ask(f"run/{key}")["timed"]
    found = page.ask(f"run/{key}/timeline")
    flown = [training.flown for record in run.records for training in record.trainings]
    assert sorted(found["flights"]["client"]) == sorted(client for own in flown for client in own.clients)
    assert max(found["flights"]["ended"]) == pytest.approx(found["whole"])
    assert {found["outcomes"][code] for code in found["flights"]["outcome"]} == {"used"}
    assert [row[0] for row in found["rounds"]] == [1, 2, 3, 4, 5]


def test_who_works_in_a_window_of_time(page, results):
    key, run = next((key, run) for key, run in results.items() if run.config.get("devices"))
    began = run.records[2].began
    start, end = began, began + 0.1 * (run.records[2].ended - began)
    found = page.ask(f"run/{key}/timeline", **{"from": start, "to": end})["flights"]
    flown = [training.flown for record in run.records for training in record.trainings]
    at_work = [
        (client, begins)
        for own in flown
        for client, begins, lands in zip(own.clients, own.started, own.ended, strict=True)
        if begins <= end and lands >= start
    ]
    assert sorted(zip(found["client"], found["started"], strict=True)) == sorted(at_work)
    assert any(lands > end for lands in found["ended"]), "who begins in the window may land after it"


def test_the_federation(page, results, make_experiment):
    from muster.experiment.components import build_data

    key, _ = by_method(results, "terraform")
    found = page.ask(f"run/{key}/federation")
    counts = Counts.of(build_data(make_experiment()))
    assert found["labels"] == counts.histograms.tolist()
    expected = recommended(inspect(counts, 4))
    assert [advice["finding"] for advice in found["advice"]] == [
        *(advice.finding for advice in expected.advice),
        expected.recommendation.finding,
    ]
    assert found["clients"]["size"] == counts.sizes.tolist()


def test_a_federation_with_attributes_shows_what_predicts_the_classes():
    table = np.array([[[9, 1], [2, 8]], [[5, 5], [5, 5]]])
    counts = Counts("shapes", table, classes=("disc", "square"), attributes=("sand", "snow"))
    found = federation.as_data(inspect(counts, 1))
    assert found["groups"] == ["disc, sand", "disc, snow", "square, sand", "square, snow"]
    assert found["labels"] == [[9, 1, 2, 8], [5, 5, 5, 5]]


def test_a_federation_that_could_not_be_made_is_tried_again(page, results, monkeypatch):
    key, made, calls = next(iter(results)), inspect_experiment, []

    def missing_at_first(experiment):
        calls.append(experiment)
        if len(calls) <= 2:
            raise [DataError("the data is not there"), ValueError("no such part")][len(calls) - 1]
        return made(experiment)

    monkeypatch.setattr(federation, "inspect_experiment", missing_at_first)
    assert "not there" in page.ask(f"run/{key}/federation", status=422)["problem"]
    assert "cannot be made again here (no such part)" in page.ask(f"run/{key}/federation", status=422)["problem"]
    found = page.ask(f"run/{key}/federation")
    assert page.ask(f"run/{key}/federation") == found
    assert len(calls) == 3, "what was made is kept"


def test_the_comparison_is_that_of_the_tables(page, results):
    found = page.ask("compare")
    problems = [own["problem"] for own in found["problems"]]
    assert len(problems) == 2, "virtual time makes another problem"
    same = [run for run in results.values() if not run.config["devices"]]
    table = compare(same).tables["scores"]
    texts = [
        [cell_text(cell, column, table.intervals) for cell, column in zip(row, table.columns, strict=True)]
        for row in table.rows
    ]
    ours = [[cell["text"] for cell in row] for row in found["problems"][0]["tables"]["scores"]["rows"]]
    assert sorted(ours) == sorted(texts)
    assert " is best with " in found["problems"][0]["headline"][0]
    assert [text for text in found["remarks"] if text.startswith("Problems with one method only")]
    assert not [own for own in found["problems"] if {*own["remarks"]} & {*found["remarks"]}], "told once"


def test_methods_have_the_colours_that_they_have_in_reports(page):
    lines = [line for problem in page.ask("compare")["problems"] for line in problem["lines"]]
    for dark in (False, True):
        drawn = {line["name"]: line["colours"][dark] for line in lines}
        assert drawn["terraform"] == looks(["terraform"], dark=dark)[0].colour != drawn["random"]


def test_a_comparison_of_chosen_runs_at_equal_work(page, results):
    chosen = [key for key, run in results.items() if not run.config["devices"]]
    found = page.ask("compare", runs=",".join(key[:12] for key in chosen), at="client_trainings", per="bytes")
    (problem,) = found["problems"]
    assert "after" in problem["tables"]["scores"]["title"]
    line = next(line for line in problem["lines"] if line["seeds"] == 2)
    assert all(
        low <= mean <= high for low, mean, high in zip(line["low"], line["mean"], line["high"], strict=True)
    )
    assert page.ask("compare", metric="nonsense")["problems"][0]["trouble"].startswith("no run has measured")
    assert "client_trainings" in page.ask("compare", at="nonsense")["problems"][0]["expected"]
    assert "no run was chosen" in page.ask("compare", sweep="nobody", status=422)["problem"]


def test_a_run_that_was_renamed_is_compared_under_its_new_name(workspace):
    views, results = Views(PageSettings(workspace, "token")), Results()
    entry = next(iter(views.watcher.fresh().entries.values()))
    with reading(workspace) as connection:
        assert results.read(connection, entry).name == "random"
        assert results.read(connection, replace(entry, facts=entry.facts | {"name": "other"})).name == "other"


def test_numbers_that_are_none(page, results):
    key = next(iter(results))
    assert "a whole number" in page.ask(f"run/{key}/cell", client="x", status=422)["expected"]
    assert "a number" in page.ask(f"run/{key}/timeline", **{"from": "x"}, status=422)["expected"]


@pytest.mark.parametrize("number", ["9" * 19, "-" + "9" * 30, "1" * 5000])
def test_a_number_that_is_too_large_is_no_fault_of_the_store(page, results, number):
    key = next(iter(results))
    asked = [("cell", "client"), ("cell", "round"), ("events", "before"), ("curves", "from"), ("curves", "to")]
    for path, name in asked:
        assert "a whole number" in page.ask(f"run/{key}/{path}", **{name: number}, status=422)["expected"]
    for path in (f"run/{key}/client/{number}", f"run/{key}/client/{number}/labels"):
        assert "a whole number" in page.ask(path, status=422)["expected"]
    for path in (f"run/{key}/client/-1", f"run/{key}/client/12", f"run/{key}/client/-1/labels"):
        assert "no client" in page.ask(path, status=404)["problem"]
    assert "there is no run" in page.ask("run/0123456789abcdef", status=404)["problem"]


# --- participation ---------------------------------------------------------------------------------------


def some_participation(rounds, clients):
    rng = np.random.default_rng(0)
    taken = Participation(done=rounds)
    for number in range(1, rounds + 1):
        ids = np.sort(rng.choice(clients, 3, replace=False))
        taken._add(number, ids[:2], np.array([0.5, 0.5]), TRAINED)
        taken._add(number, ids[2:], None, LEFT_OUT)
    return taken


def test_a_large_map_counts_together_and_loses_nobody():
    taken = some_participation(1000, 50)
    found = selection_map(taken, 50, np.arange(50), max_columns=90, max_rows=20)
    assert (found["width"], found["height"]) == (90, 20)
    planes = {name: np.frombuffer(base64.b64decode(text), np.uint8) for name, text in found["planes"].items()}
    assert planes["trained"].sum() == 2000
    assert planes["left out"].sum() == 1000
    assert [len(planes[name]) for name in FATES] == [1800, 1800, 0, 0]


def test_what_is_not_known_comes_last_and_ties_stay():
    assert ordered({"x": [1, None, 3, 1]}, "x").tolist() == [2, 0, 3, 1]


def test_rounds_are_read_once_and_in_any_portions(workspace, results):
    with Store(workspace) as store:
        for key in results:
            run = store.run(key)
            whole, portions = Participation(), Participation()
            whole.read_on(store.connection, run.id, run.done)
            for done in (2, 2, 5):
                portions.read_on(store.connection, run.id, done)
            for a, b in zip(whole.columns, portions.columns, strict=True):
                assert np.array_equal(a, b)
            portions.read_on(store.connection, run.id, 3)  # rolled back
            assert portions.columns[0].max() == 3


def test_what_one_request_was_given_stays_while_another_reads_on(workspace):
    views = Views(PageSettings(workspace, "token"))
    now = next(iter(views.watcher.fresh().entries.values()))
    before = replace(now, facts=now.facts | {"done": 3})
    taken, table = views._clients(before, facts=False)
    further, _ = views._clients(now, facts=False)
    assert (taken.done, further.done) == (3, 5)
    assert (taken.columns[0].max(), further.columns[0].max()) == (3, 5)
    found = selection_map(taken, 12, np.arange(12))
    assert np.frombuffer(base64.b64decode(found["planes"]["trained"]), np.uint8).sum() == sum(table["trained"])
