"""What leaves the clients under every method, and how often."""

import pytest

from muster.aggregation.base import aggregators
from muster.selection.base import selectors
from muster.server.checks import signals_of
from muster.server.disclosures import of_aggregation, of_selection
from muster.server.trial import requests_in_trial, selector_with_defaults


def often(rows):
    return {row.signal: row.how_often for row in rows}


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("random", {}),
        ("terraform", {}),  # looks only at what is in the update
        ("fedcbs", {"label_histogram": "once"}),
        ("feddiverse", {"heterogeneity_triplet": "once"}),
        ("high-loss", {"loss": "every round, from every client"}),
        ("power-of-choice", {"loss": "every round, from candidates"}),
        ("oort", {"squared_loss": "with every update"}),
        ("hcsfed", {"compressed_update": "with a client's first update"}),
        ("fedcor", {"loss": "in 28 of 40 rounds, from every client"}),
        ("within", {"–": "as they do"}),
    ],
)
def test_how_often_selections_ask(method, expected):
    assert often(of_selection(method)) == expected


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("fedavg", {}),
        ("fednova", {"local_progress": "with every update"}),
        ("scaffold", {"control_change": "with every update"}),
    ],
)
def test_what_aggregations_have_sent(method, expected):
    assert often(of_aggregation(method)) == expected


def test_every_method_is_covered():
    for name in selectors:
        assert all(row.method == name and row.what for row in of_selection(name))
    for name in aggregators:
        assert all(row.method == name and row.what for row in of_aggregation(name))


@pytest.mark.parametrize("name", selectors.names())
def test_every_method_declares_what_it_asks_for(name):
    """Nothing depends on it, but a run that cannot work should be refused before round 1."""
    selector = selector_with_defaults(name)
    if selector is not None:
        asked = {signal.name for _, request in requests_in_trial(selector) for signal in signals_of(request)}
        assert asked <= {signal.name for signal in selector.needs()}
