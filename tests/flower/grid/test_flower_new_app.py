"""`muster flower new`: what it writes, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from types import SimpleNamespace

import pytest
from flwr.cli.build import build_fab_from_disk
from flwr.clientapp import ClientApp
from flwr.common.config import get_fused_config_from_fab
from flwr.serverapp import ServerApp
from typer.testing import CliRunner

from muster.cli.app import app
from muster.core.errors import ConfigError, OutputError
from muster.experiment.quickstart import experiments
from muster.flower.client_app import experiment_of
from muster.flower.new_app import DEFAULT_EXPERIMENT, write_app
from muster.flower.server_app import _store


def new(*arguments: str):
    return CliRunner().invoke(app, ["flower", "new", *arguments])


def test_the_app_holds_the_quickstart(tmp_path):
    assert new(str(tmp_path / "my-app")).exit_code == 0
    values = tomllib.loads((tmp_path / "my-app" / "pyproject.toml").read_text())
    flower = values["tool"]["flwr"]["app"]
    assert flower["components"] == {"serverapp": "my_app.server_app:app", "clientapp": "my_app.client_app:app"}
    assert flower["config"]["store"] == str(tmp_path / "my-app" / "results")
    quickstart = next(e for e in experiments(rounds=30) if e.name == "terraform")
    assert experiment_of(flower["config"]).fingerprint == quickstart.fingerprint


def test_the_components_are_flower_apps(tmp_path, monkeypatch):
    write_app(tmp_path / "some-app-to-import", DEFAULT_EXPERIMENT)
    monkeypatch.syspath_prepend(tmp_path / "some-app-to-import")
    from some_app_to_import.client_app import app as client  # type: ignore[import-not-found]
    from some_app_to_import.server_app import app as server  # type: ignore[import-not-found]

    assert isinstance(client, ClientApp)
    assert isinstance(server, ServerApp)
    for name in [name for name in sys.modules if name.startswith("some_app_to_import")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    "text",
    [
        "# plain\nname = 'x'\n",
        'name = "a \\"quoted\\" word"\n',
        "name = '''three'''\n",
        "name = 'Größe ☃ 𝔐'  # \\ backslash\n",
    ],
)
def test_the_text_survives_the_way_through_flower(tmp_path, text):
    """From the file through the bundle and the fused configuration, as server and nodes read it."""
    folder = write_app(tmp_path / "text-app", text, ["seed=4", 'selection.method="terraform"'])
    config = get_fused_config_from_fab(build_fab_from_disk(folder), SimpleNamespace(override_config={}))
    made = experiment_of(config)
    assert made.name == tomllib.loads(text)["name"]
    assert made.seed == 4
    assert made.selection["method"] == "terraform"


def test_a_config_file_is_taken_as_it_is(tmp_path):
    config = tmp_path / "mine.toml"
    config.write_text("# my words\nrounds = 7\n")
    assert new(str(tmp_path / "app-of-mine"), "--config", str(config), "--set", "seed=2").exit_code == 0
    text = (tmp_path / "app-of-mine" / "pyproject.toml").read_text()
    assert "# my words" in text
    assert 'settings = "seed=2"' in text


def test_mistakes(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(OutputError, match="not empty"):
        write_app(tmp_path / "full", DEFAULT_EXPERIMENT)
    with pytest.raises(ConfigError, match="cannot be a package's name"):
        write_app(tmp_path / "7 days", DEFAULT_EXPERIMENT)
    with pytest.raises(ConfigError, match="'numpy' is installed here already"):
        write_app(tmp_path / "numpy", DEFAULT_EXPERIMENT)
    with pytest.raises(ConfigError, match="unknown key or section 'colour'"):
        write_app(tmp_path / "app-a", "colour = 3")
    with pytest.raises(ConfigError, match="not valid TOML"):
        write_app(tmp_path / "app-b", "colour = ")
    with pytest.raises(ConfigError, match="not an absolute path"):
        _store({"store": "results"})
    assert isinstance(new(str(tmp_path / "c"), "--config", str(tmp_path / "none.toml")).exception, ConfigError)
    assert not (tmp_path / "app-a").exists()


@pytest.mark.parametrize("code", ["import muster.flower", "from muster.cli.flower import new; new(Path('x'))"])
def test_without_flower_it_says_so(tmp_path, code):
    hidden = f"import sys; sys.modules['flwr'] = None; from pathlib import Path; {code}"
    ended = subprocess.run(
        [sys.executable, "-c", hidden], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "ConfigError: Flower is not installed" in ended.stderr
    assert not list(tmp_path.iterdir())
