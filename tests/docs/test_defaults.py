"""The defaults that pages of methods and attacks state are those of the code."""

from __future__ import annotations

import ast
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from muster.aggregation import aggregators
from muster.core.registry import Registry, parameters_of
from muster.selection import selectors
from muster.training import algorithms
from muster.updates.attacks.base import attack_names
from muster.updates.filters import filters

DOCS = Path(__file__).resolve().parents[2] / "docs"
#: `| `key`, `another` | default, default | meaning |`
ROW = re.compile(r"\| *(?P<keys>`.+?) *\| *(?P<defaults>[^|]*?) *\|.*\|")
CASES = [
    (registry, name, page)
    for registry, names, folder in (
        (selectors, selectors, "methods"),
        (aggregators, aggregators, "methods"),
        (algorithms, algorithms, "methods"),
        (filters, attack_names(), "attacks"),
    )
    for name in names
    if (page := DOCS / folder / f"{name}.md").exists()
]


def stated(page: Path, options: set[str]) -> dict[str, Any]:
    """Option → its default, where a table of the page has one that is not in words ("a quarter of the rounds")."""
    found = {}
    for row in map(ROW.fullmatch, page.read_text(encoding="utf-8").splitlines()):
        keys = re.findall(r"`(\w+)`", row["keys"]) if row else []
        if row is None or not options.issuperset(keys):
            continue
        cells = row["defaults"].replace("`", "").split(", ") if len(keys) > 1 else [row["defaults"].strip("`")]
        for key, cell in zip(keys, cells, strict=False):
            with suppress(SyntaxError, ValueError):
                found[key] = ast.literal_eval({"true": "True", "false": "False"}.get(cell, cell))
    return found


@pytest.mark.parametrize(("registry", "name", "page"), CASES, ids=[f"{case[0].kind} {case[1]}" for case in CASES])
def test_the_page_has_the_defaults_of_the_code(registry: Registry[Any], name: str, page: Path) -> None:
    options = parameters_of(registry.get(name))
    # None stands for a value that follows from others, which the page may name.
    defaults = {key: option.default for key, option in options.items() if option.default is not None}
    wrong = {
        key: f"{value} on the page, {defaults[key]} in the code"
        for key, value in stated(page, set(options)).items()
        if key in defaults and (tuple(value) if isinstance(value, list) else value) != defaults[key]
    }
    assert not wrong


def test_the_tables_are_read() -> None:
    oort = stated(DOCS / "methods" / "oort.md", set(parameters_of(selectors.get("oort"))))
    assert (oort["pacer"], oort["exploration_decay"], oort["blacklist_rounds"]) == ("code", 0.98, -1)
    read = [stated(page, set(parameters_of(registry.get(name)))) for registry, name, page in CASES]
    assert sum(map(len, read)) > 200


def test_every_page_is_that_of_a_method() -> None:
    """Whoever reads a page can write its name into an experiment."""
    together = {"combinators"}
    for folder, names in (
        ("methods", {*selectors, *aggregators, *algorithms} | together),
        ("attacks", set(filters)),
    ):
        assert {page.stem for page in (DOCS / folder).glob("*.md")} - {"README", "index"} <= names
