"""One component in the terminal: what it is, its options, what it takes from clients."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any

from rich.markdown import Markdown
from rich.table import Table
from rich.text import Text

from muster.cli.show import KINDS
from muster.config.experiment import plain_setting
from muster.config.options import Option, options_of
from muster.config.toml import toml_value
from muster.config.workloads import workload, workload_summaries
from muster.console.output import out
from muster.core.errors import ConfigError
from muster.server.disclosures import Disclosure, of_aggregation, of_selection
from muster.updates.attacks.base import attack_names

#: Kind of component → how an experiment file names it.
SECTIONS = {
    "selection": ("selection", "method"),
    "aggregation": ("aggregation", "method"),
    "algorithms": ("algorithm", "method"),
    "filters": ("[filters]", "method"),
    "data": ("data", "source"),
    "partitions": ("partition", "scheme"),
    "models": ("model", "name"),
    "availability": ("availability", "method"),
    "devices": ("devices", "method"),
    "pacing": ("pacing", "method"),
}


def show_component(name: str) -> None:
    """All components of this name: a method may have a half on the server and one on the clients."""
    found = [(kind, registry.get(name)) for kind, registry in KINDS.items() if name in registry]
    if not found and name not in workload_summaries():
        known = {entry for registry in KINDS.values() for entry in registry} | set(workload_summaries())
        close = get_close_matches(name.lower(), sorted(known), n=3, cutoff=0.5)
        raise ConfigError(
            f"nothing is called '{name}'",
            expected=f"did you mean {' or '.join(map(repr, close))}?" if close else "",
            fix="see `muster list`",
        )
    for number, (kind, component) in enumerate(found):
        if number:
            out.print()
        _show(kind, name, component)
    if name in workload_summaries():
        _show_workload(name)


def _show(kind: str, name: str, component: Callable[..., Any]) -> None:
    out.print(Text.assemble((name, "bold cyan"), f"  ({kind})"))
    out.print(Text(_flowing(inspect.getdoc(component) or "")))
    out.print()
    if kind in SECTIONS:
        section, key = SECTIONS[kind]
        out.print(Text(f'[{section}]\n{key} = "{name}"'))
    options = options_of(component)
    if options:
        out.print(_table(options))
    else:
        out.print("No options.")
    if kind == "selection":
        _show_disclosures(of_selection(name))
    if kind == "aggregation":
        _show_disclosures(of_aggregation(name))
    if not component.__module__.startswith("muster."):
        out.print(Text(f"From {component.__module__}", style="dim"), soft_wrap=True)
        return
    page = page_of(kind, name)
    _show_notes(Path(page).stem if "/methods/" in page else "")
    out.print(Text(f"More: {page}", style="dim"), soft_wrap=True)


def _flowing(text: str) -> str:
    """Without the line breaks of the source, but for those of paragraphs, lists and indented lines."""
    return re.sub(r"(?<=\S)\n(?=[^\s*-])", " ", text)


def _show_notes(page: str) -> None:
    """What a method's page says about cost and reference."""
    notes = json.loads((resources.files("muster.cli") / "method_notes.json").read_text("utf-8")).get(page, {})
    for title in ("cost", "reference"):
        if words := notes.get(title):
            out.print()
            out.print(Text(title.capitalize(), style="bold"))
            out.print(Markdown(words))


def page_of(kind: str, name: str) -> str:
    """The page of the documentation that explains a component."""
    pages = {"filters": "filters", "data": "data", "partitions": "partitions", "trackers": "tracking"}
    within = {"mix": "combinators", "warmup": "combinators", "within": "combinators", "limit-gap": "combinators"}
    if name == "plain":
        return "docs/config.md"
    shared = {"models", "signals", "availability", "devices", "pacing"}
    if kind == "filters" and name in attack_names():
        return f"docs/attacks/{name}.md"
    if kind in pages or kind in shared:
        return f"docs/{pages.get(kind, kind)}.md"
    return f"docs/methods/{within.get(name, name)}.md"


def _table(options: list[Option]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("option", style="cyan", no_wrap=True)
    explained = any(option.comment for option in options)
    for title in ("type", "default", *(["what it is"] if explained else [])):
        table.add_column(title)
    for option in options:
        words = [Text(option.comment)] if explained else []
        table.add_row(option.name, option.type, Text(_default(option)), *words)
    return table


def _default(option: Option) -> str:
    if option.required:
        return "required"
    if option.default is None:
        return "–"
    return toml_value(plain_setting(option.default))


def _show_disclosures(rows: list[Disclosure]) -> None:
    out.print()
    if not rows:
        out.print("Takes nothing from clients except their model updates.")
        return
    out.print("Takes from clients, besides their model updates:")
    for row in rows:
        out.print(Text(f"  {row.signal}: {row.what}; {row.how_often}"), soft_wrap=True)


def _show_workload(name: str) -> None:
    from muster.config.toml import to_toml

    out.print(Text.assemble((name, "bold cyan"), "  (workload)"))
    out.print(Text(workload_summaries()[name]))
    out.print()
    out.print(Text(to_toml(workload(name))))
