"""What the command line says about groups, noise and disclosures."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from muster.cli.app import app
from muster.core.errors import ConfigError

SHAPES = """
rounds = 2
[data]
source = "spurious-shapes"
samples = 300
test_samples = 80
[partition]
scheme = "iid"
clients = 6
[model]
name = "mlp"
hidden = [8]
[selection]
method = "fedcbs"
clients_per_round = 3
[privacy]
epsilon = 0.5
"""


def call(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_run_ends_with_groups_and_what_noise_guarantees(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("c.toml").write_text(SHAPES)
    text = call("run", "c.toml", "-w", "0", "--out", "out")
    assert "Accuracy by group" in text
    rows = [line.split() for line in text.splitlines() if line.strip().startswith("class ")]
    assert [row[:2] for row in rows] == [["class", "0"], ["class", "1"]]
    assert all(row.count("(20)") == 2 for row in rows)
    (spent,) = [line for line in text.splitlines() if line.strip().startswith("label_histogram")]
    assert "laplace, ε = 0.5 each" in spent
    assert "one sample replaced" in spent
    assert "Model updates and other answers have no noise" in text


@pytest.mark.parametrize("kind", [[], ["methods"]])
def test_the_table_of_disclosures_has_all_methods(kind):
    text = call("list", *kind, "--privacy")
    assert "selection" in text
    assert "aggregation" in text
    (row,) = [line for line in text.splitlines() if "feddiverse " in line]
    assert "heterogeneity_triplet" in row
    assert "once" in row


def test_methods_are_selection_and_aggregation():
    text = call("list", "methods")
    assert "terraform" in text
    assert "fedavg" in text
    assert "femnist-cnn" not in text


def test_other_kinds_have_no_table_of_disclosures():
    assert "aggregation" not in call("list", "selection", "--privacy").splitlines()[0]
    with pytest.raises(ConfigError, match="no table of disclosures for 'models'"):
        call("list", "models", "--privacy")
