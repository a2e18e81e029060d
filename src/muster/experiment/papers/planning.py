"""From an entry to experiments: all combinations of cells, rows and seeds, and how they differ from the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from muster.errors import ConfigError
from muster.experiment.config import Experiment, from_dict, merged, on_workload
from muster.experiment.papers.entries import SMOKE, Changes, Entry, Scale, chosen, fits
from muster.experiment.papers.stand_ins import is_here, on_available_data

#: How sections name the component that decides which other options there are.
_NAMED = {"data": "source", "partition": "scheme", "model": "name"}

#: Differences that matter most stand first.
_FIRST = {"data": 0, "model": 1, "rounds": 2, "training.lr": 3}


@dataclass(frozen=True)
class Difference:
    """Something that is not as in the paper."""

    what: str
    paper: str
    ours: str


@dataclass(frozen=True)
class Planned:
    """One run of an entry."""

    cell: str
    row: str
    seed: int
    experiment: Experiment
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class Plan:
    """What is going to be run for an entry."""

    entry: Entry
    scale: str
    cells: tuple[str, ...]
    rows: tuple[str, ...]
    seeds: int
    runs: tuple[Planned, ...]

    @property
    def size(self) -> Scale:
        return self.entry.scale(self.scale)

    @property
    def can_judge(self) -> bool:
        """Whether its numbers can speak for or against the paper: a few rounds of training cannot."""
        return self.scale != SMOKE or not self.runs


def plan(
    entry: Entry,
    scale: str,
    *,
    cells: str | None = None,
    rows: str | None = None,
    seeds: int | None = None,
    here: Callable[[str], bool] = is_here,
) -> Plan:
    """The runs of an entry; `cells` and `rows` are patterns ("1*,4"), None: what the scale says."""
    size = entry.scale(scale)
    seeds = size.seeds if seeds is None else seeds
    if seeds < 1:
        raise ConfigError(f"bad number of seeds: {seeds}", expected="at least 1")
    picked_cells = chosen(cells or size.cells, entry.cells, "cell")
    picked_rows = chosen(rows or size.rows, entry.rows, "row")
    runs = []
    if entry.kind == "runs":
        for cell in picked_cells:
            for row in picked_rows:
                published = as_published(entry, cell, row)
                ours = on_available_data(scaled(published, entry, cell, row, size), here)
                differences = tuple(difference(published, ours))
                runs += [_planned(cell, row, seed, ours, differences) for seed in range(seeds)]
    return Plan(entry, scale, tuple(picked_cells), tuple(picked_rows), seeds, tuple(runs))


def as_published(entry: Entry, cell: str, row: str) -> dict[str, Any]:
    """The sections of one experiment as the paper has it.

    A cell or row with a `rounds_share` has that share of the rounds: it trains longer in each.
    """
    of_cell, of_row = dict(entry.cells[cell]), dict(entry.rows[row])
    workload = of_cell.pop("workload", None) or entry.base.get("workload")
    base = {key: value for key, value in entry.base.items() if key != "workload"}
    share = of_cell.pop("rounds_share", 1) * of_row.pop("rounds_share", 1)
    sections = on_workload(str(workload), {}) if workload else {}
    for changes in (of_cell, base, of_row):
        sections = _changed(sections, changes)
    return sections | {"rounds": max(1, int(sections.get("rounds", 100) * share)), "rounds_share": share}


def _changed(sections: dict[str, Any], changes: Changes) -> dict[str, Any]:
    """Sections with changes; those named in `fresh` start empty."""
    kept = {key: value for key, value in sections.items() if key not in changes.get("fresh", ())}
    return merged(kept, {key: value for key, value in changes.items() if key != "fresh"})


def scaled(published: Mapping[str, Any], entry: Entry, cell: str, row: str, size: Scale) -> dict[str, Any]:
    """The same at another scale."""
    sections = merged(dict(published), _changes(size, cell, row))
    if size.rounds is not None:
        sections["rounds"] = max(1, int(size.rounds * published["rounds_share"]))
    return sections


def _changes(size: Scale, cell: str, row: str) -> Changes:
    changes = dict(size.changes)
    for case in size.where:
        if fits(cell, case.cells) and fits(row, case.rows):
            changes = merged(changes, case.changes)
    return changes


def _planned(
    cell: str, row: str, seed: int, sections: Mapping[str, Any], differences: tuple[Difference, ...]
) -> Planned:
    values = {key: value for key, value in sections.items() if key != "rounds_share"}
    experiment = from_dict({**values, "name": f"{row}, {cell}", "seed": seed})
    return Planned(cell, row, seed, experiment, differences)


def difference(paper: Mapping[str, Any], ours: Mapping[str, Any]) -> list[Difference]:
    """What was changed, section by section; what the paper leaves open is not a difference."""
    found = []
    for section in dict.fromkeys([*paper, *ours]):
        before, after = paper.get(section, {}), ours.get(section, {})
        if section in ("name", "rounds_share", "evaluation", "engine", "checkpoint") or before == after:
            continue
        if section in _NAMED and before.get(_NAMED[section]) != after.get(_NAMED[section]):
            found.append(Difference(section, _told(before, section), _told(after, section)))
        elif isinstance(after, Mapping):
            keys = [key for key in dict.fromkeys([*before, *after]) if before.get(key) != after.get(key)]
            found += [
                Difference(f"{section}.{key}", _text(before.get(key)), _text(after.get(key))) for key in keys
            ]
        else:
            found.append(Difference(section, _text(before), _text(after)))
    return found


def summarised(runs: Sequence[Planned]) -> list[str]:
    """The differences of all runs as lines; those that only some cells or rows have say which."""
    where: dict[Difference, list[Planned]] = {}
    for run in runs:
        for one in run.differences:
            where.setdefault(one, []).append(run)
    lines = []
    for one, having in sorted(where.items(), key=lambda item: _FIRST.get(item[0].what, len(_FIRST))):
        line = f"{one.what}: {one.ours} instead of {one.paper}"
        lines.append(line if len(having) == len(runs) else f"{line} ({_which(having, runs)})")
    return lines


def _which(having: Sequence[Planned], runs: Sequence[Planned]) -> str:
    cells, rows = (list(dict.fromkeys(getattr(run, key) for run in having)) for key in ("cell", "row"))
    parts = []
    for names, everything in ((cells, {run.cell for run in runs}), (rows, {run.row for run in runs})):
        if len(names) < len(everything):
            parts.append("; ".join(names))
    return ", ".join(parts) or "some runs"


def _told(section: Mapping[str, Any], kind: str) -> str:
    name = section.get(_NAMED[kind], "–")
    options = ", ".join(f"{key} {_text(value)}" for key, value in section.items() if key != _NAMED[kind])
    return f"{name} ({options})" if options else str(name)


def _text(value: Any) -> str:
    if value in (None, {}):
        return "the default"
    if isinstance(value, float):
        return f"{value:g}"
    return "/".join(map(_text, value)) if isinstance(value, list | tuple) else str(value)
