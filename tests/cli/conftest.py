"""Shared by tests of commands: a terminal of known width, whoever made the consoles and when."""

from __future__ import annotations

import pytest

from muster.console import output


@pytest.fixture(autouse=True)
def _terminal(request, monkeypatch):
    # A console measures its terminal when it is made, by the first test that imports it: COLUMNS comes too late.
    width = getattr(request.module, "TERMINAL_WIDTH", 200)
    for made in (output.out, output.err):
        monkeypatch.setattr(made, "_width", width)
