"""A user's mistake gives one clear message and its exit code: no traceback, nothing lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from muster.cli.app import app
from muster.core.errors import MusterError

CONFIG = """
rounds = 2
[partition]
scheme = "dirichlet"
clients = 10
alpha = 0.5
[selection]
method = "random"
clients_per_round = 3
[training]
lr = 0.1
"""


@pytest.fixture
def invoke(tmp_path, monkeypatch):
    """Runs the command line in an empty folder with a config; gives (exit code, message)."""
    monkeypatch.chdir(tmp_path)
    Path("config.toml").write_text(CONFIG)

    def call(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, [*arguments])
        if isinstance(result.exception, MusterError):
            return result.exception.exit_code, str(result.exception)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code, result.output

    return call


def settings(*pairs: str) -> list[str]:
    return [word for pair in pairs for word in ("--set", pair)]


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        (["selection.method=terrafrom"], 2, ["terrafrom", "did you mean 'terraform'"]),
        (["aggregation.method=fedag"], 2, ["fedag", "did you mean 'fedavg'"]),
        (["selection.method=3"], 2, ["selection method", "3", "terraform"]),
        (["aggregation.method=[1]"], 2, ["aggregation method", "[1]", "fedavg"]),
        (["training.lr=-0.1"], 2, ["training.lr", "-0.1", "positive"]),
        (["training.lr=fast"], 2, ["training.lr", "fast", "number"]),
        (["training.learning_rate=0.1"], 2, ["training.learning_rate", "Possible", "lr"]),
        (["sed=1"], 2, ["sed", "did you mean 'seed'"]),
        (["seed=-1"], 2, ["seed", "-1"]),
        (["selection=3"], 2, ["selection", "section"]),
        (["partition={scheme='multi-dirichlet', clients=10, alphas=[0.1, 0.2, 0.3]}"], 2, ["10", "3", "alphas"]),
        (["data.source=fashion-mnist", "data.data_dir=/nowhere"], 3, ["fashion-mnist", "/nowhere"]),
        (["selection.clients_per_round=11"], 2, ["11", "10 clients"]),
        (["selection.clients_per_round=0"], 2, ["clients_per_round", "at least 1"]),
        (["partition.clients=100000"], 2, ["100000", "samples"]),
        (["model.name=mlp", "model.weights=/nowhere.pt"], 2, ["/nowhere.pt"]),
        (["model={name='cifar10-cnn'}"], 2, ["cifar10-cnn"]),
        (["engine.device=tpu"], 2, ["tpu", "cuda"]),
        (["aggregation.method=scaffold"], 2, ["scaffold", "[algorithm]"]),
        (["selection.method=fedcs"], 2, []),
        (["guard.max_norm=-1"], 2, ["guard.max_norm"]),
        (["rounds=0"], 2, ["rounds", "at least 1"]),
        (["training.lr=1e30", "rounds=9", "guard.max_failed_rounds=3"], 6, ["no valid update", "non-finite"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) and value else None,
)
def test_mistakes_in_the_description(invoke, change, code, words):
    got, message = invoke("run", "config.toml", "--workers", "0", "--out", "out", *settings(*change))
    assert got == code, message
    for word in words:
        assert word in message


def test_a_negative_number_of_workers(invoke):
    code, message = invoke("run", "config.toml", "--workers", "-2", "--out", "out")
    assert (code, "workers is -2" in message) == (2, True)


def test_a_setting_without_a_value(invoke):
    code, message = invoke("run", "config.toml", "--set", "training.lr")
    assert code == 2
    assert "section.key=value" in message


def test_no_such_config(invoke):
    code, message = invoke("run", "nothing.toml")
    assert (code, "nothing.toml" in message) == (2, True)


def test_a_config_that_is_not_toml(invoke):
    Path("broken.toml").write_text("rounds = = 3")
    code, message = invoke("run", "broken.toml")
    assert (code, "not valid TOML" in message) == (2, True)


def test_an_empty_client_is_refused():
    import numpy as np

    from muster.core.errors import DataError
    from muster.data import Dataset, FederatedData, Index, Samples

    samples = Samples(np.zeros((4, 2)), np.zeros(4, dtype=np.int64))
    with pytest.raises(DataError, match="1 of 3 clients have no training samples"):
        FederatedData(Dataset("d", samples, samples, 2), Index.from_lists([[0, 1], [], [2, 3]]))


# --- output ----------------------------------------------------------------------------------------------


def run_once(invoke, *more: str) -> tuple[int, str]:
    return invoke("run", "config.toml", "--workers", "0", "--out", "out", *more)


def checkpoint_file() -> Path:
    (found,) = Path("out/checkpoints").glob("*/*.muster")
    return found


def test_an_earlier_run_is_not_overwritten(invoke):
    assert run_once(invoke)[0] == 0
    before = checkpoint_file().read_bytes()
    code, message = run_once(invoke)
    assert (code, "--resume" in message) == (5, True)
    assert checkpoint_file().read_bytes() == before


def test_resuming_a_finished_run_changes_nothing(invoke):
    run_once(invoke)
    before = Path("out/metrics.csv").read_bytes()
    assert run_once(invoke, "--resume")[0] == 0
    assert Path("out/metrics.csv").read_bytes() == before


def test_a_damaged_checkpoint(invoke):
    run_once(invoke)
    path = checkpoint_file()
    path.write_bytes(path.read_bytes()[:500])
    code, message = run_once(invoke, "--resume")
    assert (code, "damaged" in message) == (4, True)
    assert Path("out/metrics.csv").exists()


def test_a_checkpoint_of_another_config(invoke):
    run_once(invoke)
    code, message = run_once(invoke, "--resume", "--set", "training.lr=0.2")
    assert (code, "another experiment" in message) == (4, True)


def test_workers_and_names_may_change_between_runs(invoke):
    run_once(invoke)
    assert (
        invoke("run", "config.toml", "--workers", "1", "--out", "out", "--resume", "--set", "name=other")[0] == 0
    )


def test_an_output_folder_that_cannot_be_written(invoke):
    Path("file").write_text("")
    code, message = invoke("run", "config.toml", "--out", "file/inside")
    assert (code, "cannot write" in message) == (5, True)


@pytest.mark.skipif(os.geteuid() != 0 or not Path("/dev/full").exists(), reason="needs root and /dev/full")
def test_a_full_disk_in_the_middle_of_a_run_keeps_the_rounds_before(invoke, monkeypatch):
    """A real file system that is full: a tmpfs of a few kilobytes."""
    import subprocess

    Path("small").mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", "small"], check=False).returncode:
        pytest.skip("cannot mount a small file system here")
    try:
        code, message = invoke("run", "config.toml", "--workers", "0", "--out", "small/out", "--set", "rounds=400")
        assert (code, "No space left on device" in message) == (5, True)
        assert "--resume" in message
        from muster.results.store import Store

        with Store("small/out") as store:
            (kept,) = store.results(status=None)
        assert len(kept.records) > 0
    finally:
        subprocess.run(["umount", "small"], check=True)
