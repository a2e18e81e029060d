"""An experiment's settings beside the published ones: what differs, who decided the rest, what is default."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

from muster.config.defaults import COMPONENTS, taker
from muster.config.identity import HABITS
from muster.config.provenance import Kind, Provenance, Sources, leaves
from muster.core.registry import parameters_of
from muster.training.base import LocalTraining

#: Sections whose methods are what rows compare: another one is another row, not a difference from the paper.
METHODS = ("algorithm", "selection", "aggregation")
#: What does not change what is learned.
IRRELEVANT = (*HABITS, "evaluation", "rounds_share")

#: What is worth saying of local training where it is left open; options of schedules that are not used are not.
_OF_TRAINING = ("optimizer", "schedule", "momentum", "nesterov", "weight_decay", "clip_norm", "batch_size")

#: Options that say where things are, not what is learned.
_OF_THE_MACHINE = ("data_dir", "memory_limit_mb")

#: Sizes that a network's name stands for: they are not left open where the name is given.
_BY_NAME = {
    "cifar100-cnn": ("filters", "hidden"),
    "conv3": ("filters", "hidden"),
    "resnet20": ("width", "blocks"),
}
#: Options that act on answers to an earlier model. The papers' experiments are synchronous: there are none.
_OF_LATE_ANSWERS = ("staleness", "staleness_a", "staleness_b")

#: Options that act only while another one has one of these values: section, component (any: "*"), the other
#: option, its values, and the options. Listing an idle default would describe something that does not happen.
_ACTIVE_WITH: tuple[tuple[str, str, str, tuple[object, ...], tuple[str, ...]], ...] = (
    ("data", "banking77", "encoder", ("tfidf", "hashing", "words"), ("width",)),
    ("data", "banking77", "encoder", ("words", "wordpiece"), ("length",)),
    ("data", "banking77", "encoder", ("wordpiece",), ("vocabulary",)),
    (
        "partition",
        "group-skew",
        "table",
        (None,),
        ("clients", "class_skew", "attribute_skew", "correlation", "size", "share"),
    ),
    ("partition", "sampled-shards", "sampler", ("poisson",), ("rate",)),
    ("partition", "sampled-shards", "allocation", ("dirichlet",), ("alpha",)),
    ("model", "*", "norm", ("group",), ("groups",)),
    ("model", "text-classifier", "encoder", ("bag", "transformer"), ("vocabulary", "width")),
    ("model", "text-classifier", "encoder", ("transformer",), ("layers", "heads", "dropout")),
    ("training", "*", "optimizer", ("sgd",), ("momentum", "nesterov")),
    ("selection", "diversity-score", "js", ("divergence",), ("unit",)),
    (
        "selection",
        "feddiverse",
        "estimate",
        ("estimated", "shared"),
        (
            "degenerate",
            "biased_start",
            "biased_head",
            "biased_steps",
            "attribute_steps",
            "gce_q",
            "estimate_lr",
            "estimate_batch",
        ),
    ),
)

#: Where all data is in one place, nothing is divided, nobody is selected and nothing is averaged.
_AMONG_CLIENTS = ("partition", "selection", "aggregation")

#: Differences that matter most stand first.
_FIRST = {"data": 0, "model": 1, "rounds": 2, "training.lr": 3}

#: Who decided each setting, by its dotted name; None: no table says.
Decisions: TypeAlias = Mapping[str, Provenance | None]


@dataclass(frozen=True)
class Difference:
    """Something that is not as in the full-size preset, and who decided how it is there."""

    what: str
    published: str
    ours: str
    #: "default": the preset leaves it to Muster; None: no table says.
    decided: Kind | Literal["default"] | None = None


@dataclass(frozen=True)
class Setting:
    """A value that is as in the full-size preset, and who decided it."""

    name: str
    value: str
    provenance: Provenance | None


class Placed(Protocol):
    """Something of a cell and a row."""

    @property
    def cell(self) -> str: ...
    @property
    def row(self) -> str: ...


def acting(sections: Mapping[str, Any]) -> dict[str, Any]:
    """The sections that change what is learned."""
    idle = _AMONG_CLIENTS if sections.get("training", {}).get("mode") == "centralised" else ()
    return {section: values for section, values in sections.items() if section not in idle}


def difference(published: Mapping[str, Any], ours: Mapping[str, Any], decided: Decisions) -> list[Difference]:
    """What was changed, section by section."""
    found: list[Difference] = []
    for section in dict.fromkeys([*published, *ours]):
        before, after = published.get(section, {}), ours.get(section, {})
        if section in IRRELEVANT or before == after:
            continue
        if _name(section, before) != _name(section, after):
            key = COMPONENTS[section][0]
            found.append(
                _difference(
                    section, f"{section}.{key}", told(section, before, decided), told(section, after), decided
                )
            )
        elif isinstance(after, Mapping):
            found += _options(section, before, after, decided)
        else:
            found.append(_difference(section, section, text(before), text(after), decided))
    return found


def _name(section: str, values: Any) -> str | None:
    named: str | None = values.get(COMPONENTS[section][0]) if section in COMPONENTS else None
    return named


def _options(
    section: str, before: Mapping[str, Any], after: Mapping[str, Any], decided: Decisions
) -> Iterator[Difference]:
    """The options of one component that differ."""
    keys = [key for key in dict.fromkeys([*before, *after]) if before.get(key) != after.get(key)]
    if section == "training" and {"epochs", "steps"} & set(keys):
        # Steps count instead of epochs where there are any: one thing, said in one line.
        keys = [key for key in keys if key not in ("epochs", "steps")]
        name = "training.steps" if "steps" in before else "training.epochs"
        if _work(before) != _work(after):
            yield _difference("training", name, _work(before), _work(after), decided)
    defaults = defaults_of(section, after)
    for key in keys:
        values = [text(values.get(key, defaults.get(key))) for values in (before, after)]
        yield _difference(f"{section}.{key}", f"{section}.{key}", values[0], values[1], decided)


def _difference(what: str, name: str, before: str, after: str, decided: Decisions) -> Difference:
    provenance = decided.get(name)
    return Difference(
        what, before, after, "default" if name not in decided else provenance.kind if provenance else None
    )


def _work(training: Mapping[str, Any]) -> str:
    steps, epochs = training.get("steps"), training.get("epochs", LocalTraining.epochs)
    count, unit = (epochs, "epoch") if steps is None else (steps, "step")
    return f"{count} {unit}{'s' if count != 1 else ''}"


def unchanged(published: Mapping[str, Any], ours: Mapping[str, Any], decided: Decisions) -> list[Setting]:
    """The settings that are as in the preset, and who decided them."""
    before = dict(leaves(published))
    return [
        Setting(name, text(value), decided.get(name))
        for name, value in leaves(ours)
        if relevant(name) and name in before and before[name] == value
    ]


def defaults_named(ours: Mapping[str, Any], sources: Sources, sections: Sequence[str] = METHODS) -> list[Setting]:
    """Options that are left at their defaults although a table says who decided them: a paper's own method has
    options that it does not state, and a network of public code may be the one that is built in."""
    return [
        Setting(f"{section}.{name}", text(value), provenance)
        for section in sections
        for name, value in left_open(section, ours.get(section, {})).items()
        if (provenance := sources.named(f"{section}.{name}")) is not None
    ]


def relevant(name: str) -> bool:
    """Whether a setting changes what is learned."""
    return name.partition(".")[0] not in IRRELEVANT


# --- as lines ----------------------------------------------------------------------------------------------------

_AGAINST = {
    "paper": "the paper",
    "code": "public code",
    "ours": "our choice at full size",
    "default": "our default",
    None: "the preset",
}


def differences_told(runs: Sequence[tuple[Placed, Sequence[Difference]]]) -> list[str]:
    """The differences of all runs as lines; those that only some cells or rows have say which."""
    lines = []
    having = _grouped(runs)
    for one in sorted(having, key=lambda one: _FIRST.get(one.what, len(_FIRST))):
        against = _AGAINST[one.decided]
        lines.append(
            f"differs from {against}: {one.what}: {one.ours} instead of {one.published}"
            + _suffix(having[one], runs)
        )
    return lines


def decisions_told(runs: Sequence[tuple[Placed, Sequence[Setting]]]) -> list[str]:
    """What is not from the paper, one line for each reason."""
    having = _grouped(runs)
    lines: dict[str, list[str]] = {}
    for one, placed in having.items():
        if one.provenance is None or one.provenance.kind != "paper":
            value = f"{one.name} {one.value}{_suffix(placed, runs)}"
            lines.setdefault(_origin(one.provenance), []).append(value)
    return [f"{origin}: {', '.join(values)}" for origin, values in sorted(lines.items())]


def _origin(provenance: Provenance | None) -> str:
    if provenance is None:
        return "no source says who decided"
    name = {"paper": "from the paper", "code": "from public code", "ours": "our choice"}[provenance.kind]
    return f"{name} ({provenance.note})" if provenance.note else name


def options_told(
    runs: Sequence[tuple[Placed, Mapping[str, Any]]], decided: Sequence[Sequence[Setting]] = ()
) -> list[str]:
    """The methods of all rows with all their options, and what else is left at Muster's defaults; not those of
    which another line says who decided them (`decided`, for each run)."""
    lines = []
    told = [{setting.name for setting in settings} for settings in decided] or [set()] * len(runs)
    for section in METHODS:
        methods: dict[str, list[tuple[Placed, Mapping[str, Any]]]] = {}
        for placed, sections in runs:
            if section in sections:
                methods.setdefault(str(_name(section, sections[section])), []).append((placed, sections[section]))
        for method, having in sorted(methods.items()):
            if parts := _options_of_method(section, having):
                where = _suffix([placed for placed, _ in having], runs)
                lines.append(f"options: {section} {method}{where}: {'; '.join(parts)}")
    others = [
        (placed, [f"{name} {value}" for name, value in _left_open(sections) if name not in known])
        for (placed, sections), known in zip(runs, told, strict=True)
    ]
    left = [f"{one}{_suffix(placed, others)}" for one, placed in _grouped(others).items()]
    return [*lines, *([f"left at our defaults: {', '.join(left)}"] if left else [])]


def _options_of_method(section: str, having: Sequence[tuple[Placed, Mapping[str, Any]]]) -> list[str]:
    """The options of one method: those that are set, and its defaults. The size of cohorts is the federation's."""
    own = (COMPONENTS[section][0], "clients_per_round")
    given = [(placed, _each({k: v for k, v in values.items() if k not in own})) for placed, values in having]
    defaults = [
        (placed, _each({k: v for k, v in left_open(section, values).items() if k not in own}))
        for placed, values in having
    ]
    parts = []
    for words, options in (("", given), ("by default ", defaults)):
        if grouped := _grouped(options):
            parts.append(words + ", ".join(f"{one}{_suffix(some, having)}" for one, some in grouped.items()))
    return parts


def _each(options: Mapping[str, Any]) -> list[str]:
    return [f"{name} {text(value)}" for name, value in options.items()]


def _left_open(sections: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Options of data, division, model and local training that a preset does not set."""
    for section in (section for section in ("data", "partition", "model", "training") if section in sections):
        for name, value in left_open(section, sections[section]).items():
            if section != "training" or name in _OF_TRAINING:
                yield f"{section}.{name}", text(value)


def left_open(section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The defaults of the options that are not set and that act beside those that are."""
    defaults = defaults_of(section, values)
    chosen = {**defaults, **values}
    idle = {
        name
        for where, component, option, active, names in _ACTIVE_WITH
        if where == section and component in ("*", _name(section, values)) and option in chosen
        if chosen[option] not in active
        for name in names
    }
    named = _BY_NAME.get(str(_name(section, values)), ()) if section == "model" else ()
    silent = {*values, *idle, *named, *_OF_LATE_ANSWERS}
    return {name: value for name, value in defaults.items() if name not in silent}


def defaults_of(section: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a section's component that have a default, with it."""
    component = "" if section == "training" else _name(section, values)
    if component is None:
        return {}
    return {
        name: parameter.default
        for name, parameter in parameters_of(taker(section, str(component))).items()
        if parameter.default is not inspect.Parameter.empty and name not in _OF_THE_MACHINE
    }


def _grouped(runs: Sequence[tuple[Placed, Sequence[Any]]]) -> dict[Any, list[Placed]]:
    having: dict[Any, list[Placed]] = {}
    for placed, items in runs:
        for item in items:
            having.setdefault(item, []).append(placed)
    return having


def _suffix(having: Sequence[Placed], runs: Sequence[tuple[Placed, Any]]) -> str:
    """In which cells and rows, unless in all."""
    everywhere = [placed for placed, _ in runs]
    if len(having) == len(everywhere):
        return ""
    parts = []
    for key in ("cell", "row"):
        names, all_names = (
            list(dict.fromkeys(getattr(one, key) for one in some)) for some in (having, everywhere)
        )
        if len(names) < len(all_names):
            parts.append("; ".join(names))
    return f" ({', '.join(parts) or 'some runs'})"


def told(section: str, values: Mapping[str, Any], decided: Decisions | None = None) -> str:
    """A component with the options that are set; those that we chose for a paper's component say so."""
    key = COMPONENTS[section][0]
    kinds = {name: provenance.kind for name, provenance in (decided or {}).items() if provenance is not None}
    guessed = "ours" if kinds.get(f"{section}.{key}") != "ours" else None
    options = [
        f"{name} {text(value)}{', our choice' if kinds.get(f'{section}.{name}', '') == guessed else ''}"
        for name, value in values.items()
        if name != key
    ]
    return f"{values.get(key, '–')} ({'; '.join(options)})" if options else str(values.get(key, "–"))


def _listed(options: Mapping[str, Any]) -> str:
    return ", ".join(_each(options))


def text(value: Any) -> str:
    """A setting as people read it."""
    if value is None or value in ({}, [], ()):
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return f"({_listed(value)})"
    return "/".join(map(text, value)) if isinstance(value, list | tuple) else str(value)
