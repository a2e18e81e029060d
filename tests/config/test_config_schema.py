"""The JSON schema of experiment files: what Muster reads is valid, and mistakes are found where they are."""

from __future__ import annotations

import tomllib
from pathlib import Path

import jsonschema
import pytest

from muster.config.options import options_of, readable_type, sections, sections_with
from muster.config.schema import experiment_schema
from muster.config.workloads import workload, workload_summaries
from muster.core.errors import ConfigError
from muster.core.registry import build

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS = sorted(
    path
    for path in [*ROOT.glob("examples/**/*.toml"), *ROOT.glob("src/muster/cli/templates/*.toml")]
    if not {"base", "project"} & set(tomllib.loads(path.read_text("utf-8")))
)


@pytest.fixture(scope="module")
def validator():
    schema = experiment_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_examples_are_valid(validator, path):
    validator.validate(tomllib.loads(path.read_text("utf-8")))


@pytest.mark.parametrize("name", sorted(workload_summaries()))
def test_workloads_are_valid(validator, name):
    validator.validate(workload(name))


@pytest.mark.parametrize(
    ("config", "where"),
    [
        ({"selection": {"method": "terafrom"}}, ["selection", "method"]),
        ({"selection": {"method": "random", "min_clients": 4}}, ["selection"]),
        ({"selection": {"method": "terraform", "min_clients": "four"}}, ["selection", "min_clients"]),
        ({"selektion": {}}, []),
        ({"rounds": 0}, ["rounds"]),
        ({"training": {"lr": "fast"}}, ["training", "lr"]),
        ({"training": {"learning_rate": 0.1}}, ["training"]),
        ({"filters": {"method": "clip"}}, ["filters"]),
        ({"pacing": {"method": "buffered", "in_flight": "many"}}, ["pacing", "in_flight"]),
    ],
)
def test_mistakes_are_found_where_they_are(validator, config, where):
    errors = list(validator.iter_errors(config))
    assert any(list(error.path) == where for error in errors), [list(error.path) for error in errors]


def test_every_registered_component_is_described():
    for section, (key, components) in sections().items():
        for name, component in components.items():
            for option in options_of(component):
                assert readable_type(option.hint), (section, key, name, option.name)


def test_comments_come_from_the_code():
    options = {option.name: option for option in options_of(sections()["selection"][1]["terraform"])}
    assert options["clients_per_round"].required
    assert options["min_clients"].comment.startswith("η: the round ends")
    assert options["quartiles"].default == (0.25, 0.75)
    inherited = {option.name: option for option in options_of(sections()["aggregation"][1]["fedavg"])}
    assert inherited["server_lr"].comment.startswith("How far the server moves")


def test_options_that_are_described_can_be_given():
    """Defaults as they are described build the component: description and constructor cannot drift apart."""
    for name in ("terraform", "oort", "fedcor"):
        component = sections()["selection"][1][name]
        values = {option.name: option.default for option in options_of(component) if not option.required}
        build(component, {"clients_per_round": 4, **values}, "selection")


def test_where_a_key_belongs():
    assert sections_with("lr") == ["training"]
    assert "selection" in sections_with("clients_per_round")
    assert sections_with("nonsense") == []
    with pytest.raises(ConfigError, match="unknown key 'selection"):
        build(sections()["selection"][1]["random"], {"clients": 3}, "selection")
