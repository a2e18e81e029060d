"""Counting files in folders: layouts, hidden files, what is refused, and the command."""

import numpy as np
import pytest
from typer.testing import CliRunner

from muster.cli.app import app
from muster.core.errors import ConfigError, DataError
from muster.experiment.inspection import inspect_source
from muster.heterogeneity.folders import count_files


def fill(folder, cells):
    for cell, files in cells.items():
        (folder / cell).mkdir(parents=True, exist_ok=True)
        for number in range(files):
            (folder / cell / f"{number}.png").touch()


def test_clients_and_classes(tmp_path):
    fill(tmp_path, {"north/cat": 3, "north/dog": 1, "south/dog": 2, "south/.trash": 9})
    (tmp_path / "north/cat/.hidden").touch()
    counts = count_files(tmp_path)
    assert (counts.clients, counts.classes, counts.attributes) == (("north", "south"), ("cat", "dog"), ())
    assert not counts.has_attributes
    np.testing.assert_array_equal(counts.table, [[[3], [1]], [[0], [2]]])


def test_attributes(tmp_path):
    fill(tmp_path, {"n/cat/day": 3, "n/dog/night": 1, "s/dog/day": 2})
    counts = count_files(tmp_path)
    assert counts.attributes == ("day", "night")
    np.testing.assert_array_equal(counts.table, [[[3, 0], [0, 1]], [[0, 0], [2, 0]]])


@pytest.mark.parametrize(
    ("cells", "found"),
    [
        ({}, "no files"),
        ({"n": 2}, "files in 'n'"),
        ({"n/cat": 1, "n/dog/day": 1, "n/dog/day/early/very": 1}, "very"),
        ({"n/cat": 1, "n/dog/day": 1}, "files in"),
    ],
)
def test_other_layouts_are_refused(tmp_path, cells, found):
    fill(tmp_path, cells)
    with pytest.raises(DataError, match=found) as caught:
        count_files(tmp_path)
    assert "CLIENT/CLASS" in str(caught.value)


def test_a_folder_has_no_settings(tmp_path):
    fill(tmp_path, {"n/cat": 1})
    with pytest.raises(ConfigError, match="no settings"):
        inspect_source(tmp_path, ["partition.alpha=1"])


def test_command(tmp_path):
    fill(tmp_path / "data", {"n/cat/day": 9, "n/dog/night": 9, "s/cat/night": 5, "s/dog/day": 5})
    result = CliRunner().invoke(app, ["inspect", str(tmp_path / "data"), "--out", str(tmp_path / "look")])
    assert result.exit_code == 0, result.output
    assert "spurious correlation" in result.output.lower()
    assert (tmp_path / "look" / "inspection.html").exists()
