"""Settings that nobody wrote down are settings, too."""

from __future__ import annotations

import pytest

from muster.config.defaults import with_defaults
from muster.config.experiment import CheckpointOptions, EngineOptions, EvaluationOptions, Experiment, from_dict
from muster.config.flower import FlowerOptions
from muster.config.identity import CHANGED_DEFAULTS, fingerprint
from muster.core.registry import build
from muster.experiment.choice import chosen_results, runs_without_rounds
from muster.experiment.runner import run
from muster.results.store import Store
from muster.results.store.runs import fits
from muster.selection.base import selectors
from muster.training.base import LocalTraining
from muster.updates.guard import Guard

SECTIONS = tuple(Experiment().described())


def completed(**sections):
    return with_defaults(from_dict(sections).described(), SECTIONS)


@pytest.mark.parametrize(
    ("section", "kind"),
    [
        ("training", LocalTraining),
        ("evaluation", EvaluationOptions),
        ("guard", Guard),
        ("engine", EngineOptions),
        ("flower", FlowerOptions),
        ("checkpoint", CheckpointOptions),
    ],
)
def test_a_complete_section_builds_what_an_empty_one_builds(section, kind):
    filled = completed()[section]
    assert filled
    assert build(kind, filled, section) == kind()


def test_components_bring_their_defaults():
    found = completed(
        model={"name": "mlp"},
        selection={"method": "oort", "clients_per_round": 5},
        devices={"network_spread": 0.1},
    )
    assert found["model"] == {"name": "mlp", "hidden": [64]}
    assert (found["devices"]["method"], found["devices"]["compute_spread"]) == ("lognormal", 0.6)
    assert found["devices"]["network_spread"] == 0.1
    options = {key: value for key, value in found["selection"].items() if key != "method"}
    assert len(options) > 1
    assert selectors.build("oort", options) == selectors.build("oort", {"clients_per_round": 5})


def test_what_is_said_wins_and_what_is_off_stays_off():
    found = completed(training={"lr": 0.5})
    assert (found["training"]["lr"], found["training"]["batch_size"]) == (0.5, 16)
    assert found["availability"] == found["devices"] == found["privacy"] == {}


def test_only_the_sections_that_are_asked_for():
    config = Experiment().described()
    found = with_defaults(config, ["guard", "rounds", "nothing"])
    assert found["guard"]
    assert found["training"] == config["training"] == {}
    assert config["guard"] == {}, "the config itself stays as it is"
    assert "nothing" not in found


@pytest.mark.parametrize(
    "section", [{"method": "from elsewhere", "own": 3}, {"method": 7}, {"own": 3}, {"object": "Mine", "own": 3}]
)
def test_what_is_not_known_here_stays_as_it_is(section):
    assert with_defaults({"selection": section}, ["selection"]) == {"selection": section}
    assert fits({"selection": section}, {"selection.own": section.get("own")}) == ("own" in section)


def test_an_unknown_model_of_devices_stays_as_it_is():
    assert with_defaults({"devices": {"model": "x"}}, ["devices"]) == {"devices": {"model": "x"}}


def test_conditions_find_runs_that_rely_on_defaults(tmp_path):
    small = {"rounds": 1, "partition": {"scheme": "iid", "clients": 4}}
    small["selection"] = {"method": "random", "clients_per_round": 2}
    told, silent, other = (from_dict(small | {"training": t}) for t in ({"epochs": 1}, {}, {"epochs": 2}))
    with Store(tmp_path) as store:
        store.plan([told, silent, other])
        wanted = [told.fingerprint, silent.fingerprint]
        assert [run.fingerprint for run in store.runs(where={"training.epochs": 1})] == wanted
        both = {"training.epochs": 1, "guard.max_failed_rounds": Guard().max_failed_rounds}
        assert [run.fingerprint for run in store.runs(where=both)] == wanted
        assert not store.runs(where={"training.epochs": 1, "model.hidden": [3]})
    run(silent, 0, store=tmp_path)
    (result,) = chosen_results(where=["training.epochs=1", "model.hidden=[64]"], folder=tmp_path)
    assert result.provenance.fingerprint == silent.fingerprint
    (planned,) = runs_without_rounds(where=["training.epochs=1"], folder=tmp_path)
    assert planned.fingerprint == told.fingerprint


def test_changed_defaults_are_those_of_today():
    today = LocalTraining()
    assert CHANGED_DEFAULTS["training"] == {"lr": today.lr, "batch_size": today.batch_size}


def test_what_relies_on_a_changed_default_is_another_run_than_before():
    silent, told, before = (
        fingerprint(from_dict({"training": t}).described())
        for t in ({}, {"lr": 0.1, "batch_size": 16}, {"lr": 0.01, "batch_size": 64})
    )
    assert silent == told != before


def test_an_empty_file_learns():
    result = run(from_dict({}), workers=0)
    assert result.metrics[-1]["accuracy"] > 0.85
