"""Which settings determine a result: written here once, for everything that depends on it.

A run's fingerprint, the nodes that must agree with their server, the runs that a comparison puts together, and the
runs from whose pace another's time is estimated: all of them follow from what is defined here. Functions take what
`Experiment.described` gives, which is also what a result and a store keep as the run's config.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

#: Sections that change no result. Of the engine's settings only the kind may, by rounding.
HABITS = ("name", "engine", "flower", "checkpoint", "tracking")

#: The sections that determine what clients do: server and nodes must agree on them.
CLIENT_SECTIONS = ("seed", "data", "partition", "model", "training", "algorithm", "devices")

#: The sections that say what is done about a problem, and how it is watched. Everything else that determines a
#: result (data, partition, model, local training, rounds, devices, availability) is the problem itself.
METHOD_SECTIONS = (
    "selection",
    "aggregation",
    "algorithm",
    "pacing",
    "filters",
    "guard",
    "limits",
    "privacy",
    "evaluation",
    "engine",
)

#: The sections that centralised training shares with the federation that it is compared with.
SHARED_WITH_CENTRALISED = ("data", "partition", "model")

#: Defaults that have changed since runs were first kept. A config that leaves them open is identified by their
#: present values, so that it is not taken for an older run.
CHANGED_DEFAULTS: dict[str, dict[str, Any]] = {"training": {"lr": 0.1, "batch_size": 16}}

#: Kinds of engine that give the same bits; the first stands for all of them.
_ALIKE = (("vectorised",), ("processes", "inline"))


def determining(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that determine a result, in sections. Runs that have them in common are the same run.

    An engine that is asked for by name determines rounding. The one that is chosen ("auto") follows from the rest.
    """
    sections = {key: value for key, value in config.items() if key not in HABITS}
    if not sections.get("privacy"):
        # Runs without noise are the same as before there was a choice.
        sections.pop("privacy", None)
    for section, defaults in CHANGED_DEFAULTS.items():
        if isinstance(said := sections.get(section), Mapping):
            sections[section] = {**defaults, **said}
    kind = config.get("engine", {}).get("kind", "auto")
    return sections if kind == "auto" else sections | {"engine": {"kind": _standing_for(kind)}}


def fingerprint(config: Mapping[str, Any]) -> str:
    """Identifies a run by what determines its result."""
    settings = determining(config)
    if "engine" in settings:
        # As stores have it.
        settings["engine"] = "vectorised" if settings["engine"]["kind"] == "vectorised" else "one by one"
    return _hashed(settings)


def client_fingerprint(config: Mapping[str, Any]) -> str:
    """Identifies the clients' side of an experiment; server and nodes compare it before they work together."""
    settings = determining(config)
    sections = {section: settings[section] for section in CLIENT_SECTIONS}
    if "objective" in settings:
        sections["objective"] = settings["objective"]
    # Those that do not say that they are on the server may be the clients'.
    filters = [
        step for step in settings.get("filters", ()) if not isinstance(step, dict) or step.get("side") != "server"
    ]
    return _hashed(sections | {"filters": filters} if filters else sections)


def pace_kind(config: Mapping[str, Any]) -> str:
    """What runs whose rounds take equally long have in common: all but seed and length, and where clients run."""
    settings = {key: value for key, value in determining(config).items() if key not in ("seed", "rounds")}
    return _hashed(settings | {key: config.get(key, {}) for key in ("engine", "flower")})


def problem_sections(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the problem that a run works on: what determines its result, but for seed and method.

    Centralised training has no federation, so its problem is the data, the clients that test on it and the model.
    """
    if is_centralised(config):
        return {name: config[name] for name in SHARED_WITH_CENTRALISED if name in config}
    return {key: value for key, value in determining(config).items() if key not in ("seed", *METHOD_SECTIONS)}


def is_centralised(config: Mapping[str, Any]) -> bool:
    """Whether one model was trained on the data of all clients together."""
    training = config.get("training", {})
    return isinstance(training, Mapping) and training.get("mode") == "centralised"


def _standing_for(kind: str) -> str:
    return next((alike[0] for alike in _ALIKE if kind in alike), kind)


def _hashed(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
