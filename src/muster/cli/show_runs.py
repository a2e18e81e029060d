"""Runs of a store for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from muster.cli.show import show_result
from muster.config.toml import to_toml
from muster.console.output import out
from muster.console.times import moment, readable_time
from muster.results.store import Event, Run, Store

#: Colours of what needs attention.
_STYLES = {"failed": "red", "interrupted": "yellow", "stopped": "yellow", "running": "cyan", "planned": "dim"}
#: Events of a run that are shown; the rest is counted.
_EVENTS_SHOWN = 20


def show_runs(runs: Sequence[Run]) -> None:
    """One line per run."""
    if not runs:
        out.print("no runs match")
        return
    table = Table(box=None, pad_edge=False)
    for name in ("run", "name", "seed", "rounds", "status", "time", "begun", "sweeps"):
        table.add_column(name, justify="right" if name in ("seed", "rounds", "time") else "left")
    for run in runs:
        table.add_row(
            Text(run.fingerprint[:8], style="cyan"),
            run.name,
            str(run.seed),
            f"{run.done}/{run.rounds}",
            Text(run.status, style=_STYLES.get(run.status, "")),
            readable_time(run.seconds),
            moment(run.started),
            ", ".join(run.sweeps),
        )
    out.print(table)


def show_run(store: Store, run: Run) -> None:
    """Everything about one run."""
    table = Table(title=f"{run.name}, seed {run.seed}", title_justify="left", title_style="bold", box=None)
    table.add_column("what", style="cyan")
    table.add_column("value")
    facts = {
        "fingerprint": run.fingerprint,
        "status": f"{run.status}, {run.done} of {run.rounds} rounds",
        "why": run.error,
        "sweeps": ", ".join(run.sweeps),
        "started / ended": f"{moment(run.started)} / {moment(run.ended)}",
        "rounds took": readable_time(run.seconds),
        "process": f"{run.pid} on {run.host}" if run.status == "running" else "",
        "version": run.code_version,
        "environment": ", ".join(f"{key} {value}" for key, value in run.environment.items()),
    }
    for what, value in facts.items():
        if value:
            table.add_row(what, Text(value))
    out.print(table)
    if run.done:
        show_result(store.result(run, parameters=False))
    _show_events(store.events(run))
    out.print(Text("Settings", style="bold"))
    out.print(to_toml({key: value for key, value in run.config.items() if value != {}}), markup=False)


def _show_events(events: Sequence[Event]) -> None:
    table = Table(title="What happened", title_justify="left", title_style="bold", box=None)
    for name in ("when", "round", "what", "client", "detail"):
        table.add_column(name, justify="right" if name in ("round", "client") else "left")
    for event in events[-_EVENTS_SHOWN:]:
        client = "" if event.client is None else str(event.client)
        table.add_row(moment(event.time), str(event.round), event.kind, client, Text(event.detail))
    out.print(table)
    if len(events) > _EVENTS_SHOWN:
        out.print(
            f"and {len(events) - _EVENTS_SHOWN} earlier ones; `muster export` writes all of them", style="dim"
        )
