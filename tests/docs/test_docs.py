"""The documentation keeps up with the code: pages, links, and examples that run."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import muster
from muster.aggregation.base import aggregators
from muster.config.experiment import build_filters, from_dict
from muster.core.registry import build
from muster.data.partition.base import schemes
from muster.data.sources.base import sources
from muster.experiment.components import build_selector
from muster.experiment.sweep import load_sweep
from muster.league.file import from_values as league_from
from muster.models.base import models
from muster.selection.base import selectors
from muster.training.base import LocalTraining, algorithms

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *(page for folder in ("docs", "studies") for page in sorted((ROOT / folder).rglob("*.md"))),
]
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
#: Keys that only a sweep has.
SWEEP = {"seeds", "repeats", "grid", "cases"}
INTERVAL = re.compile(r"\[([+−]\d+\.\d+), ([+−]\d+\.\d+)\]")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")) if kind == language]


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    links = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("registry", [selectors, aggregators, algorithms], ids=lambda registry: registry.kind)
def test_every_method_has_a_page_and_a_test_file(registry):
    together = {"multi-krum": "krum", "within": "combinators", "mix": "combinators", "warmup": "combinators"}
    together |= {"limit-gap": "combinators", "plain": "fedavg"}
    tests = " ".join(path.stem for path in (ROOT / "tests").rglob("test_*.py"))
    missing = []
    for name in registry:
        page = together.get(name, name)
        stems = {page.replace("-", "_"), page.replace("-score", "").replace("-", "_")}
        if not (ROOT / "docs" / "methods" / f"{page}.md").exists():
            missing.append(f"docs/methods/{page}.md")
        if not any(stem in tests for stem in stems) and page != "fedavg":
            missing.append(f"a test file for {page}")
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_toml_examples_are_valid(page):
    for text in blocks(page, "toml"):
        values = tomllib.loads(text)
        if "project" in values or "build-system" in values or SWEEP & set(values):
            continue
        if {"problems", "tables"} <= set(values):
            league_from(values)
            continue
        experiment = from_dict(values)
        build(LocalTraining, experiment.training, "training").check()
        build_filters(experiment.filters)
        if "method" in values.get("selection", {}):
            section = values["selection"]
            build_selector({"clients_per_round": 5} | section if _takes_count(section) else section, clients=100)
        named = (("data", "source", sources), ("partition", "scheme", schemes), ("model", "name", models))
        for section, key, known in named:
            if (name := values.get(section, {}).get(key)) not in (None, "own", "sensors"):
                known.get(name)
        for section, registry in (("aggregation", aggregators), ("algorithm", algorithms)):
            options = dict(values.get(section, {}))
            if "method" in options:
                registry.build(options.pop("method"), options, section)


def _takes_count(section) -> bool:
    fields = selectors.get(section["method"]).__dataclass_fields__  # type: ignore[attr-defined]
    return "fraction" not in section and "clients_per_round" in fields


@pytest.mark.parametrize(
    "page",
    [
        ROOT / "README.md",
        *(
            ROOT / "docs" / name
            for name in ("protocols.md", "compare.md", "store.md", "sweeps.md", "filters.md", "own.md")
        ),
    ],
    ids=name_of,
)
def test_python_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    examples = blocks(page, "python")
    assert examples
    for text in examples:
        # As the cells of a notebook are run.
        example = ModuleType("__main__")
        monkeypatch.setitem(sys.modules, "__main__", example)
        exec(compile(text, str(page), "exec", dont_inherit=True), vars(example))


def test_the_readme_counts_methods_rightly():
    combinators = {"limit-gap", "mix", "warmup", "within"}
    told = f"{len(set(selectors) - combinators)} selectors and {len(list(aggregators))} aggregators"
    assert told in (ROOT / "README.md").read_text(encoding="utf-8")


def test_a_new_users_task_is_short():
    """Own data, network and method in a sweep against the papers' methods: at most 25 lines and two imports."""
    example = next(text for text in blocks(ROOT / "README.md", "python") if "muster.compare" in text)
    lines = [line for line in example.splitlines() if line.strip()]
    assert len(lines) <= 25
    assert sum(line.startswith(("import", "from")) for line in lines) <= 2


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.toml")), ids=lambda path: path.stem)
def test_example_files_are_valid(path):
    values = tomllib.loads(path.read_text(encoding="utf-8"))
    experiments = load_sweep(path).experiments() if SWEEP & set(values) else [from_dict(values)]
    for experiment in experiments:
        build_selector(experiment.selection, clients=1000)


def test_the_sweep_of_the_docs_is_valid(tmp_path):
    (text,) = blocks(ROOT / "docs" / "sweeps.md", "toml")
    (tmp_path / "sweep.toml").write_text(text, encoding="utf-8")
    (tmp_path / "digits.toml").write_bytes((ROOT / "examples" / "digits.toml").read_bytes())
    assert len(load_sweep(tmp_path / "sweep.toml").experiments()) == 24


def load_tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_the_page_of_rooms_is_that_of_the_code():
    """Otherwise: `make graph`."""
    draw_rooms = load_tool("draw_rooms")
    names = draw_rooms.rooms()
    assert all(map(draw_rooms.purpose, names))
    assert draw_rooms.table(names) in (ROOT / "docs" / "contributing" / "rooms.md").read_text(encoding="utf-8")


def test_what_is_shown_of_a_method_is_what_its_page_says():
    """`muster show` has cost and reference from pages: `python tools/method_notes.py` takes them over."""
    tool = load_tool("method_notes")
    assert tool.NOTES.read_text(encoding="utf-8") == tool.text()
    notes = tool.notes()
    assert [page for page, note in notes.items() if not note["cost"]] == []
    # The two that nobody has published.
    assert [page for page, note in notes.items() if not note["reference"]] == ["combinators", "retrain-random"]


def test_the_citation_has_the_version():
    assert f"\nversion: {muster.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")


def test_every_decision_is_listed():
    folder = ROOT / "docs" / "contributing" / "decisions"
    listed = (folder / "README.md").read_text(encoding="utf-8")
    records = sorted(path.name for path in folder.glob("0*.md"))
    assert [name for name in records if f"({name})" not in listed] == []
    assert [int(name[:4]) for name in records] == list(range(1, len(records) + 1))


def test_the_tests_that_the_page_of_the_audit_names_are_there():
    page = (ROOT / "docs" / "contributing" / "right-numbers.md").read_text()
    known = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    assert [file for file in set(re.findall(r"tests/[\w/]+\.py", page)) if not (ROOT / file).exists()] == []
    named = set(re.findall(r"::(test_\w+)", page))
    assert len(named) > 80
    assert [name for name in named if f"def {name}(" not in known] == []


def test_every_interval_of_the_summary_stands_on_the_page_that_it_names():
    """Pages are measured anew, the summary of all papers is written by hand. Differences may be turned round."""
    summary = ROOT / "docs" / "results" / "README.md"
    quoted = 0
    for paper in re.split(r"\n(?=\*\*)", summary.read_text(encoding="utf-8")):
        pages = [summary.parent / link for link in LINK.findall(paper) if link.endswith(".md")]
        numbers = {found for page in pages for found in INTERVAL.findall(page.read_text(encoding="utf-8"))}
        for low, high in INTERVAL.findall(paper):
            quoted += 1
            turned = tuple(end.translate(str.maketrans("+−", "−+")) for end in (high, low))
            assert (low, high) in numbers or turned in numbers, f"[{low}, {high}] is on none of {pages}"
    assert quoted > 5
