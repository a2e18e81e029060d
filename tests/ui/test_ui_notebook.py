"""A result in a notebook: the page, in a frame, with nothing left behind."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import replace
from urllib.parse import urlsplit

import pytest

import muster
from muster.core.errors import ConfigError
from muster.server.ledger import Ledger
from muster.ui import notebook

pytestmark = pytest.mark.slow


def asked(address: str, path: str):
    parts = urlsplit(address)
    token = parts.query.removeprefix("token=")
    request = urllib.request.Request(
        f"http://{parts.netloc}/api/{path}", headers={"Authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


@pytest.fixture(autouse=True)
def _ended():
    yield
    for process, _ in notebook._servers.values():
        process.kill()
        process.wait()
    notebook._servers.clear()


def test_a_result_is_embedded(results):
    key, result = next(iter(results.items()))
    frame = muster.ui(result, height=500)
    assert frame.address.endswith(f"#/run/{key}")
    shown = frame._repr_html_()
    assert shown.startswith("<iframe ")
    assert 'height="500"' in shown
    facts = asked(frame.address, f"run/{key}")
    assert (facts["status"], facts["done"]) == ("complete", 5)
    found = asked(frame.address, f"run/{key}/curves?metrics=accuracy")
    assert found["metrics"]["accuracy"] == [row["accuracy"] for row in result.metrics]


def test_a_result_is_served_once_and_anew_when_it_has_gone_on(results):
    result = next(iter(results.values()))
    assert muster.ui(result).address == muster.ui(replace(result)).address
    assert len(notebook._servers) == 1
    ledger = Ledger(result.ledger.rounds[:3], result.ledger.disclosed[:3])
    earlier = replace(result, records=result.records[:3], ledger=ledger, complete=False)
    assert asked(muster.ui(earlier).address, "runs")["columns"]["done"] == [3]
    assert len(notebook._servers) == 2


def test_results_made_by_hand_are_not_taken_for_each_other(made):
    names = [asked(muster.ui(made(name)).address, "runs")["columns"]["name"] for name in ("one", "two")]
    assert names == [["one"], ["two"]]


def test_a_result_made_by_hand(made):
    frame = muster.ui(made("by hand", complete=False))
    facts = asked(frame.address, "run/" + "0" * 16)
    assert (facts["name"], facts["status"], facts["done"]) == ("by hand", "stopped", 3)


def test_a_workspace_is_embedded_and_served_once(workspace):
    frame = muster.ui(workspace)
    assert muster.ui(str(workspace)).address == frame.address
    assert len(asked(frame.address, "runs")["columns"]["name"]) == 4


def test_nothing_to_show(tmp_path, made):
    with pytest.raises(ConfigError, match="there is no store"):
        muster.ui(tmp_path)
    with pytest.raises(ConfigError, match="no round"):
        muster.ui(made(accuracies=[]))
