"""What a package declares is what it needs; `make package` and `make lowest` use it."""

from __future__ import annotations

import importlib.util
import re
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_SPEC = importlib.util.spec_from_file_location("check_package", ROOT / "tools" / "check_package.py")
check_package = importlib.util.module_from_spec(_SPEC)
sys.modules["check_package"] = check_package
_SPEC.loader.exec_module(check_package)


def test_libraries_are_declared():
    assert check_package.undeclared() == []


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import numpy.linalg\nfrom scipy import stats", {"numpy", "scipy"}),
        ("def f():\n    import torch", set()),
        ("class A:\n    import torch", {"torch"}),
        ("if TYPE_CHECKING:\n    import pandas\nelse:\n    import numpy", {"numpy"}),
        ("try:\n    import rich\nexcept ImportError:\n    pass", {"rich"}),
        ("from . import here", set()),
    ],
)
def test_what_counts_as_imported(tmp_path, code, expected):
    (tmp_path / "module.py").write_text(code)
    assert {name for name, _ in check_package.imported(tmp_path)} == expected


def test_the_lowest_versions_are_those_that_are_tested():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *project["optional-dependencies"]["pandas"]]
    allowed = dict(re.fullmatch(r"([\w-]+)>=([\d.]+)", line).groups() for line in lines)
    lines = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    tested = dict(re.match(r"([\w-]+)==([\d.]+)", line).groups() for line in lines if not line.startswith("#"))
    assert tested.pop("torch") == "2.13.0"  # the only one at hand
    allowed.pop("torch")
    for needed in ("pydantic-core", "pytz"):  # by the others
        tested.pop(needed)
    assert allowed == tested


def test_the_page_of_a_package_index_has_no_links_that_lead_nowhere_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / project["readme"]).read_text()
    assert [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link] == []


def test_templates_of_issues_ask_for_what_they_need():
    yaml = pytest.importorskip("yaml")
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        content = yaml.safe_load(path.read_text())
        if path.stem == "config":
            continue
        assert content["name"]
        assert content["description"]
        ids = [part["id"] for part in content["body"]]
        assert len(set(ids)) == len(ids) > 0
        assert any(part.get("validations", {}).get("required") for part in content["body"])


def test_coverage_has_a_floor_that_hosted_ci_enforces():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["coverage"]
    assert settings["report"]["fail_under"] > 50
    assert settings["run"] == {"source": ["muster"], "branch": True}
    (recipe,) = re.findall(r"^coverage:.*\n\t(.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert "--cov " in recipe
    assert "--no-cov" not in recipe
    targets = re.search(r"target: \[(.*)\]", (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    assert "coverage" in targets[1].split(", ")
