"""Writes a Flower app: a thin package around an experiment, which `flwr run` takes as it is.

The experiment is text in the app's configuration, so that it reaches server and nodes alike, whether they
unpack the app or have Muster's installed.
"""

from __future__ import annotations

import json
import keyword
import re
import tomllib
from collections.abc import Sequence
from importlib import util
from pathlib import Path

from muster.core.errors import ConfigError, OutputError
from muster.flower.client_app import experiment_of

#: What `muster flower new` starts with: the quickstart's federation.
DEFAULT_EXPERIMENT = """# The quickstart's federation: digits over clients with very different label mixes.
name = "terraform"
rounds = 30

[data]
source = "digits"

[partition]
scheme = "multi-dirichlet"
clients = 40
alphas = [0.05, 0.1, 0.2, 0.5, 2.0]

[model]
name = "mlp"
hidden = [64]

[training]
lr = 0.05
epochs = 2
batch_size = 8

[selection]
method = "terraform"
clients_per_round = 12

[aggregation]
method = "fedavg"

[flower]
deadline = 600       # seconds that clients have for an answer
"""

_PYPROJECT = """[project]
name = "{name}"
version = "1.0.0"
description = {title}
license = "Apache-2.0"
# Muster must be installed where server and nodes run; Flower would try to install what is listed here.
dependencies = []

[tool.flwr.app]
publisher = "muster"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

# What `flwr run . --run-config 'settings="seed=1; rounds=5"'` may change.
[tool.flwr.app.config]
# Changes to the experiment: section.key=value, separated by semicolons.
settings = {settings}
# Folder of the results store on the server's machine, an absolute path. `muster report` reads it.
store = {store}
# Continue where an earlier run of the same experiment stopped.
resume = false
experiment = {experiment}
"""

_SERVER = '''"""The server: Muster's loop, with the experiment in pyproject.toml."""

from muster.flower.server_app import app

__all__ = ["app"]
'''

_CLIENT = '''"""The clients: each has the part of the experiment's data set that its `partition-id` names.

For your own data, write a hook that returns (train, test) as `muster.data.federated.Samples`, and say
`[data] source = "own"` in the experiment:

    def client_data(context):
        images, labels = load(context.node_config["data-path"])
        return Samples(images, labels), None

    app = make_client_app(client_data=client_data)
"""

from muster.flower.client_app import make_client_app

app = make_client_app()
'''


def write_app(folder: Path, experiment: str, settings: Sequence[str] = (), store: Path | None = None) -> Path:
    """Write an app for an experiment (TOML text) into a new folder; returns the folder."""
    folder = folder.absolute()
    checked = experiment_of({"experiment": experiment, "settings": "; ".join(settings)})
    package = _package_name(folder.name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = "not empty" if folder.is_dir() else "a file"
        raise OutputError(f"{folder} is {what}", fix="choose another folder for the app")
    title = f"{checked.title}: a Muster experiment"
    settled = _PYPROJECT.format(
        name=package.replace("_", "-"),
        title=json.dumps(title, ensure_ascii=False),
        package=package,
        settings=json.dumps("; ".join(settings), ensure_ascii=False),
        store=json.dumps(str((store or folder / "results").absolute()), ensure_ascii=False),
        experiment=_quoted(experiment),
    )
    files = {
        "pyproject.toml": settled,
        f"{package}/__init__.py": '"""A Muster experiment as a Flower app."""\n',
        f"{package}/server_app.py": _SERVER,
        f"{package}/client_app.py": _CLIENT,
        ".gitignore": "results/\n",
    }
    try:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write the app into {folder}: {error.strerror or error}") from error
    return folder


def _package_name(name: str) -> str:
    package = re.sub(r"\W+", "_", name.lower()).strip("_")
    if not package.isidentifier() or keyword.iskeyword(package):
        raise ConfigError(f"'{name}' cannot be a package's name", expected="letters, digits, - and _")
    if util.find_spec(package) is not None:
        # The app's modules are imported by name: another package of that name would be taken instead.
        raise ConfigError(
            f"a package '{package}' is installed here already", fix="choose another name for the folder"
        )
    return package


def _quoted(text: str) -> str:
    """A TOML string with this text, readable where possible."""
    quoted = f"'''\n{text.rstrip()}\n'''"
    try:
        if tomllib.loads(f"x = {quoted}")["x"].strip() == text.strip():
            return quoted
    except tomllib.TOMLDecodeError:
        pass
    return json.dumps(text, ensure_ascii=False)
