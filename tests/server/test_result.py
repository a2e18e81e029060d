"""Results: series, tables, pictures and files."""

from __future__ import annotations

import numpy as np
import pytest

import muster
from muster.core.errors import ConfigError
from muster.report.tables import readable_bytes


@pytest.fixture
def pair(tiny):
    terraform = {"method": "terraform", "clients_per_round": 8, "min_clients": 2}
    return [muster.run(tiny(name="a"), workers=0), muster.run(tiny(name="b", selection=terraform), workers=0)]


def test_metrics_have_one_row_a_round_with_the_work_so_far(pair):
    rows = pair[1].metrics
    assert [row["round"] for row in rows] == [1, 2, 3]
    trained = [sum(len(clients) for clients in round) for round in pair[1].selections]
    assert [row["client_trainings"] for row in rows] == np.cumsum(trained).tolist()
    assert pair[1].to_pandas().shape == (3, len(rows[0]))


def test_series_and_unknown_names(pair):
    x, y = pair[0].series("accuracy", per="client_trainings")
    assert x.tolist() == [5, 10, 15]
    assert (pair[0].final(), pair[0].best()) == (y[-1], y.max())
    assert pair[0].best("loss") == pair[0].series("loss")[1].min()
    with pytest.raises(ConfigError, match="unknown metric 'acuracy'"):
        pair[0].series("acuracy")


def test_pictures_and_files(pair, tmp_path):
    pair[0].plot(path=tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    pair[0].save(tmp_path / "out")
    assert np.array_equal(np.load(tmp_path / "out" / "parameters.npy"), pair[0].parameters)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1500, "1.5 kB"), (6.9e6, "6.9 MB"), (2e15, "2000.0 TB")]
)
def test_readable_bytes(count, text):
    assert readable_bytes(count) == text


def test_the_summary_has_the_metrics_of_the_last_round(tiny):
    result = muster.run(tiny(rounds=2), workers=0)
    assert result.metrics[0] != result.metrics[1]
    assert result.summary()["metrics"] == result.metrics[1]
