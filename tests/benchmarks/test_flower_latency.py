"""The page of the latency benchmark: medians, ratios, and an honest verdict."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("flwr")
import flower_latency

pytestmark = pytest.mark.flower


def measured(*seconds: float) -> SimpleNamespace:
    """A side: a round of three trainings, then one of two; the first exchange does not count."""
    places = zip(seconds, (0, 1, 2, 0, 1), strict=True)
    exchanges = [{"seconds": second, "iteration": iteration} for second, iteration in places]
    return SimpleNamespace(exchanges=exchanges, seconds=list(seconds), start_up=10.0)


def test_the_table_leaves_the_first_exchange_out_and_tells_sub_iterations_apart():
    rows = flower_latency.rows(measured(9, 1, 1, 2, 1), measured(99, 10, 10, 30, 12))
    assert rows[1:] == [
        ["all six nodes", "2.00 s (2.00–2.00, 1)", "30.00 s (30.00–30.00, 1)", "15.0"],
        ["sub-iterations, fewer nodes", "1.00 s (1.00–1.00, 3)", "10.00 s (10.00–12.00, 3)", "10.0"],
        ["all", "1.00 s (1.00–2.00, 4)", "11.00 s (10.00–30.00, 4)", "11.0"],
    ]


@pytest.mark.parametrize(
    ("warm", "stock", "verdict"),
    [
        ((9, 1, 1, 2, 1), (9, 10, 10, 30, 12), "is reached"),
        ((9, 1, 1, 2, 1), (9, 3, 3, 3, 3), "is NOT reached"),
        ((9, 3, 3, 3, 3), (9, 30, 30, 30, 30), "is NOT reached"),
    ],
)
def test_the_verdict_needs_both_seconds_and_ratio(warm, stock, verdict):
    assert verdict in flower_latency.content(measured(*warm), measured(*stock), "command")
