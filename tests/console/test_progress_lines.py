"""What clients say is shown as they said it, and cannot end the run that shows it."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from muster.console import progress
from muster.console.progress import BarProgress, LineProgress
from muster.console.times import readable_time


@pytest.mark.parametrize("kind", [BarProgress, LineProgress])
@pytest.mark.parametrize("said", ["[/x]", "[bold]loud[/bold]", "[link=http://a.b]here[/link]"])
def test_markup_of_a_client_is_text(kind, said, monkeypatch):
    monkeypatch.setattr(progress, "warnings", lambda record, before: [f"  round 1: client 1 failed: {said}"])
    shown = io.StringIO()
    record = SimpleNamespace(round=1, metrics={"accuracy": 0.5, "loss": 1.0})
    with kind(Console(file=shown, width=200), "a run") as watching:
        watching.round_ended(record, None)
    assert f"client 1 failed: {said}" in shown.getvalue()


@pytest.mark.parametrize("kind", [BarProgress, LineProgress])
@pytest.mark.parametrize("title", ["[/x]", "[bold]loud[/bold]", "[red"])
def test_markup_of_a_title_is_text(kind, title, monkeypatch):
    monkeypatch.setattr(progress, "_cautions", lambda server, rounds, done: [])
    monkeypatch.setattr(progress, "warnings", lambda record, before: [])
    shown = io.StringIO()
    engine = SimpleNamespace(describe=lambda: "engine")
    with kind(Console(file=shown, width=200), title) as watching:
        watching.started(SimpleNamespace(engine=engine), 3, 0)
        watching.round_ended(SimpleNamespace(round=1, metrics={"accuracy": 0.5, "loss": 1.0}), None)
    assert f"{title}: engine" in shown.getvalue()


def test_the_time_that_is_left_forgets_how_long_workers_took_to_start(monkeypatch):
    clock = iter([0.0, 0.0, 100.0, 100.0, 102.0, 104.0])
    monkeypatch.setattr("muster.console.progress.time.monotonic", lambda: next(clock))
    monkeypatch.setattr(progress, "_cautions", lambda server, rounds, done: [])
    monkeypatch.setattr(progress, "warnings", lambda record, before: [])
    shown = io.StringIO()
    engine = SimpleNamespace(describe=lambda: "engine")
    watching = LineProgress(Console(file=shown, width=200), "a run")
    watching.started(SimpleNamespace(engine=engine), 13, 0)
    for number in (1, 2, 3):
        watching.round_ended(SimpleNamespace(round=number, metrics={"accuracy": 0.5, "loss": 1.0}), None)
    assert [line.split("  ")[-1] for line in shown.getvalue().splitlines()[1:]] == [
        "20 min left",
        "22 s left",
        "20 s left",
    ]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(3.4, "3 s"), (600, "10 min"), (36000, "10.0 h"), (8.64e6, "100 days"), (4.9e8, "16 years")],
)
def test_durations_are_in_units_that_people_plan_with(seconds, shown):
    assert readable_time(seconds) == shown
