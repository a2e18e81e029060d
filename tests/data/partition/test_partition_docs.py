"""The page about partitions: a section for every scheme, and examples that work."""

import re
import tomllib
from pathlib import Path

import pytest

from muster.config.workloads import workload_summaries
from muster.core.registry import parameters_of
from muster.data.partition import schemes
from muster.world.availability import availabilities

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def page() -> str:
    return (DOCS / "partitions.md").read_text(encoding="utf-8")


def own_schemes() -> list[str]:
    return [name for name in schemes if schemes.get(name).__module__.startswith("muster.")]


@pytest.mark.parametrize("name", own_schemes())
def test_every_scheme_and_option_is_described(name, page):
    section = page.split(f"\n## {name}\n")[1].split("\n## ")[0]
    for option in parameters_of(schemes.get(name)):
        assert f"`{option}`" in section or f"{option} = " in section, option


def test_examples_can_be_built(page):
    examples = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    built = set()
    for example in examples:
        options = tomllib.loads(example)["partition"]
        built.add(name := options.pop("scheme"))
        schemes.build(name, options)
    assert built == set(own_schemes())


def test_the_example_of_availability_can_be_built():
    text = (DOCS / "availability.md").read_text(encoding="utf-8")
    options = tomllib.loads(re.findall(r"```toml\n(.*?)```", text, re.DOTALL)[0])["availability"]
    assert availabilities.build(options.pop("method"), options)
    assert all(f"`{name}`" in text for name in availabilities)


def test_workloads_that_the_page_names_exist():
    text = (DOCS / "workloads.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:terraform|astrafl|probing|feddiverse|simprox)-[a-z0-9-]+)`", text))
    assert named
    assert named <= set(workload_summaries())
