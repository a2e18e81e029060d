"""Which runs may be judged together: those that work on the same problem, each with its method.

A problem is everything that determines a result but the seed and the method (`muster.config.identity`). A method
is compared with others only within a problem, and across problems by its ranks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from muster.config.identity import SHARED_WITH_CENTRALISED, determining, is_centralised, problem_sections
from muster.results.cases import Case, cases, differing, flat

if TYPE_CHECKING:
    from muster.server.result import Result

#: Keys that name a component say enough by their value: "digits", not "source=digits".
NAMING = ("name", "method", "scheme", "source")


@dataclass(frozen=True)
class Problem:
    """Cases that differ in the method only; a case has the name of its method, the same in every problem."""

    #: What distinguishes it from the other problems; empty where there is only one.
    name: str
    cases: tuple[Case, ...]

    @property
    def runs(self) -> list[Result]:
        return [run for case in self.cases for run in case.runs]

    def full_name(self, case: Case) -> str:
        """A case's name among those of all problems."""
        return f"{case.name}, {self.name}" if self.name else case.name


def problems(results: Sequence[Result], keys: Sequence[str] = ()) -> list[Problem]:
    """Group results by problem, in the order in which problems first occur.

    `keys` (`section.key`) belong to the problem too, such as `selection.clients_per_round`. Where no problem has
    two methods there is nothing to compare within one, and all runs are taken together, as one.
    """
    groups = _with_guests(_by_problem(results, keys))
    if len(groups) == 1:
        return [Problem("", tuple(cases(results)))]
    found = [cases(runs) for runs in groups]
    if all(len(own) < 2 for own in found):
        return [Problem("", tuple(cases(results)))]
    settings = [_settings(runs[0], keys) for runs in groups]
    return [
        Problem(name, own)
        for name, own in zip(distinct_names(settings), _named_alike(found, settings, keys), strict=True)
    ]


def label(key: str, value: Any) -> str:
    """A setting in a few words."""
    last = key.rpartition(".")[2]
    if value is None:
        return f"no {last}"
    return str(value) if last in NAMING else f"{last}={value}"


def distinct_names(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of settings by what they differ in, with no more words than it takes to tell them apart."""
    keys = differing(rows)
    keys.sort(key=lambda key: "." not in key)  # `rounds` says less than data and partition
    names: list[list[str]] = [[] for _ in rows]
    for key in keys:
        same: dict[str, list[int]] = {}
        for place, name in enumerate(names):
            same.setdefault(", ".join(name), []).append(place)
        for places in same.values():
            values = {json.dumps(flat(rows[place]).get(key), sort_keys=True) for place in places}
            if len(values) > 1:
                for place in places:
                    names[place].append(label(key, flat(rows[place]).get(key)))
    joined = [", ".join(name) for name in names]
    if len(set(joined)) == len(joined):
        return joined
    # Keys of two sections may have the same last word, and values the same text.
    return [f"{name or 'problem'} #{number}" for number, name in enumerate(joined, start=1)]


def _settings(result: Result, keys: Sequence[str]) -> dict[str, Any]:
    config = flat(result.config)
    return flat(problem_sections(result.config)) | {key: config.get(key) for key in keys}


def _by_problem(results: Sequence[Result], keys: Sequence[str]) -> list[list[Result]]:
    groups: dict[str, list[Result]] = {}
    for result in results:
        groups.setdefault(json.dumps(_settings(result, keys), sort_keys=True), []).append(result)
    return list(groups.values())


def _with_guests(groups: list[list[Result]]) -> list[list[Result]]:
    """Centralised training is compared in every problem that has its data and its model."""
    hosts = [runs for runs in groups if not is_centralised(runs[0].config)]
    left = []
    for runs in groups:
        if not is_centralised(runs[0].config):
            continue
        fitting = [host for host in hosts if _shared(host[0]) == _shared(runs[0])]
        for host in fitting:
            host.extend(runs)
        if not fitting:
            left.append(runs)
    return [*hosts, *left]


def _shared(result: Result) -> dict[str, Any]:
    return {name: result.config.get(name) for name in SHARED_WITH_CENTRALISED}


# --- names of methods --------------------------------------------------------------------------------------------


def _named_alike(
    found: Sequence[Sequence[Case]], settings: Sequence[Mapping[str, Any]], keys: Sequence[str]
) -> list[tuple[Case, ...]]:
    """The cases of each problem under the names of their methods: one name per method, and one method per name."""
    spoken = [_spoken(settings, place) for place in range(len(found))]
    plain = [[_without(case.name, words) for case in own] for own, words in zip(found, spoken, strict=True)]
    methods = [
        [_method(case, name, own, keys) for case, name in zip(own, names, strict=True)]
        for own, names in zip(found, plain, strict=True)
    ]
    called: dict[str, list[str]] = {}
    example: dict[str, Case] = {}
    for own, names, own_methods in zip(found, plain, methods, strict=True):
        for case, name, method in zip(own, names, own_methods, strict=True):
            called.setdefault(method, []).append(name)
            example.setdefault(method, case)
    words = {
        method: names[0] if names[0] and len(set(names)) == 1 else _component(example[method])
        for method, names in called.items()
    }
    unique = _told_apart(words, example, keys)
    return [
        tuple(replace(case, name=unique[method]) for case, method in zip(own, own_methods, strict=True))
        for own, own_methods in zip(found, methods, strict=True)
    ]


def _spoken(settings: Sequence[Mapping[str, Any]], place: int) -> set[str]:
    """What names of runs may say about their problem, as sweeps put it."""
    return {label(key, settings[place].get(key)) for key in differing(settings)}


def _without(name: str, words: set[str]) -> str:
    return ", ".join(part for part in name.split(", ") if part not in words)


def _method(case: Case, name: str, own: Sequence[Case], keys: Sequence[str]) -> str:
    """Identifies a method: by its settings, and by its name where a problem has the same settings twice."""
    settings = _method_settings(case, keys)
    twins = [other for other in own if _method_settings(other, keys) == settings]
    return json.dumps([settings, name if len(twins) > 1 else ""], sort_keys=True)


def _method_settings(case: Case, keys: Sequence[str]) -> dict[str, Any]:
    config = case.runs[0].config
    if is_centralised(config):
        return {"training.mode": "centralised"}
    problem = {*flat(problem_sections(config)), *keys, "seed"}
    return {key: value for key, value in flat(determining(config)).items() if key not in problem}


def _component(case: Case) -> str:
    """A name for a method whose runs have different names in every problem."""
    if is_centralised(case.runs[0].config):
        return "centralised"
    selection = case.runs[0].config.get("selection")
    if not isinstance(selection, Mapping):
        return case.name
    return str(selection.get("method", selection.get("object", case.name)))


def _told_apart(words: Mapping[str, str], example: Mapping[str, Case], keys: Sequence[str]) -> dict[str, str]:
    """Methods with the same name have the settings in which they differ appended."""
    named = {}
    for method, word in words.items():
        same = [other for other, its_word in words.items() if its_word == word]
        rows = [_method_settings(example[other], keys) for other in same]
        own = rows[same.index(method)]
        details = [label(key, own[key]) for key in differing(rows) if key in own]
        named[method] = f"{word} ({', '.join(details)})" if details else word
    repeated = [method for method in named if list(named.values()).count(named[method]) > 1]
    return {
        method: f"{name} #{repeated.index(method) + 1}" if method in repeated else name
        for method, name in named.items()
    }
