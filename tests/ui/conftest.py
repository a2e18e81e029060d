"""Shared by tests of the live page: a workspace with a few small runs, and somebody who asks the page for them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

import muster
from muster.experiment import from_dict
from muster.results.store import Store
from muster.ui.app import PageSettings, make_app

EVIL = "<script>alert(1)</script>"
TOKEN = "a-token"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
BASE: dict[str, Any] = {
    "rounds": 5,
    "data": {"source": "digits"},
    "partition": {"scheme": "dirichlet", "clients": 12, "alpha": 0.5},
    "model": {"name": "mlp", "hidden": [8]},
    "training": {"lr": 0.1, "batch_size": 16},
    "selection": {"method": "random", "clients_per_round": 4},
    "aggregation": {"method": "fedavg"},
}


def experiment(**changes: Any) -> muster.Experiment:
    values = {key: dict(value) if isinstance(value, dict) else value for key, value in BASE.items()}
    for key, value in changes.items():
        values[key] = values.get(key, {}) | value if isinstance(value, dict) else value
    return from_dict(values)


RUNS = {
    "random": {"seed": 0},
    "random again": {"seed": 1},
    "terraform": {"selection": {"method": "terraform", "min_clients": 2}},  # trains several times in a round
    EVIL: {"devices": {"method": "lognormal"}, "seed": 7},
}


@pytest.fixture(scope="session")
def workspace(tmp_path_factory) -> Path:
    """Finished runs: two seeds of random, terraform, and one in virtual time with an ugly name."""
    folder = tmp_path_factory.mktemp("page")
    for name, changes in RUNS.items():
        muster.run(experiment(name=name.removesuffix(" again"), **changes), 0, store=folder)
    return folder


@pytest.fixture(scope="session")
def results(workspace):
    """The same runs, as the store gives them back."""
    with Store(workspace) as store:
        return {run.fingerprint: store.result(run) for run in store.runs()}


class Visitor:
    """Asks a page, with its token unless told otherwise."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.client = TestClient(
            make_app(PageSettings(folder, TOKEN, **options)), base_url="http://127.0.0.1:8000"
        )

    def ask(self, path: str, *, status: int = 200, headers: dict[str, str] | None = None, **params: Any) -> Any:
        given = {"Authorization": f"Bearer {TOKEN}"} if headers is None else headers
        answer = self.client.get(f"/api/{path}", params=params, headers=given)
        assert answer.status_code == status, answer.text
        return answer.json()

    def tell(self, path: str, *, status: int = 200) -> Any:
        answer = self.client.post(f"/api/{path}", headers={"Authorization": f"Bearer {TOKEN}"})
        assert answer.status_code == status, answer.text
        return answer.json()


@pytest.fixture
def visit():
    return Visitor


@pytest.fixture
def page(workspace) -> Visitor:
    return Visitor(workspace)


@pytest.fixture
def make_experiment():
    return experiment


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield opened
        opened.close()
