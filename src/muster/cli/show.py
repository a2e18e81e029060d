"""Tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from muster.aggregation.base import aggregators
from muster.availability import availabilities
from muster.cli.console import out
from muster.data.partition.base import schemes
from muster.data.sources.base import sources
from muster.errors import ConfigError, nearest
from muster.experiment.workloads import workload_summaries
from muster.models.base import models
from muster.registry import Registry
from muster.report.tables import comparison_rows, readable_bytes
from muster.result import Result
from muster.selection.base import selectors
from muster.signals.base import signals
from muster.training.base import algorithms

KINDS: dict[str, Registry[Any]] = {
    "selection": selectors,
    "aggregation": aggregators,
    "algorithms": algorithms,
    "data": sources,
    "partitions": schemes,
    "models": models,
    "signals": signals,
    "availability": availabilities,
}


def show_components(kind: str | None) -> None:
    """Names with one line each."""
    known = {name: {entry: registry.summary(entry) for entry in registry} for name, registry in KINDS.items()}
    known["workloads"] = workload_summaries()
    if kind is not None and kind not in known:
        raise ConfigError(f"unknown kind '{kind}'", expected=nearest(kind, known))
    for name, entries in known.items():
        if kind in (None, name):
            table = Table(title=name, title_justify="left", title_style="bold", box=None, pad_edge=False)
            table.add_column("name", style="cyan", no_wrap=True)
            table.add_column("what it is")
            for entry, summary in entries.items():
                table.add_row(entry, summary)
            out.print(table)
            out.print()


def show_result(result: Result, folder: Path) -> None:
    """The end of a run: the last metrics, the work, where the files are."""
    last, costs = result.metrics[-1], result.ledger.total()
    table = Table(title=f"{result.name}: {len(result.records)} rounds", title_justify="left", box=None)
    table.add_column("what", style="cyan")
    table.add_column("value", justify="right")
    for name, label in (
        ("accuracy", "accuracy, global test set"),
        ("client_accuracy_mean", "accuracy, every client's own test data (mean)"),
        ("client_accuracy_worst", "accuracy, worst client"),
        ("participant_accuracy", "accuracy, last round's participants only"),
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
    out.print(table)
    out.print(f"Files: {folder}", soft_wrap=True)


def show_comparison(results: Sequence[Result]) -> None:
    """Methods side by side: per round and per client training."""
    header, rows = comparison_rows(results)
    table = Table(title="Comparison", title_justify="left", title_style="bold")
    for number, name in enumerate(header):
        table.add_column(name, justify="left" if number == 0 else "right")
    for row in rows:
        table.add_row(*row)
    out.print(table)
    out.print(
        "'at equal work': accuracy when a method had as many client trainings as the cheapest one in all.",
        style="dim",
        soft_wrap=True,
    )


def show_privacy() -> None:
    """Method × what leaves the client beside the model update."""
    table = Table(title="What leaves the clients, beside the model update", title_justify="left")
    for name in ("method", "signal", "what it discloses", "when"):
        table.add_column(name)
    for name in selectors:
        component = selectors.get(name)
        try:
            needed = component(
                **({"clients_per_round": 1} if "clients_per_round" in _fields(component) else {})
            ).needs()
        except TypeError:
            continue  # combinators disclose what the methods inside them disclose
        beyond = [signal for signal in needed if not signal.in_update]
        for signal in beyond:
            when = " or ".join(
                w for w, holds in (("asked", signal.askable), ("reported", signal.reportable)) if holds
            )
            table.add_row(name, signal.name, signal.discloses, when)
        if not beyond:
            table.add_row(name, "–", "nothing", "–")
    out.print(table)


def _fields(component: Any) -> list[str]:
    from muster.registry import parameters_of

    return list(parameters_of(component))
