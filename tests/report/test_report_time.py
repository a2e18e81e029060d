"""Time in tables and pictures: on a run whose flights were written by hand, and on one that was really made."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.patches import StepPatch

import muster
from muster.console.progress import warnings
from muster.core.errors import ConfigError
from muster.report.compare import Options, compare
from muster.report.compare.measures import overhead, timing
from muster.report.flights import at_work, flights_of
from muster.report.gallery import gallery
from muster.report.plots import draw
from muster.report.plots.timeline import fates_of
from muster.server.record import Flown

#: Of each of three rounds: (client, started, ended, staleness, outcome).
FLIGHTS = [
    [(0, 0.0, 10.0, 0, "used"), (1, 0.0, 20.0, 0, "used")],
    [(2, 0.0, 30.0, 1, "used"), (3, 20.0, 25.0, 0, "left")],
    [(4, 0.0, 50.0, 9, "stale"), (0, 30.0, 60.0, 0, "late"), (5, 30.0, 60.0, 4, "used")],
]
ENDS = [20.0, 30.0, 60.0]


@pytest.fixture
def flown(made):
    """A run of three rounds with time."""

    def make(name="a", seed=0):
        result = made(name, seed, selections=[[[0, 1]], [[2]], [[5]]])
        for record, costs, flights, end in zip(result.records, result.ledger.rounds, FLIGHTS, ENDS, strict=True):
            columns = [list(column) for column in zip(*flights, strict=True)]
            record.trainings[0].flown, record.ended = Flown(*columns), end
            costs.virtual_seconds = end - record.began
            costs.wasted_trainings = sum(how != "used" for *_, how in flights)
        for record, following in zip(result.records, result.records[1:], strict=False):
            following.began = record.ended
        for costs, seconds in zip(result.ledger.rounds, (20.0, 10.0, 30.0), strict=True):
            costs.virtual_seconds = seconds
        return result

    return make


def test_flights_as_columns(flown):
    table = flights_of(flown())
    assert table.clients.tolist() == [0, 1, 2, 3, 4, 0, 5]
    assert table.rounds.tolist() == [1, 1, 2, 2, 3, 3, 3]
    assert table.taken.tolist() == [20, 20, 30, 30, 60, 60, 60]
    assert table.ended_as("left", "late", "stale").tolist() == [False, False, False, True, True, True, False]
    # Counted by hand: those that have set out and not ended.
    assert at_work(table, np.array([0.0, 5.0, 10.0, 22.0, 29.0, 30.0, 55.0, 60.0])).tolist() == [
        4,
        4,
        3,
        3,
        2,
        3,
        2,
        0,
    ]


def test_timing_by_hand(flown):
    facts = timing(flown())
    assert facts["seconds"] == 60
    assert facts["round"] == 20
    spent = 10 + 20 + 30 + 5 + 50 + 30 + 30
    assert facts["at_work"] == pytest.approx(spent / 60)
    assert facts["wasted"] == pytest.approx(3 / 7)
    assert (facts["left"], facts["late"], facts["stale"]) == (1 / 7, 1 / 7, 1 / 7)
    assert facts["wasted_time"] == pytest.approx((5 + 50 + 30) / spent)
    assert facts["staleness"] == pytest.approx((0 + 0 + 1 + 4) / 4)
    assert facts["most_stale"] == 4


def test_a_stale_answer_is_no_overhead(flown):
    result = flown()
    model = 40
    for costs, flights in zip(result.ledger.rounds, FLIGHTS, strict=True):
        costs.client_trainings = sum(how == "used" for *_, how in flights)
        costs.bytes_down = model * len(flights)
        costs.bytes_up = model * sum(how in ("used", "stale") for *_, how in flights)
    result.records[1].trainings[0].failed = {3: "left after 5 of 9 s"}
    result.records[2].trainings[0].failed = {0: "late"}
    result.records[2].trainings[0].rejected = {4: "too stale"}
    found = overhead(result)
    assert (found.extra_down, found.extra_up) == (0, 0)


def test_comparison_with_time(flown, made):
    comparison = compare([flown("a"), flown("a", 1), flown("b"), flown("b", 1)], Options(targets=(0.5,)))
    scores, time, target = (comparison.tables[name] for name in ("scores", "time", "targets"))
    assert [cell.value for cell in scores.column("virtual time")] == [60, 60]
    assert [cell.value for cell in scores.column("wasted")] == pytest.approx([3 / 7, 3 / 7])
    assert [cell.value for cell in time.column("at work")] == pytest.approx([175 / 60] * 2)
    assert [cell.value for cell in target.column("virtual seconds")] == [30, 30]
    assert "time" not in compare([made()]).tables
    assert "virtual time" not in [column.title for column in compare([made()]).tables["scores"].columns]


def test_fates(flown):
    assert fates_of(flights_of(flown())).tolist() == [0, 0, 1, 6, 4, 5, 2]


def test_the_timeline_has_a_bar_for_every_training(flown):
    figure = draw("timeline", [flown()])
    above, below = figure.axes
    lines = [collection for collection in below.collections if isinstance(collection, LineCollection)]
    bars = [line for collection in lines for line in collection.get_segments()]
    waiting, work = bars[: len(bars) - 7], bars[-7:]
    spans = sorted((float(line[0][0]), float(line[1][0])) for line in work)
    assert spans == sorted((begin, end) for flights in FLIGHTS for _, begin, end, _, _ in flights)
    # Answers of the clients 0 (10 → 20) and 4 (50 → 60) wait for the server; who has left does not.
    assert sorted((float(line[0][0]), float(line[1][0])) for line in waiting) == [(10, 20), (50, 60)]
    assert above.get_ylabel() == "at work"
    assert below.get_ylabel() == "6 clients, fastest first"
    assert "virtual time" in below.get_xlabel()
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {
        "used, up to date",
        "used, 1–2 behind",
        "used, 3–5 behind",
        "too stale",
        "given up on: late",
        "left before it answered",
        "answered, waits",
    }


def test_rows_and_rounds_of_the_timeline(flown):
    figure = draw("timeline", [flown(), flown("b")], clients=2, first=2, last=2)
    assert [axes.get_ylabel() for axes in figure.axes[1::2]] == ["2 clients, fastest first"] * 2
    assert draw("timeline", [flown()], clients=2).axes[1].get_ylabel() == "2 of 6 clients, fastest first"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"clients": 0}, "bad value for 'clients'"),
        ({"first": 9, "last": 12}, "no trainings in the rounds 9 to 12"),
    ],
)
def test_wrong_options_of_the_timeline(flown, options, problem):
    with pytest.raises(ConfigError, match=problem):
        draw("timeline", [flown()], **options)


@pytest.mark.parametrize("kind", ["timeline", "staleness"])
def test_without_time(made, kind):
    with pytest.raises(ConfigError, match="time"):
        draw(kind, [made()])


@pytest.mark.parametrize("kind", ["timeline", "staleness"])
def test_runs_with_long_names_are_told_apart(flown, kind):
    runs = [flown(f"buffered aggregation of phones that come and go, {late} late") for late in ("use", "drop")]
    titles = {axes.get_title(loc="left").strip() for axes in draw(kind, runs).axes} - {""}
    assert len(titles) == 2


def test_staleness_counts_answers_only(flown):
    (panel,) = draw("staleness", [flown(), flown("a", 1)]).axes
    used, thrown = (patch.get_data()[0] for patch in panel.patches if isinstance(patch, StepPatch))
    assert used.tolist() == pytest.approx([2 / 5, 1 / 5, 0, 0, 1 / 5, 0, 0, 0, 0, 0])
    assert (thrown - used).tolist() == pytest.approx([0] * 9 + [1 / 5])
    assert "most 9" in panel.texts[0].get_text()


def test_curves_and_targets_are_over_virtual_time_where_there_is_any(flown, made):
    assert "virtual time" in draw("curves", [flown()]).axes[1].get_xlabel()
    assert draw("curves", [made()]).axes[1].get_xlabel() == "client trainings"
    left, right = draw("time-to-target", [flown()], target=0.8).axes
    assert "virtual time" in left.get_xlabel()
    assert right.texts[0].get_text() == "4 + 3 wasted"


def test_a_report_of_a_run_with_time(tiny):
    timed = {"method": "phones", "flops_per_sample": 5e9}
    pacing = {"method": "buffered", "in_flight": 8, "k": 2}
    results = [
        muster.run(tiny(devices=timed, rounds=4, pacing=pacing, name="buffered"), workers=0),
        muster.run(tiny(devices=timed, rounds=4, name="synchronous"), workers=0),
    ]
    pictures = [picture for picture in gallery(compare(results)) if picture.section == "Time"]
    assert [picture.alt.split(",")[0] for picture in pictures[:2]] == ["Trainings over virtual time"] * 2
    assert "Histograms" in pictures[2].alt
    for picture in pictures:
        assert picture.draw().axes


def test_progress_counts_who_was_late(flown):
    lines = warnings(flown().records[2])
    assert lines == ["  round 3: 1 answered too late to be used, 1 were late"]
