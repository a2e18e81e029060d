"""`muster inspect` on experiments and on tables of counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from muster.cli.app import app
from muster.core.errors import ConfigError, DataError


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["inspect", *arguments], catch_exceptions=False, env={"COLUMNS": "160"})
    assert result.exit_code == 0, result.output
    return result.output


def test_an_experiment():
    Path("c.toml").write_text('[partition]\nscheme = "dirichlet"\nclients = 10\nalpha = 0.1\n')
    text = call("c.toml", "--set", "selection.clients_per_round=2", "--out", "look")
    assert "digits: 10 clients, 10 classes" in text
    assert "random cohort of 2 misses it" in text
    assert "Page: look/inspection.html" in text
    assert sorted(path.name for path in Path("look").iterdir()) == [
        "divergence.png",
        "inspection.html",
        "kinds.png",
        "sizes.png",
    ]


def test_a_share_of_the_clients_is_a_cohort_too():
    Path("c.toml").write_text('[partition]\nscheme = "dirichlet"\nclients = 10\nalpha = 0.1\n')
    Path("c.toml").write_text(Path("c.toml").read_text() + "[selection]\nfraction = 0.3\n")
    assert "random cohort of 3 misses it" in call("c.toml")


def test_a_table_of_counts():
    Path("c.csv").write_text("client,class,attribute,count\nA,x,day,90\nA,y,night,90\nB,x,night,50\nB,y,day,50\n")
    text = call("c.csv", "--cohort", "1")
    assert "c.csv: 2 clients, 2 classes, 2 attribute values" in text
    assert "Strong spurious correlation in 100% of clients" in text
    assert [path.name for path in Path().iterdir()] == ["c.csv"]  # nothing is written unasked


def test_a_table_of_samples_with_its_own_names():
    rows = "".join(f"{n}.png;{'Köln' if n % 2 else 'Ulm'};{'ill' if n % 3 else 'well'}\n" for n in range(40))
    Path("c.csv").write_bytes(f"scan;hospital;diagnosis\n{rows}".encode("latin-1"))
    text = call("c.csv", "--client", "hospital", "--label", "diagnosis")
    assert "c.csv: 2 clients, 2 classes" in text
    assert "is not in UTF-8: it was read as Latin-1" in text


@pytest.mark.parametrize(
    ("name", "content", "options", "error", "message"),
    [
        ("c.txt", "", [], ConfigError, r"expected|\.toml"),
        ("c.json", "[[1, 2]]", ["--set", "seed=1"], ConfigError, "has no settings"),
        ("c.json", "[[1, 2], [0, 0]]", [], DataError, "no samples"),
        ("c.json", "[[1, 2], [3, 4]]", ["--cohort", "5"], ConfigError, "cohort of 5"),
        ("c.toml", "", ["--client", "x"], ConfigError, "is not a table"),
    ],
)
def test_mistakes(name, content, options, error, message):
    Path(name).write_text(content)
    with pytest.raises(error, match=message):
        call(name, *options)


def test_a_folder_without_files_of_clients(here):
    with pytest.raises(DataError, match="cannot count"):
        call(str(here))
