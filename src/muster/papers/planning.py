"""From an entry to experiments: all combinations of cells, rows and seeds, and how they differ from the paper."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from muster.config.experiment import Experiment, from_dict, merged
from muster.config.provenance import Provenance, Sources, leaves
from muster.config.workloads import workload, workload_sources
from muster.core.errors import ConfigError, DataError
from muster.papers.entries import SMOKE, Changes, PaperEntry, Scale, chosen, fits
from muster.papers.settings import Difference, Setting, acting, defaults_named, difference, unchanged
from muster.papers.stand_ins import assigned, is_here, nothing_left, on_data, wanted_data

#: Rounds of an experiment whose paper does not state them.
ROUNDS = 100


@dataclass(frozen=True)
class Planned:
    """One run of an entry."""

    cell: str
    row: str
    seed: int
    experiment: Experiment
    differences: tuple[Difference, ...]
    #: What is as in the full-size preset, and who decided it.
    settings: tuple[Setting, ...] = ()

    @property
    def stand_in(self) -> bool:
        """Whether it runs on other data than the paper's."""
        return any(one.what == "data" for one in self.differences)


@dataclass(frozen=True)
class Described:
    """What is set for one cell and row, and who decided it."""

    cell: str
    row: str
    settings: tuple[Setting, ...]
    sections: Mapping[str, Any]


@dataclass(frozen=True)
class Plan:
    """What is going to be run for an entry."""

    entry: PaperEntry
    scale: str
    cells: tuple[str, ...]
    rows: tuple[str, ...]
    seeds: int
    runs: tuple[Planned, ...]
    #: Cells that cannot be run here, and why.
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def size(self) -> Scale:
        return self.entry.scale(self.scale)

    @property
    def can_judge(self) -> bool:
        """Whether its numbers can speak for or against the paper: a few rounds of training cannot."""
        return self.scale != SMOKE or not self.runs

    @property
    def command(self) -> str:
        """What runs it again, or what is missing of it."""
        parts = ["muster", "reproduce", self.entry.id, "--scale", self.scale]
        asked = [cell for cell in self.entry.cells if cell in self.cells or cell in self.left_out]
        for option, names, usual, all_names in (
            ("--cells", asked, self.size.cells, self.entry.cells),
            ("--rows", list(self.rows), self.size.rows, self.entry.rows),
        ):
            if names != chosen(usual, all_names, option):
                parts += [option, ",".join(names)]
        if self.seeds != self.size.seeds:
            parts += ["--seeds", str(self.seeds)]
        return shlex.join(parts)

    def unfit(self, cell: str, row: str) -> str:
        """Why numbers of these runs are not judged; empty where they may be."""
        if not self.can_judge:
            return f"scale {self.scale} is too short"
        if self.size.unfit:
            return self.size.unfit
        return (
            "stand-in data" if any(run.stand_in for run in self.runs if (run.cell, run.row) == (cell, row)) else ""
        )

    def described(self) -> list[Described]:
        """What is set for each cell and row; where nothing is trained, who has what of the data."""
        if self.entry.kind == "runs":
            return [
                Described(run.cell, run.row, run.settings, acting(run.experiment.as_run().to_dict()))
                for run in self.runs
            ]
        found = []
        for cell in self.cells:
            sections = as_published(self.entry, cell, self.rows[0])
            # Tables of counts need no data.
            needed = ("partition",) if "table" in sections["partition"] else ("data", "partition")
            divided = {key: sections[key] for key in needed}
            decided = decisions(self.entry, cell, self.rows[0])
            found.append(Described(cell, self.rows[0], tuple(unchanged(divided, divided, decided)), divided))
        return found

    def same_runs(self) -> list[tuple[str, ...]]:
        """Cells and rows whose runs are the same ones at this scale."""
        runs: dict[str, list[str]] = {}
        for run in self.runs:
            if run.seed == 0:
                runs.setdefault(run.experiment.fingerprint, []).append(f"{run.cell}: {run.row}")
        return [tuple(names) for names in runs.values() if len(names) > 1]


def plan(
    entry: PaperEntry,
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
    picked_rows = tuple(chosen(rows or size.rows, entry.rows, "row"))
    if entry.kind == "federations":
        return Plan(entry, scale, tuple(picked_cells), picked_rows, seeds, ())
    sections = {(cell, row): full_size(entry, cell, row, size) for cell in picked_cells for row in picked_rows}
    on = assigned(list(dict.fromkeys(wanted_data(ours) for _, ours in sections.values())), here)
    left_out = {
        cell: wanted_data(ours) for (cell, _), (_, ours) in sections.items() if on[wanted_data(ours)] is None
    }
    if len(left_out) == len(picked_cells):
        raise DataError(nothing_left(left_out[picked_cells[0]], here))
    # Of an option that some rows set, a table speaks about what they set, not about the default of the others.
    set_somewhere = {name for published, _ in sections.values() for name, _ in leaves(published)}
    runs = []
    for (cell, row), (published, ours) in sections.items():
        if (source := on[wanted_data(ours)]) is not None and cell not in left_out:
            moved = on_data(ours, source) | {"seeds": seeds}
            decided = decisions(entry, cell, row) | {"seeds": entry.scale("paper").sources.of("seeds")}
            differences = tuple(difference(acting(published), acting(moved), decided))
            left_open = defaults_named(moved, entry.decided.rows.get(row, Sources()))
            as_stated = [name for name in ("partition", "model") if moved.get(name) == published.get(name)]
            left_open += defaults_named(acting(moved), _of_workload(entry, cell), as_stated)
            settings = (
                *unchanged(acting(published), acting(moved), decided),
                *(one for one in left_open if one.name not in set_somewhere),
            )
            runs += [
                Planned(cell, row, seed, _experiment(cell, row, seed, moved), differences, settings)
                for seed in range(seeds)
            ]
    return Plan(
        entry,
        scale,
        tuple(cell for cell in picked_cells if cell not in left_out),
        picked_rows,
        seeds,
        tuple(runs),
        {cell: nothing_left(name, here) for cell, name in left_out.items()},
    )


def full_size(entry: PaperEntry, cell: str, row: str, size: Scale) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sections of one experiment as the paper has it, and at another scale."""
    published = as_published(entry, cell, row) | {"seeds": entry.scale("paper").seeds}
    return published, scaled(published, entry, cell, row, size)


def as_published(entry: PaperEntry, cell: str, row: str) -> dict[str, Any]:
    """The sections of one experiment as the paper has it.

    A cell or row with a `rounds_share` has that share of the rounds: it trains longer in each.
    """
    sections: dict[str, Any] = {}
    share = 1.0
    for changes, _ in _layers(entry, cell, row):
        sections = _changed(sections, {key: value for key, value in changes.items() if key != "rounds_share"})
        share *= changes.get("rounds_share", 1)
    return sections | {"rounds": max(1, int(sections.get("rounds", ROUNDS) * share)), "rounds_share": share}


def decisions(entry: PaperEntry, cell: str, row: str) -> dict[str, Provenance | None]:
    """Who decided each value of an experiment as the paper has it; None where no table says so."""
    found: dict[str, Provenance | None] = {"rounds": Provenance("ours", "the number of rounds is not stated")}
    for changes, sources in _layers(entry, cell, row):
        found |= {name: sources.of(name) for name, _ in leaves(changes) if name != "fresh"}
    kept = {name for name, _ in leaves(as_published(entry, cell, row))}
    return {name: provenance for name, provenance in found.items() if name in kept and name != "name"}


def _layers(entry: PaperEntry, cell: str, row: str) -> list[tuple[Changes, Sources]]:
    """What is put on top of each other, and who decided it: workload, cell, what all rows have, row."""
    of_cell, decided = dict(entry.cells[cell]), entry.decided
    workload_name = of_cell.pop("workload", None) or entry.base.get("workload")
    base = {key: value for key, value in entry.base.items() if key != "workload"}
    layers = [
        (of_cell, decided.cells.get(cell, Sources())),
        (base, decided.base),
        (dict(entry.rows[row]), decided.rows.get(row, Sources())),
    ]
    if workload_name is not None:
        name = str(workload_name)
        layers.insert(0, ({"name": name} | workload(name), workload_sources(name)))
    return layers


def _of_workload(entry: PaperEntry, cell: str) -> Sources:
    """Who decided what a cell's workload sets."""
    name = entry.cells[cell].get("workload") or entry.base.get("workload")
    return Sources() if name is None else workload_sources(str(name))


def _changed(sections: dict[str, Any], changes: Changes) -> dict[str, Any]:
    """Sections with changes; those named in `fresh` start empty."""
    kept = {key: value for key, value in sections.items() if key not in changes.get("fresh", ())}
    return merged(kept, {key: value for key, value in changes.items() if key != "fresh"})


def scaled(published: Mapping[str, Any], entry: PaperEntry, cell: str, row: str, size: Scale) -> dict[str, Any]:
    """The same at another scale.

    Runs with a share of the rounds are evaluated more often: the last evaluations are the same part of every run.
    """
    sections = merged(dict(published), _changes(size, cell, row))
    share = published["rounds_share"]
    if size.rounds is not None:
        sections["rounds"] = max(1, int(size.rounds * share))
    if (every := sections.get("evaluation", {}).get("every", 1)) > 1:
        sections["evaluation"] = {**sections["evaluation"], "every": max(1, round(every * share))}
    return sections


def _changes(size: Scale, cell: str, row: str) -> Changes:
    changes = dict(size.changes)
    for case in size.where:
        if fits(cell, case.cells) and fits(row, case.rows):
            changes = merged(changes, case.changes)
    return changes


def _experiment(cell: str, row: str, seed: int, sections: Mapping[str, Any]) -> Experiment:
    values = {key: value for key, value in sections.items() if key not in ("rounds_share", "seeds")}
    return from_dict({**values, "name": f"{row}, {cell}", "seed": seed})
