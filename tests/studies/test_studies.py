"""Every study is sweeps and a page with the commands: all can be planned, and what needs no data starts."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import click
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from muster.aggregation.base import aggregators
from muster.cli.app import app
from muster.core.registry import build
from muster.data.partition.base import schemes
from muster.data.sources.base import sources
from muster.experiment.components import build_selector
from muster.experiment.sweep import load_sweep
from muster.models.base import build_model
from muster.results.store import Store
from muster.training.base import LocalTraining, algorithms

STUDIES = Path(__file__).parents[2] / "studies"
SWEEPS = sorted(STUDIES.glob("*/*.toml"))
PAGES = sorted(STUDIES.glob("*/README.md"))
#: Sources whose samples come with the package or are generated; of others only the plan is checked.
AT_HAND = {"digits", "synthetic", "spurious-shapes"}
#: Shape of the samples and number of classes, to build a study's model without its data.
SHAPES = {
    "digits": ((1, 8, 8), 10),
    "fashion-mnist": ((1, 28, 28), 10),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
    "pacs": ((3, 32, 32), 2),
    "banking77": ((384,), 77),
    "cmnist": ((3, 28, 28), 2),
    "spurious-shapes": ((3, 28, 28), 2),
}


def id_of(path: Path) -> str:
    return str(path.relative_to(STUDIES))


@pytest.mark.parametrize("path", SWEEPS, ids=id_of)
def test_every_sweep_can_be_planned(path):
    experiments = load_sweep(path).experiments()
    assert experiments
    for experiment in experiments:
        experiment.check()
        assert experiment.data["source"] in sources.names()
        assert experiment.partition["scheme"] in schemes.names()
        build_selector(experiment.selection, clients=1000)
        build(LocalTraining, experiment.training, "training").check()
        for section, registry in (("aggregation", aggregators), ("algorithm", algorithms)):
            options = dict(getattr(experiment, section))
            registry.build(options.pop("method"), options, section)
    for kind, model in {repr(experiment.model): experiment.model for experiment in experiments}.items():
        # A BERT is built from its files.
        if (source := experiments[0].data["source"]) in SHAPES and model["name"] != "bert":
            options = dict(model)
            assert build_model(options.pop("name"), *SHAPES[source], options), kind


@pytest.mark.parametrize("path", SWEEPS, ids=id_of)
def test_every_sweep_is_named_after_its_study_and_stands_in_its_page(path):
    name = load_sweep(path).name
    assert name.startswith(path.parent.name) or path.stem in name
    assert path.stem in (path.parent / "README.md").read_text(encoding="utf-8")


def test_no_two_sweeps_have_the_same_name():
    names = [load_sweep(path).name for path in SWEEPS]
    assert len(set(names)) == len(names)


def commands(page: Path) -> list[list[str]]:
    """The calls of `muster` in a page, word by word."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line, comments=True) for line in map(str.strip, lines) if line.startswith("muster ")]


@pytest.mark.parametrize("page", PAGES, ids=id_of)
def test_commands_of_the_page_exist_with_their_options_and_names(page):
    known = {load_sweep(path).name for path in page.parent.glob("*.toml")}
    called = commands(page)
    assert called
    for _, name, *words in called:
        group = get_command(app)
        assert isinstance(group, click.Group)
        arguments = group.commands[name].make_context(name, list(words)).params
        if name == "sweep":
            assert "$" in words[0] or (STUDIES.parent / words[0]).exists()
        elif name in ("compare", "plot", "report"):
            assert set(arguments["runs"]) <= known


@pytest.mark.parametrize(
    "path",
    [path for path in SWEEPS if load_sweep(path).experiments()[0].data["source"] in AT_HAND],
    ids=id_of,
)
def test_the_first_run_starts_where_data_is_at_hand(path, tmp_path):
    sweep = load_sweep(path)
    part = ["--case", next(iter(sweep.cases)), "--seed", "0", "--set", "rounds=1", "--jobs", "1", "--workers", "0"]
    outcome = CliRunner().invoke(app, ["sweep", str(path), *part, "--workspace", str(tmp_path)])
    assert outcome.exit_code == 0, outcome.output
    with Store(tmp_path) as store:
        (result,) = store.results(sweep=sweep.name)
    assert result.complete
    assert result.metrics[-1]["accuracy"] > 0
