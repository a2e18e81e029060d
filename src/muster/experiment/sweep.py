"""Sweeps: one base experiment, named cases, a grid over any config keys, and seeds.

name = "digits"
base = "digits.toml"              # or a section [base], which may name a workload
seeds = [0, 1, 2]                 # or repeats = 3

[grid]                            # every combination
partition.alpha = [0.1, 1.0]

[[cases]]                         # each case and what it changes
name = "terraform"
selection = { method = "terraform", clients_per_round = 10 }
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from muster.config.experiment import NAMING_KEYS, SWEEP_KEYS, Experiment, copied, from_dict, merged, on_workload
from muster.config.toml import read_toml
from muster.core.errors import ConfigError, nearest

_KEYS = ("name", *SWEEP_KEYS)


@dataclass(frozen=True)
class Sweep:
    """Cases × grid × seeds on a base experiment."""

    name: str
    #: Sections of an experiment; `workload` may name a preset.
    base: Mapping[str, Any] = field(default_factory=dict)
    #: None: the base's seed.
    seeds: tuple[int, ...] | None = None
    #: Dotted config key → values.
    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    #: Name → sections with changes; a section that names another component starts afresh, except for the options
    #: that all methods of its kind have.
    cases: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def part(self, cases: Sequence[str] = (), seeds: Sequence[int] = ()) -> Sweep:
        """The same sweep with some of its cases only, and with other seeds."""
        for name in cases:
            if name not in self.cases:
                raise ConfigError(f"the sweep has no case '{name}'", expected=nearest(name, self.cases))
        chosen = {name: changes for name, changes in self.cases.items() if not cases or name in cases}
        return replace(self, cases=chosen, seeds=tuple(dict.fromkeys(seeds)) or self.seeds)

    def experiments(self) -> list[Experiment]:
        """All runs, seed by seed, so that a sweep that is stopped early has some seeds of every case."""
        if "seed" in self.grid or any("seed" in changes for changes in self.cases.values()):
            raise ConfigError("a grid or a case of the sweep sets the seed", fix="name the seeds in 'seeds'")
        base = copied(dict(self.base))
        if (workload := base.pop("workload", None)) is not None:
            base = on_workload(str(workload), base)
        made = [
            self._experiment(base, case, point, seed)
            for seed in self.seeds or (base.get("seed", 0),)
            for case in self.cases or {"": {}}
            for point in self._points()
        ]
        known: dict[str, Experiment] = {}
        for experiment in made:
            if (twin := known.setdefault(experiment.fingerprint, experiment)) is not experiment:
                raise ConfigError(
                    f"the sweep has the same run twice: '{twin.title}' and '{experiment.title}', "
                    f"seed {experiment.seed}",
                    fix="change or remove one of them; a repetition needs another seed",
                )
        return made

    def _points(self) -> Iterator[dict[str, Any]]:
        for values in itertools.product(*self.grid.values()):
            yield dict(zip(self.grid, values, strict=True))

    def _experiment(self, base: Mapping[str, Any], case: str, point: Mapping[str, Any], seed: int) -> Experiment:
        values = copied(merged(base, self.cases.get(case, {})))
        for key, value in point.items():
            _set(values, key, value)
        values["seed"] = seed
        parts = [case] if case else []
        parts += [_label(key, value) for key, value in point.items()]
        if parts:
            values["name"] = ", ".join(parts)
        return from_dict(values)


def load_sweep(path: Path | str) -> Sweep:
    """Read a sweep from a TOML file; `base = "file.toml"` is relative to it."""
    path = Path(path)
    content = read_toml(path, "sweep")
    for key in content:
        if key not in _KEYS:
            of_experiment = key in {part.name for part in fields(Experiment)}
            raise ConfigError(
                f"unknown key '{key}' in the sweep {path}",
                expected=nearest(key, _KEYS),
                fix="settings of the experiment stand in [base]; a single experiment is run by `muster run`"
                if of_experiment
                else "",
            )
    base = content.get("base", {})
    if isinstance(base, str):
        base = read_toml(path.parent / base, "base of the sweep")
    if not isinstance(base, dict):
        raise ConfigError(f"bad value for 'base': {base!r}", expected="the name of a file, or a section [base]")
    return Sweep(
        name=str(content.get("name", path.stem)),
        base=base,
        seeds=_seeds(content, base),
        grid=dict(_flat(content.get("grid", {}))),
        cases=_cases(content.get("cases", [])),
    )


def _seeds(content: Mapping[str, Any], base: Mapping[str, Any]) -> tuple[int, ...] | None:
    seeds, repeats = content.get("seeds"), content.get("repeats")
    if seeds is not None and repeats is not None:
        raise ConfigError("the sweep has both seeds and repeats", fix="keep one of them: repeats = 3 is 3 seeds")
    if repeats is not None:
        if not isinstance(repeats, int) or repeats < 1:
            raise ConfigError(f"bad value for 'repeats': {repeats!r}", expected="a positive integer")
        first = base.get("seed", 0)
        if not isinstance(first, int):
            raise ConfigError(f"bad value for 'base.seed': {first!r}", expected="an integer")
        return tuple(range(first, first + repeats))
    if seeds is None:
        return None
    if not isinstance(seeds, list) or not seeds or not all(isinstance(seed, int) for seed in seeds):
        raise ConfigError(
            f"bad value for 'seeds': {seeds!r}",
            expected="a list of one or more integers; repeats = 3 gives 3 seeds",
        )
    return tuple(dict.fromkeys(seeds))


def _flat(grid: Any, prefix: str = "") -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Dotted keys with their lists: TOML makes nested tables of them."""
    if not isinstance(grid, dict):
        raise ConfigError("bad [grid]", expected="keys with lists of values, as in partition.alpha = [0.1, 1.0]")
    for key, values in grid.items():
        if isinstance(values, dict):
            yield from _flat(values, f"{prefix}{key}.")
        elif isinstance(values, list) and values:
            yield f"{prefix}{key}", tuple(values)
        else:
            raise ConfigError(f"bad value for 'grid.{prefix}{key}': {values!r}", expected="a list of values")


def _cases(rows: Any) -> dict[str, dict[str, Any]]:
    cases: dict[str, dict[str, Any]] = {}
    for row in rows if isinstance(rows, list) else [rows]:
        if not isinstance(row, dict) or not isinstance(row.get("name"), str):
            raise ConfigError("a case has no name", expected='[[cases]] with name = "…" and what it changes')
        changes = {key: value for key, value in row.items() if key != "name"}
        if row["name"] in cases:
            raise ConfigError(f"two cases are called '{row['name']}'")
        cases[row["name"]] = changes
    return cases


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    if sections and sections[0] not in values and last not in NAMING_KEYS:
        # The base leaves the section as it is by default: the key changes one thing about it.
        values[sections[0]] = Experiment().to_dict().get(sections[0], {})
    target = values
    for section in sections:
        target = target.setdefault(section, {})
        if not isinstance(target, dict):
            raise ConfigError(f"bad key 'grid.{key}': '{section}' is not a section")
    target[last] = value


def _label(key: str, value: Any) -> str:
    last = key.rsplit(".", maxsplit=1)[-1]
    if isinstance(value, Mapping):  # a whole section is known by its component
        return next((str(value[naming]) for naming in NAMING_KEYS if naming in value), f"{last}={value}")
    return str(value) if last in NAMING_KEYS else f"{last}={value}"
