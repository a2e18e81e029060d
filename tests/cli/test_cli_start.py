"""`muster init`, `show`, `schema`, and hints for settings that are nearly right."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from muster.cli.app import app
from muster.cli.describe import page_of
from muster.cli.show import KINDS
from muster.config.experiment import load
from muster.core.errors import MusterError
from muster.report import plots
from muster.selection.base import selectors
from muster.selection.random import RandomSelection


class Done:
    """What a command said, and with which code it ended."""

    def __init__(self, arguments: tuple[str, ...]) -> None:
        result = CliRunner().invoke(app, [*arguments])
        error = result.exception if isinstance(result.exception, MusterError) else None
        assert result.exception is None or error or isinstance(result.exception, SystemExit)
        self.output = f"{result.output}{error or ''}"
        self.exit_code = error.exit_code if error else result.exit_code


@pytest.fixture
def cli():
    return lambda *arguments: Done(arguments)


def test_what_init_writes_runs(cli, tmp_path):
    folder = tmp_path / "study"
    done = cli("init", str(folder))
    assert done.exit_code == 0, done.output
    assert sorted(p.name for p in folder.iterdir()) == ["experiment.toml", "muster.schema.json", "sweep.toml"]
    config = folder / "experiment.toml"
    done = cli("run", str(config), "--set", "rounds=2", "--workspace", str(tmp_path / "runs"), "--workers", "0")
    assert done.exit_code == 0, done.output
    done = cli("sweep", str(folder / "sweep.toml"), "--dry-run", "--workspace", str(tmp_path / "runs"))
    assert done.exit_code == 0, done.output
    assert "12 runs" in done.output


def test_init_overwrites_nothing(cli, tmp_path):
    (tmp_path / "sweep.toml").write_text("mine")
    done = cli("init", str(tmp_path))
    assert done.exit_code == 2
    assert "already has sweep.toml" in done.output
    assert (tmp_path / "sweep.toml").read_text() == "mine"
    assert not (tmp_path / "experiment.toml").exists()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("terraform", ["min_clients", "4", "docs/methods/terraform.md", "nothing from clients"]),
        ("scaffold", ["(aggregation)", "(algorithms)", "control_change"]),
        ("dirichlet", ["alpha", "[partition]", "docs/partitions.md"]),
        ("terraform-fmnist-4", ["(workload)", "fashion-mnist"]),
        ("loss", ["(signals)"]),
    ],
)
def test_show(cli, name, expected):
    done = cli("show", name)
    assert done.exit_code == 0, done.output
    for text in expected:
        assert text in done.output


def test_show_breaks_lines_where_the_terminal_ends_and_leaves_out_an_empty_column(cli):
    shown = cli("show", "dirichlet").output
    assert "With redraw =" in shown
    assert "what it is" not in shown.split("(availability)")[1]
    assert "what it is" in cli("show", "phones").output


def test_show_of_something_unknown_names_the_nearest(cli):
    done = cli("show", "terafrom")
    assert done.exit_code == 2
    assert "'terraform'" in done.output
    assert len(done.output) < 500


def test_the_schema_is_json(cli, tmp_path):
    done = cli("schema")
    assert json.loads(done.output)["title"] == "An experiment of Muster"
    done = cli("schema", "--out", str(tmp_path / "missing" / "s.json"))
    assert done.exit_code == 5


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("lr=0.1", "did you mean 'training.lr'?"),
        ("learning_rate=0.1", "did you mean 'training.lr'?"),
        ("training.learning_rate=0.1", "did you mean 'lr'?"),
        ("selection.metod=terraform", "did you mean 'method'?"),
        ("metric=3", "Expected: one of aggregation, algorithm,"),
    ],
)
def test_hints_for_settings(cli, tmp_path, setting, hint):
    cli("init", str(tmp_path))
    done = cli("run", str(tmp_path / "experiment.toml"), "--set", setting, "--workspace", str(tmp_path / "runs"))
    assert done.exit_code == 2
    assert hint in " ".join(done.output.split())


def test_a_command_that_is_nearly_right_is_suggested_once(cli):
    done = cli("rnu")
    assert done.output.count("Did you mean") == 1


def test_the_help_of_every_argument_is_shown(cli):
    """click from 8.5 on hides it from the Typer that Flower allows; `plot --help` lists its kinds there."""
    shown = " ".join(cli("plot", "--help").output.replace("│", " ").split())
    assert all(kind in shown for kind in plots.KINDS)
    commands: list[tuple[tuple[str, ...], Any]] = [((), typer.main.get_command(app))]
    seen = 0
    for words, command in commands:
        inside = getattr(command, "commands", {})
        commands += [((*words, name), one) for name, one in inside.items()]
        for argument in command.params:
            if argument.param_type_name == "argument":
                assert argument.help, (words, argument.name)
                seen += 1
    assert seen > 15


def test_the_template_says_what_the_defaults_are(tmp_path, cli):
    cli("init", str(tmp_path))
    experiment = load(tmp_path / "experiment.toml")
    assert experiment.rounds == 30


def test_the_page_that_is_named_exists():
    root = Path(__file__).resolve().parents[2]
    for kind, registry in KINDS.items():
        for name in registry:
            assert (root / page_of(kind, name)).is_file(), (kind, name)
    assert page_of("filters", "alie") == "docs/attacks/alie.md"


def test_show_says_what_a_method_costs_and_who_proposed_it(cli):
    shown = " ".join(cli("show", "terraform").output.split())
    assert "a round trains more than once: up to T trainings per client" in shown
    assert "Reference N. Balivada" in shown
    assert "arXiv 2602.20450" in shown


def test_a_method_of_another_package_has_no_page_here(cli):
    class Foreign(RandomSelection):
        """Nobody."""

    selectors.register("foreign")(Foreign)
    try:
        shown = cli("show", "foreign").output
    finally:
        selectors._entries.pop("foreign")
    assert "docs/methods" not in shown
    assert f"From {__name__}" in shown
