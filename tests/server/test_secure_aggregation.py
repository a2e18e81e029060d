"""Which methods work on sums of updates: seen in trials, and as the documentation says."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from muster.aggregation.base import aggregators
from muster.aggregation.ca2fl import CA2FL
from muster.aggregation.fedavg import FedAvg
from muster.aggregation.median import Median
from muster.core.errors import ConfigError
from muster.engine.trial import TrialEngine
from muster.selection.base import Plan, Selector, Train, View, selectors
from muster.selection.divfl import DivFL
from muster.selection.random import RandomSelection
from muster.selection.terraform import Terraform
from muster.server.secure_aggregation import (
    check_secure_aggregation,
    obstacle_in_aggregation,
    obstacle_in_selection,
)
from muster.server.trial import selector_with_defaults
from muster.signals.updates import FinalLayerNorm
from muster.updates.clip import Clip
from muster.updates.guard import Guard

PAGE = Path(__file__).parents[2] / "docs" / "flower-privacy.md"

ON_SUMS = {"fedavg", "fedavgm", "fedadam", "fedadagrad", "fedyogi", "fednova", "scaffold", "feddyn"}
#: Made for late answers, which secure aggregation has none of: what is left is a mean.
ON_SUMS |= {"fedbuff", "fedasync", "fadas", "refl"}


@pytest.mark.parametrize("name", aggregators.names())
def test_means_work_on_sums_and_nothing_else_does(name):
    assert (obstacle_in_aggregation(aggregators.get(name)()) == "") == (name in ON_SUMS)


@pytest.mark.parametrize(
    ("name", "signal"),
    [("terraform", "final_layer_norm"), ("hics", "bias_update"), ("hcsfed", "compressed_update")],
)
def test_selections_that_look_at_single_updates(name, signal):
    assert signal in obstacle_in_selection(selector_with_defaults(name))


@pytest.mark.parametrize("name", ["random", "power-of-choice", "fedcbs", "probe-fairness", "oort"])
def test_selections_that_ask_for_other_things(name):
    assert obstacle_in_selection(selector_with_defaults(name)) == ""


def test_options_count():
    assert "individual updates" in obstacle_in_aggregation(FedAvg(clip_norm=1.0))
    assert "which updates are used" in obstacle_in_selection(Terraform(clients_per_round=5, signal="loss"))
    assert "'gradient'" in obstacle_in_selection(DivFL(clients_per_round=5, refresh="all"))


def test_the_trial_leaves_methods_as_they_were():
    selector = Terraform(clients_per_round=3)
    before = selector.state_dict()
    check = [obstacle_in_selection(selector, TrialEngine(6)) for _ in range(2)]
    assert check[0] == check[1]
    assert selector.state_dict() == before


def test_the_check_names_the_culprit():
    selector = RandomSelection(clients_per_round=3)
    check_secure_aggregation(selector, FedAvg(), Guard(), TrialEngine(6))
    with pytest.raises(ConfigError, match=r"guard\.max_norm"):
        check_secure_aggregation(
            RandomSelection(clients_per_round=3), FedAvg(), Guard(max_norm=1.0), TrialEngine(6)
        )


def test_the_documentation_says_the_same():
    rows = dict(re.findall(r"^\| `([a-z0-9-]+)` \| (yes|no|as inside)", PAGE.read_text(), re.MULTILINE))
    tried = {name: selector_with_defaults(name) for name in selectors}  # None: made of other selectors
    obstacles = {name: obstacle_in_selection(own) for name, own in tried.items() if own is not None}
    obstacles |= {name: obstacle_in_aggregation(aggregators.get(name)()) for name in aggregators}
    expected = dict.fromkeys(tried, "as inside") | {
        name: "no" if why else "yes" for name, why in obstacles.items()
    }
    assert rows == expected
    assert np.all([rows[name] for name in ON_SUMS])


def test_what_takes_something_from_single_updates_is_refused_and_named():
    selector, engine = RandomSelection(clients_per_round=3), TrialEngine(6)
    for why, parts in {
        "Median does not work .* its result depends on individual updates": (selector, Median(), Guard(), engine),
        "FedAvg does not work .* clip_norm": (selector, FedAvg(clip_norm=1.0), Guard(), engine),
        "FedAvg does not work .* max_weight": (selector, FedAvg(max_weight=0.5), Guard(), engine),
        "CA2FL does not work .* keeps the last update": (selector, CA2FL(), Guard(), engine),
        "Terraform does not work .* 'final_layer_norm'": (Terraform(3), FedAvg(), Guard(), engine),
        "the filter 'clip' does not work .* acts on individual": (
            selector,
            FedAvg(),
            Guard(),
            engine,
            (Clip(1.0),),
        ),
    }.items():
        with pytest.raises(ConfigError, match=why):
            check_secure_aggregation(*parts)


def test_a_trial_has_as_many_clients_as_the_federation():
    """A selector that looks at individual updates in a large federation only is found out in one."""

    class Large(Selector):
        def round(self, fed: View) -> Plan:
            yield Train(fed.available[:2], report=(FinalLayerNorm(),) if fed.clients > 40 else ())

    check_secure_aggregation(Large(), FedAvg(), Guard(), TrialEngine(40))
    with pytest.raises(ConfigError, match="Large does not work"):
        check_secure_aggregation(Large(), FedAvg(), Guard(), TrialEngine(41))
