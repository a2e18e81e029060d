"""An experiment's description: TOML or Python, checked key by key.

Sections hold the name of a component and its options. In Python a section may also be the component itself.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any, Literal, TypeAlias

import numpy as np
from torch import nn

from muster.aggregation.base import Aggregator
from muster.config import centralised, identity
from muster.config.starting_weights import content_of_weights
from muster.config.toml import read_toml
from muster.config.workloads import workload
from muster.core.component import Component
from muster.core.errors import ELSEWHERE, ConfigError, nearest
from muster.core.own_code import content, own_code
from muster.core.parameters import check_can_be_flat
from muster.core.registry import build
from muster.data.federated import Dataset, FederatedData, check_sum
from muster.data.partition.base import Scheme
from muster.pacing import Pacing
from muster.selection.base import Selector
from muster.training.base import LocalAlgorithm
from muster.training.objectives import Objective
from muster.training.objectives.base import Function as LossFunction
from muster.updates.filters import Filter, filters

Section: TypeAlias = dict[str, Any]

#: The keys with which sections name their component.
NAMING_KEYS = ("method", "name", "scheme", "source")

#: What a name and its code say everything about.
FUNCTIONS = (type, FunctionType, BuiltinFunctionType)

#: Where an experiment that is settled keeps what it is: not one of its sections.
_SETTLED = "_settled"

#: What a store's column of integers holds.
LARGEST_SEED = 2**63 - 1
#: Rounds are counted in 32 bits.
MAX_ROUNDS = 2**31 - 1
#: Keys by which a sweep is told from an experiment.
SWEEP_KEYS = ("base", "seeds", "repeats", "grid", "cases")


def _section(**defaults: Any) -> Callable[[], Section]:
    return lambda: dict(defaults)


@dataclass(frozen=True)
class EvaluationOptions:
    """When the global model is evaluated."""

    #: Rounds from one to the next; always after the last round too.
    every: int = 1


@dataclass(frozen=True)
class EngineOptions:
    """Where clients run. Only `kind` changes results, and those by rounding alone."""

    #: "vectorised": slices of the cohort train as one computation; "processes": clients train one by one in worker
    #: processes; "inline": one by one in this process; "auto": vectorised where the model allows it.
    kind: Literal["auto", "vectorised", "processes", "inline"] = "auto"
    #: Worker processes; None: one per core; 0: in this process.
    workers: int | None = None
    device: str = "auto"
    #: Megabytes of client state (control variates, previous models) kept in memory before it goes to disk.
    client_memory: int = 2048
    #: Seconds after which a worker process counts as hanging and is replaced; None: 20 times as long as the
    #: slowest task so far, at least 300.
    task_deadline: float | None = None


@dataclass(frozen=True)
class CheckpointOptions:
    """How often a run that has an output folder writes its checkpoint, and what is left of the last one."""

    #: Rounds from one to the next; always after the last round too.
    every: int = 1
    #: After the last round: "state": everything, so that the run can be extended; "model": only the model and what
    #: is known about clients, which takes less space where clients or methods keep much (SCAFFOLD, clustering).
    final: Literal["state", "model"] = "state"


#: Clients of a round where nothing is said about selection, and there are as many.
_USUAL_COHORT = 8


class _Unsaid(dict[str, Any]):
    """The selection of an experiment that says nothing about it."""


@dataclass
class Experiment:
    """One run: data, partition, model, local training, selection, aggregation. The defaults work."""

    name: str = ""
    seed: int = 0
    rounds: int = 20
    data: Section | Dataset | FederatedData = field(default_factory=_section(source="digits"))
    partition: Section | Scheme = field(default_factory=_section(scheme="dirichlet", clients=40, alpha=0.3))
    model: Section | nn.Module | Callable[..., nn.Module] = field(default_factory=_section(name="mlp"))
    training: Section = field(default_factory=dict)
    #: What is learnt: an objective, or only a loss; empty: what the data's targets are for.
    objective: Section | Objective | LossFunction = field(default_factory=dict)
    algorithm: Section | LocalAlgorithm = field(default_factory=_section(method="plain"))
    selection: Section | Selector = field(default_factory=_Unsaid)
    aggregation: Section | Aggregator = field(default_factory=_section(method="fedavg"))
    evaluation: Section = field(default_factory=dict)
    guard: Section = field(default_factory=dict)
    filters: list[Section | Filter] = field(default_factory=list)
    engine: Section = field(default_factory=dict)
    flower: Section = field(default_factory=dict)
    checkpoint: Section = field(default_factory=dict)
    availability: Section = field(default_factory=dict)
    devices: Section = field(default_factory=dict)
    pacing: Section | Pacing = field(default_factory=dict)
    privacy: Section = field(default_factory=dict)
    limits: Section = field(default_factory=dict)
    tracking: Section = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.engine, str):  # engine = "vectorised" is short for the section with that kind
            self.engine = {"kind": self.engine}
        if isinstance(self.filters, tuple):
            self.filters = list(self.filters)
        if isinstance(self.selection, _Unsaid):
            self.selection = {"method": "random", "clients_per_round": min(_USUAL_COHORT, self._known_clients())}

    def _known_clients(self) -> int:
        """How many clients there are, where that can be said before the data is read; else any number."""
        if isinstance(self.data, FederatedData):
            return self.data.clients
        said = self.partition.get("clients") if isinstance(self.partition, dict) else None
        return said if type(said) is int and said > 0 else _USUAL_COHORT

    def check(self) -> None:
        """Refuse what is neither a section nor a component, before anything is built from it."""
        objects: dict[str, tuple[type, ...]] = {
            "data": (Dataset, FederatedData),
            "partition": (Scheme,),
            "objective": (Objective,),
            "algorithm": (LocalAlgorithm,),
            "selection": (Selector,),
            "aggregation": (Aggregator,),
            "pacing": (Pacing,),
        }
        for name, value in self.to_dict().items():
            if name in ("seed", "rounds"):
                if isinstance(value, bool) or not isinstance(value, int | np.integer):
                    raise ConfigError(f"bad value for '{name}': {value!r}", expected="an integer")
                if name == "rounds" and not 1 <= value <= MAX_ROUNDS:
                    raise ConfigError(f"rounds is {value}", expected=f"at least 1, at most {MAX_ROUNDS}")
                if name == "seed":
                    _check_seed(int(value))
            if name == "filters":
                check_list(value)
                continue
            if name == "model" and isinstance(value, nn.Module):
                check_can_be_flat(value)
            if name in ("name", "seed", "rounds", "model") or isinstance(value, (dict, *objects.get(name, ()))):
                continue
            if name == "objective" and callable(value):
                continue
            component = " or ".join(kind.__name__ for kind in objects.get(name, ()))
            expected = "a dict of options" + (f", or an object of class {component}" if component else "")
            key = {"data": "source", "partition": "scheme"}.get(name, "method")
            fix = f'for example {name}={{"{key}": "{value}"}}' if component and isinstance(value, str) else ""
            if isinstance(value, type) and issubclass(value, objects.get(name, ())):
                fix = f"this is the class itself; make an object of it: {name}={value.__name__}(…)"
            raise ConfigError(f"bad value for '{name}': {value!r}", expected=expected, fix=fix)

    def with_options(self, settings: Iterable[str]) -> Experiment:
        """A copy with `section.key=value` settings applied; values are read as TOML."""
        values = self.to_dict()
        for setting in settings:
            apply_setting(values, setting)
        return from_dict(values)

    def to_dict(self) -> dict[str, Any]:
        """The sections as they are; components that were passed as objects stay objects."""
        return {f.name: copied(getattr(self, f.name)) for f in fields(self)}

    @property
    def centralised(self) -> bool:
        """One model is trained on the data of all clients together."""
        return isinstance(self.training, dict) and self.training.get("mode") == "centralised"

    def as_run(self) -> Experiment:
        """What is really run: without a federation, sections that only a federation has are ignored."""
        return replace(self, **copy.deepcopy(centralised.SECTIONS)) if self.centralised else self

    def unused(self) -> list[str]:
        """The sections with settings that the run does not use."""
        usual, run = Experiment(), self.as_run()
        return [
            name
            for name in centralised.SECTIONS
            if getattr(self, name) not in (getattr(run, name), getattr(usual, name))
        ]

    def described(self) -> dict[str, Any]:
        """What is run in plain types, for reports and fingerprints, without trackers."""
        if (settled := self._kept()) is not None:
            return dict(settled[1])
        sections = self.as_run().to_dict()
        del sections["tracking"]
        for later in ("filters", "pacing", "limits", "objective"):
            # Runs without them are described as they were before there were any.
            if not sections[later]:
                del sections[later]
        # A network's numbers are where it starts, and no setting.
        return {name: plain_setting(value, numbers=name != "model") for name, value in sections.items()}

    @property
    def fingerprint(self) -> str:
        """Identifies the run by what determines its result (see `muster.config.identity`)."""
        if (settled := self._kept()) is not None:
            return settled[0]
        described = self.described()
        if isinstance(self.model, nn.Module):
            # It is trained from the numbers that it has: no setting, but they determine the result.
            numbers = [tensor.detach().cpu().numpy() for tensor in self.model.state_dict().values()]
            described["model"] = {**described["model"], "start": check_sum(*numbers)}
        from muster.config.own_components import code_of_names  # which needs experiments itself

        if codes := code_of_names(described):
            described["own code"] = codes
        if weights := content_of_weights(described["model"]):
            described["starting weights"] = weights
        return identity.fingerprint(described)

    def settled(self) -> Experiment:
        """A copy that keeps its present fingerprint and description, in other processes as well.

        A run is the same run until its end, even where a user's own loss counts in a global list how often it
        was called. Made for a run, not to be changed; `dataclasses.replace` gives an experiment without it.
        """
        if self._kept() is not None:
            return self
        kept = copy.copy(self)
        vars(kept)[_SETTLED] = (self.fingerprint, self.described())
        return kept

    def _kept(self) -> tuple[str, dict[str, Any]] | None:
        return vars(self).get(_SETTLED)

    @property
    def title(self) -> str:
        """The run's name in tables."""
        if self.name:
            return self.name
        if self.centralised:
            return "centralised"
        if isinstance(self.selection, dict):
            # Of one's own class, module:Class, its name will do.
            return str(self.selection.get("method", "random")).rpartition(":")[2]
        return type(self.selection).__name__


def from_dict(values: Mapping[str, Any]) -> Experiment:
    """An experiment from nested dicts, with errors that name the key.

    The key `workload` names a preset from a paper; sections given beside it change or replace what it says.
    """
    values = dict(values)
    if isinstance(values.get("engine"), str):
        values["engine"] = {"kind": values["engine"]}
    if (name := values.pop("workload", None)) is not None:
        values = on_workload(str(name), values)
    allowed = {f.name: f for f in fields(Experiment)}
    for key, value in values.items():
        if key in SWEEP_KEYS:
            raise ConfigError(
                f"'{key}' belongs to a sweep, and this is read as a single experiment",
                fix="run the file with `muster sweep`, or read it with muster.experiment.load_sweep",
            )
        if key not in allowed:
            raise ConfigError(
                f"unknown key or section '{key}'", expected=_meant(key) or nearest(key, [*allowed, "workload"])
            )
        if key == "filters":
            check_list(value)
        elif key not in ("name", "seed", "rounds") and not isinstance(value, dict) and _is_plain(value):
            raise ConfigError(f"bad value for '{key}': {value!r}", expected=f"a section [{key}] with keys")
    scalars = {k: v for k, v in values.items() if k in ("name", "seed", "rounds")}
    checked: Experiment = build(Experiment, scalars, "")
    _check_seed(checked.seed)
    return replace(checked, **{k: v for k, v in values.items() if k not in scalars})


def _check_seed(seed: int) -> None:
    if not 0 <= seed <= LARGEST_SEED:
        raise ConfigError(
            f"bad value for 'seed': {seed}", expected=f"zero or a positive integer up to {LARGEST_SEED}"
        )


def _meant(key: str) -> str:
    """Where a key that is outside every section belongs; "": nowhere."""
    from muster.config.options import sections_with  # which needs experiments itself

    key = ELSEWHERE.get(key, key)
    found = [f"'{section}.{key}'" for section in sections_with(key)]
    return f"did you mean {' or '.join(found)}?" if found else ""


def on_workload(name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
    """A paper's workload with changes."""
    return {"name": name} | merged(workload(name), changes)


def merged(sections: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Sections with changes. A section that names another component starts afresh, except for the options that all
    methods of its kind have: they are not the former method's own."""
    result = dict(sections)
    for key, change in changes.items():
        before = result.get(key)
        if isinstance(before, dict) and isinstance(change, dict):
            renamed = any(k in change and k in before and change[k] != before[k] for k in NAMING_KEYS)
            result[key] = _common_options(key, before) | change if renamed else before | change
        else:
            result[key] = change
    return result


def _common_options(section: str, values: Mapping[str, Any]) -> Section:
    """Those of a section's options that every method of its kind has (as aggregation's server_lr)."""
    kind = {"selection": Selector, "aggregation": Aggregator, "algorithm": LocalAlgorithm}.get(section)
    common = [f.name for f in fields(kind) if f.init] if kind is not None and is_dataclass(kind) else []
    return {name: value for name, value in values.items() if name in common}


def load(path: Path | str, settings: Iterable[str] = ()) -> Experiment:
    """Read an experiment from a TOML file; `settings` are `section.key=value` overrides."""
    values = read_toml(Path(path), "config", fix="check the path, or try `muster quickstart`")
    for setting in settings:
        apply_setting(values, setting)
    return from_dict(values)


def apply_setting(values: dict[str, Any], setting: str) -> None:
    """Set `section.key=value` in nested dicts."""
    path, equals, text = setting.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(
            f"bad setting '{setting}'", expected="section.key=value, for example training.lr=0.05 or seed=3"
        )
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()  # a bare word is a string: quoting quotes in a shell is a nuisance
    target = values
    for key in keys[:-1]:
        target = target.setdefault(key, {})
        if not isinstance(target, dict):
            raise ConfigError(f"bad setting '{setting}': '{key}' is not a section")
    target[keys[-1]] = value


def checkpoint_options(experiment: Experiment) -> CheckpointOptions:
    """When a run is kept, with errors that name the key."""
    options: CheckpointOptions = build(CheckpointOptions, experiment.checkpoint, "checkpoint")
    if options.every < 1:
        raise ConfigError(f"bad value for 'checkpoint.every': {options.every}", expected="at least 1")
    return options


def check_list(value: object) -> None:
    """Refuse what is not a list of update filters, each as a section or as an object."""
    if isinstance(value, list) and all(isinstance(item, dict | Filter) for item in value):
        return
    raise ConfigError(
        f"bad value for 'filters': {value!r}",
        expected="a list of filters, each a section [[filters]] with a method, or an object of class Filter",
    )


def build_filters(sections: Sequence[Section | Filter]) -> tuple[Filter, ...]:
    """The update filters of an experiment, in their order, with errors that name the key."""
    built = []
    for number, section in enumerate(sections):
        if isinstance(section, Filter):
            built.append(copy.deepcopy(section))  # what one run leaves in it must not change the next
            continue
        title = f"filters[{number}]"
        if "method" not in section:
            raise ConfigError(f"missing key '{title}.method'", expected=", ".join(filters.names()))
        options = {key: value for key, value in section.items() if key != "method"}
        built.append(filters.build(section["method"], options, title))
    return tuple(built)


def copied(value: Any) -> Any:
    """New sections and lists; the objects in them are shared, not copied, because data may be large."""
    if isinstance(value, list | tuple):
        return [copied(item) for item in value]
    return {key: copied(item) for key, item in value.items()} if isinstance(value, dict) else value


def _is_plain(value: Any) -> bool:
    return isinstance(value, str | int | float | bool | list | None)


def plain_setting(value: Any, numbers: bool = True) -> Any:
    """A setting in types that JSON and TOML have; objects are described, networks without `numbers` if so said."""
    if isinstance(value, dict):
        return {str(key): plain_setting(item, numbers) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_setting(item, numbers) for item in value]
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return {"array": list(value.shape), "check": check_sum(value)}
    name = getattr(value, "__qualname__", type(value).__qualname__)
    code = own_code(value)
    if isinstance(value, Component):
        parameters = _options(value, own=bool(code))
    elif isinstance(value, Scheme) and is_dataclass(value):
        parameters = {f.name: getattr(value, f.name) for f in fields(value)}
    elif isinstance(value, Dataset | FederatedData):
        parameters = _data(value)
    elif isinstance(value, FUNCTIONS):
        parameters = {}
    else:
        parameters = {"layers": repr(value)} if isinstance(value, nn.Module) else {}
        parameters["content"] = content(value, numbers)
    return {"object": name, **plain_setting(parameters), **({"code": code} if code else {})}


def _data(value: Dataset | FederatedData) -> dict[str, Any]:
    """What identifies data that were passed as an object."""
    dataset = value.dataset if isinstance(value, FederatedData) else value
    parts: list[np.ndarray[Any, Any]] = [np.array([dataset.check_sum])]
    beside: list[Any] = [dataset.normalisation, dataset.classes, dataset.task, dataset.attribute_values]
    beside += [(split.attributes, split.owners) for split in (dataset.train, dataset.test)]
    beside += [dataset.tokens, dataset.vocabulary]
    if isinstance(value, FederatedData):
        parts += [value.train_index.starts, value.train_index.samples]
        if value.validation is not None:
            parts.append(value.validation)
        if value.test_index is not None:
            beside += [value.test_index.starts, value.test_index.samples]
    return {
        "data": dataset.name,
        "samples": len(dataset.train),
        "check": check_sum(*parts),
        "content": content(beside),
    }


def _options(component: Component, own: bool) -> dict[str, Any]:
    """A component's hyper-parameters; for a user's own class, also whatever else its constructor has stored."""
    options = component.get_params()
    if own:
        declared = {f.name for f in fields(component)} if is_dataclass(component) else set[str]()
        options |= {name: value for name, value in vars(component).items() if name not in declared}
    return options
