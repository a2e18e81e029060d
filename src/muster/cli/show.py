"""Tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from muster.aggregation.base import aggregators
from muster.config.workloads import workload_summaries
from muster.console.output import out
from muster.core.errors import ConfigError, nearest
from muster.core.registry import Registry
from muster.data.partition.base import schemes
from muster.data.sources.base import sources
from muster.models.base import models
from muster.pacing import pacings
from muster.privacy.account import PrivacyAccount
from muster.report.compare import Options, compare, for_terminal
from muster.report.tables import readable_bytes
from muster.selection.base import selectors
from muster.server.disclosures import Disclosure, of_aggregation, of_selection
from muster.server.result import Result
from muster.server.trial import ROUNDS
from muster.signals.base import signals
from muster.tracking import trackers
from muster.training.base import algorithms
from muster.updates.attacks.base import attack_names
from muster.updates.filters import filters
from muster.world.availability import availabilities
from muster.world.devices import device_models

KINDS: dict[str, Registry[Any]] = {
    "selection": selectors,
    "aggregation": aggregators,
    "algorithms": algorithms,
    "filters": filters,
    "data": sources,
    "partitions": schemes,
    "models": models,
    "signals": signals,
    "availability": availabilities,
    "devices": device_models,
    "pacing": pacings,
    "trackers": trackers,
}

#: What `muster list methods` shows.
METHODS = ("selection", "aggregation")


def show_components(kind: str | None) -> None:
    """Names with one line each."""
    known = {name: {entry: registry.summary(entry) for entry in registry} for name, registry in KINDS.items()}
    known["attacks"] = {name: known["filters"].pop(name) for name in attack_names()}
    known["workloads"] = workload_summaries()
    if kind is not None and kind not in ("methods", *known):
        raise ConfigError(f"unknown kind '{kind}'", expected=nearest(kind, [*known, "methods"]))
    for name, entries in known.items():
        if kind in (None, name) or (kind == "methods" and name in METHODS):
            table = Table(title=name, title_justify="left", title_style="bold", box=None, pad_edge=False)
            table.add_column("name", style="cyan", no_wrap=True)
            table.add_column("what it is")
            for entry, summary in entries.items():
                table.add_row(entry, summary)
            out.print(table)
            out.print()


def show_result(result: Result, folder: Path | None = None) -> None:
    """The last metrics, the work, where the files are."""
    last, costs = result.metrics[-1], result.ledger.total()
    table = Table(title=f"{result.name}: {len(result.records)} rounds", title_justify="left", box=None)
    table.add_column("what", style="cyan")
    table.add_column("value", justify="right")
    for name, label in (
        ("accuracy", "accuracy, global test set"),
        ("client_accuracy_mean", "accuracy, every client's own test data (mean)"),
        ("client_accuracy_worst", "accuracy, worst client"),
        ("participant_accuracy", "accuracy, last round's participants only"),
        ("last_iteration_accuracy", "accuracy, last iteration's clients only"),
        ("worst_group_accuracy", "accuracy, worst group"),
        ("f1", "F1 (macro)"),
        ("loss", "loss, global test set"),
    ):
        value = last.get(name, math.nan)
        if not math.isnan(value):
            table.add_row(label, f"{value:.4f}")
    table.add_row("client trainings", f"{costs.client_trainings:,}")
    table.add_row("samples trained on / probed", f"{costs.samples:,} / {costs.probe_samples:,}")
    table.add_row(
        "sent to / from clients", f"{readable_bytes(costs.bytes_down)} / {readable_bytes(costs.bytes_up)}"
    )
    if result.rejected:
        table.add_row("updates refused or missing", f"{len(result.rejected):,}")
    if seconds := costs.virtual_seconds:
        table.add_row("time that clients took", f"{seconds:,.0f} s" if seconds > 10 else f"{seconds:.2g} s")
    if costs.wasted_trainings:
        table.add_row("wasted trainings (left, late or too stale)", f"{costs.wasted_trainings:,}")
    out.print(table)
    if result.groups:
        show_groups(result)
    if result.ledger.privacy.spent():
        show_spent(result.ledger.privacy)
    if folder is not None:
        out.print(f"Files: {folder}", markup=False, soft_wrap=True)


def show_comparison(results: Sequence[Result]) -> None:
    """Methods side by side: per round and per client training."""
    comparison = compare(results, Options(tables=("scores",)))
    out.print(for_terminal(comparison, out.width))


def show_groups(result: Result) -> None:
    """Accuracy of the last evaluation by class and attribute, the worst group marked."""
    worst = min(row.accuracy for row in result.groups)
    cells = {(row.label, row.attribute): row for row in result.groups}
    labels, attributes = (sorted({cell[axis] for cell in cells}) for axis in (0, 1))
    table = Table(title="Accuracy by group (test samples)", title_justify="left", box=None)
    table.add_column("", style="cyan")
    for attribute in attributes:
        table.add_column(f"attribute {attribute}", justify="right")
    for label in labels:
        rows = [cells.get((label, attribute)) for attribute in attributes]
        texts = ["–" if row is None else f"{row.accuracy:.4f} ({row.samples:,})" for row in rows]
        marks = ["bold red" if row is not None and row.accuracy == worst else "" for row in rows]
        table.add_row(f"class {label}", *(Text(t, style=mark) for t, mark in zip(texts, marks, strict=True)))
    out.print(table)


def show_spent(account: PrivacyAccount) -> None:
    """What the noise guarantees for the client that disclosed most."""
    table = Table(title="Disclosed with noise (the client that disclosed most)", title_justify="left", box=None)
    for name in ("what", "noise", "answers", "ε, δ in all", "or, advanced composition", "neighbours"):
        table.add_column(name, justify="left" if name in ("what", "noise", "neighbours") else "right")
    for row in account.spent():
        table.add_row(
            row.signal,
            f"{row.mechanism}, ε = {row.epsilon:g} each",
            str(row.answers),
            _guarantee(row.basic),
            _guarantee(row.advanced),
            row.neighbours,
        )
    out.print(table)
    out.print(
        f"In all ε, δ = {_guarantee(account.total())} (basic composition). "
        "Model updates and other answers have no noise and no such guarantee.",
        style="dim",
        soft_wrap=True,
    )


def _guarantee(pair: tuple[float, float]) -> str:
    return f"{pair[0]:.4g}, {pair[1]:.3g}"


def show_privacy(kind: str | None = None) -> None:
    """Method × what leaves the client besides the model update × how often."""
    if kind is not None and kind not in ("methods", *METHODS):
        raise ConfigError(
            f"there is no table of disclosures for '{kind}'", expected=", ".join(("methods", *METHODS))
        )
    for title, disclosures in (("selection", of_selection), ("aggregation", of_aggregation)):
        if kind not in (None, "methods", title):
            continue
        table = Table(title=f"What leaves the clients: {title}", title_justify="left", title_style="bold")
        for name in ("method", "signal", "what it discloses, besides the model update", "how often"):
            table.add_column(name, no_wrap=name == "method")
        for name in KINDS[title]:
            rows = disclosures(name) or [Disclosure(name, "–", "nothing", "–")]
            for number, row in enumerate(rows):
                table.add_row(name if number == 0 else "", row.signal, row.what, row.how_often)
        out.print(table)
    out.print(
        "Every client that trains sends its model update, and the server knows how many samples each client has. "
        f"'How often' was observed in a trial of {ROUNDS} rounds with default options.",
        style="dim",
        soft_wrap=True,
    )
