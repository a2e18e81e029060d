"""The experiment file as a JSON schema (draft 2020-12), so that editors complete and check it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pydantic

from muster.config.experiment import plain_setting
from muster.config.options import Option, options_of, sections
from muster.config.workloads import workload_summaries

DRAFT = "https://json-schema.org/draft/2020-12/schema"

Schema = dict[str, Any]

#: Keys that a section has besides those of its components.
BESIDE: dict[str, Schema] = {
    "data": {
        "validation": {"type": "number", "description": "Share or number of the samples that are held out."},
        "normalise": {"type": "array", "items": {"type": "number"}, "description": "Mean and spread of inputs."},
    },
    "partition": {"seed": {"type": "integer", "minimum": 0, "description": "Default: the experiment's seed."}},
    "model": {
        "init": {"type": "string", "description": "How layers are initialised."},
        "weights": {"type": "string", "description": "A file with pre-trained weights."},
        "freeze": {
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
            "description": "What is not trained: 'backbone', or names of parts.",
        },
    },
    "selection": {"fraction": {"type": "number", "description": "Share of the clients, for clients_per_round."}},
    "devices": {"model": {"type": "string", "description": "The older name of `method`."}},
}


def experiment_schema() -> Schema:
    """What an experiment file may contain."""
    known = sections()
    repeated = {"filters"}
    properties: Schema = {
        "name": {"type": "string", "description": "The run's name in tables."},
        "seed": {"type": "integer", "minimum": 0, "default": 0},
        "rounds": {"type": "integer", "minimum": 1, "default": 20},
        "workload": {
            "enum": sorted(workload_summaries()),
            "description": "A paper's federation; sections beside it change what it says.",
        },
    }
    for section, (key, components) in known.items():
        described = _section(key, components, BESIDE.get(section, {}))
        properties[section] = {"type": "array", "items": described} if section in repeated else described
    # engine = "vectorised" is short for the section with that kind.
    properties["engine"] = {"anyOf": [properties["engine"], {"type": "string"}]}
    properties["tracking"] = {"type": "object", "description": "Trackers that follow the run."}
    return {
        "$schema": DRAFT,
        "title": "An experiment of Muster",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }


def _section(key: str, components: dict[str, Callable[..., Any]], beside: Schema) -> Schema:
    if not key:
        return _options(components[""])
    exact = {name: _options(component) for name, component in components.items()}
    # Editors complete from all keys of all methods; which of them fit is defined per method.
    everything: Schema = {}
    for described in exact.values():
        everything |= described["properties"]
    naming: Schema = {"enum": sorted(components), "description": "; ".join(_summaries(components))}
    return {
        "type": "object",
        "properties": {**dict.fromkeys(everything, True), key: naming, **beside},
        "additionalProperties": False,
        "allOf": [
            {
                "if": {"properties": {key: {"const": name}}, "required": [key]},
                "then": {
                    "properties": {key: True, **described["properties"], **beside},
                    "additionalProperties": False,
                },
            }
            for name, described in exact.items()
        ],
    }


def _summaries(components: dict[str, Callable[..., Any]]) -> list[str]:
    return [f"{name}: {_first_line(component)}" for name, component in sorted(components.items())]


def _first_line(component: Callable[..., Any]) -> str:
    return ((inspect.getdoc(component) or "").strip().splitlines() or [""])[0]


def _options(component: Callable[..., Any]) -> Schema:
    return {
        "type": "object",
        "description": _first_line(component),
        "properties": {option.name: _option(option) for option in options_of(component)},
        "additionalProperties": False,
    }


def _option(option: Option) -> Schema:
    try:
        described = pydantic.TypeAdapter(option.hint).json_schema()
    except pydantic.errors.PydanticUserError:  # only Python can pass it: a selector inside another
        described = {}
    if option.comment:
        described["description"] = option.comment
    if not option.required and option.default is not None:
        described["default"] = plain_setting(option.default)
    return described
