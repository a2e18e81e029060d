"""What clients say is shown as they said it, and cannot end the run that shows it."""

from __future__ import annotations

import io
from types import SimpleNamespace

import pytest
from rich.console import Console

from muster.console import progress
from muster.console.progress import BarProgress, LineProgress


@pytest.mark.parametrize("kind", [BarProgress, LineProgress])
@pytest.mark.parametrize("said", ["[/x]", "[bold]loud[/bold]", "[link=http://a.b]here[/link]"])
def test_markup_of_a_client_is_text(kind, said, monkeypatch):
    monkeypatch.setattr(progress, "warnings", lambda record, before: [f"  round 1: client 1 failed: {said}"])
    shown = io.StringIO()
    record = SimpleNamespace(round=1, metrics={"accuracy": 0.5, "loss": 1.0})
    with kind(Console(file=shown, width=200), "a run") as watching:
        watching.round_ended(record, None)
    assert f"client 1 failed: {said}" in shown.getvalue()
