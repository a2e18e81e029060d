"""`muster deploy` and `muster node`: mistakes are said, Ctrl-C and kill leave nothing, results are equal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr")
from muster.cli.app import app
from muster.cli.node import parse_node_config
from muster.core.errors import ConfigError
from muster.experiment import load, run
from muster.flower.allowlist import AllowList
from muster.flower.signing import key_name, node_key

pytestmark = [pytest.mark.flower, pytest.mark.timeout(600)]

CONFIG = """
rounds = 5
[data]
source = "digits"
[partition]
scheme = "dirichlet"
clients = 2
alpha = 0.5
[model]
name = "mlp"
hidden = [16]
[training]
lr = 0.1
[selection]
method = "random"
clients_per_round = 2
[engine]
kind = "inline"
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "experiment.toml"
    path.write_text(CONFIG)
    return path


def refusal(*arguments: str) -> ConfigError:
    result = CliRunner().invoke(app, [*arguments])
    assert isinstance(result.exception, ConfigError), result.output
    return result.exception


def deploy(config, out, *options: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "muster.cli.main", "deploy", "local", str(config), "--out", str(out), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def after_a_round(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """Wait for a round; the processes that the command has started."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.communicate()[1]
    assert json.loads(line)["event"] == "round"
    started = psutil.Process(process.pid).children(recursive=True)
    assert len(started) == 3  # a SuperLink and two nodes
    return started


def assert_gone(processes: list[psutil.Process]) -> None:
    deadline = time.monotonic() + 30
    while any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes):
        assert time.monotonic() < deadline, "something was left behind"
        time.sleep(0.05)


def test_stopped_killed_and_resumed_it_ends_with_the_same_bits(config, tmp_path):
    out = tmp_path / "out"
    process = deploy(config, out, "--json")
    started = after_a_round(process)
    os.kill(process.pid, signal.SIGINT)
    _, message = process.communicate(timeout=120)
    assert process.returncode == 130, message
    assert "--nodes 2 --out" in message
    assert_gone(started)

    process = deploy(config, out, "--json", "--resume")
    started = after_a_round(process)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert_gone(started)

    process = deploy(config, out, "--resume")
    shown, message = process.communicate(timeout=300)
    assert process.returncode == 0, message
    assert "accuracy" in shown
    assert np.array_equal(np.load(out / "parameters.npy"), run(load(config)).parameters)


def test_stock_flower_gives_the_same_bits(config, tmp_path):
    out = tmp_path / "out"
    process = deploy(config, out, "--stock", "--set", "rounds=1")
    shown, message = process.communicate(timeout=500)
    assert process.returncode == 0, message
    assert "round 1/1" in message
    assert "accuracy" in shown
    assert np.array_equal(np.load(out / "parameters.npy"), run(load(config, ["rounds=1"])).parameters)


def test_nodes_and_clients_must_fit(config):
    error = refusal("deploy", "local", str(config), "--nodes", "6")
    assert "2 clients, and 6 nodes" in error.problem
    assert "partition.clients=6" in error.fix


def test_the_number_of_nodes_must_be_known(tmp_path):
    (tmp_path / "bare.toml").write_text('[partition]\nscheme = "by-attribute"\n')
    assert "--nodes" in refusal("deploy", "local", str(tmp_path / "bare.toml")).fix


def test_keys_of_nodes_are_added_where_the_authoritys_key_is_elsewhere(tmp_path):
    folder = tmp_path / "keys"
    assert CliRunner().invoke(app, ["deploy", "keys", str(folder), "--node", "a"]).exit_code == 0
    (folder / "ca.key").rename(tmp_path / "offline")
    certificate = (folder / "ca.crt").read_bytes()
    assert CliRunner().invoke(app, ["deploy", "keys", str(folder), "--node", "b"]).exit_code == 0
    assert (folder / "b.pub").exists()
    assert "ca.key: No such file" in refusal("deploy", "keys", str(folder), "--host", "localhost").problem
    assert not (folder / "ca.key").exists()
    assert (folder / "ca.crt").read_bytes() == certificate


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "föderation.example"], "cannot have the host 'föderation"),
        (["--host", "x" * 65], "cannot have the host 'xxx"),
        (["--host", ""], "cannot have the host ''"),
        (["--host", "localhost", "--days", "9999999"], "valid for 9999999 days"),
        (["--node", ""], "bad --node ''"),
        (["--node", "a=²"], "bad --node"),
    ],
)
def test_certificates_that_cannot_be_made_are_refused_with_words(tmp_path, words, said):
    assert said in refusal("deploy", "keys", str(tmp_path / "keys"), *words).problem


@pytest.mark.parametrize("damaged", ["ca.crt", "ca.key"])
def test_a_damaged_authority_is_said_to_be_so(tmp_path, damaged):
    words = ["deploy", "keys", str(tmp_path), "--host", "localhost"]
    assert CliRunner().invoke(app, words[:3]).exit_code == 0
    whole = (tmp_path / damaged).read_text()
    (tmp_path / damaged).write_text(whole[:80])
    assert f"{damaged}: it is damaged" in refusal(*words).problem
    other = tmp_path / "other"
    assert CliRunner().invoke(app, ["deploy", "keys", str(other)]).exit_code == 0
    (tmp_path / damaged).write_text((other / damaged).read_text())
    assert "ca.key is not the key of" in refusal(*words).problem
    assert not (tmp_path / "server.key").exists()


def test_keys_are_made_and_added_to(tmp_path):
    made = CliRunner().invoke(
        app, ["deploy", "keys", str(tmp_path / "keys"), "--host", "fed.example.org", "--node", "a"]
    )
    assert made.exit_code == 0
    authority = (tmp_path / "keys" / "ca.crt").read_bytes()
    assert CliRunner().invoke(app, ["deploy", "keys", str(tmp_path / "keys"), "--node", "b=3"]).exit_code == 0
    assert (tmp_path / "keys" / "ca.crt").read_bytes() == authority
    assert {path.name for path in (tmp_path / "keys").iterdir()} == {
        *("ca.crt", "ca.key", "server.pem", "server.key", "a", "a.pub", "b", "b.pub", "allowed-clients")
    }
    allowed = AllowList(tmp_path / "keys" / "allowed-clients")
    own = {name: key_name(node_key(tmp_path / "keys" / name).public_key()) for name in ("a", "b")}
    assert allowed.names("name=a") == {own["a"]}
    assert allowed.names("partition-id=3") == {own["b"]}
    assert len(allowed) == 2


def test_a_new_key_of_a_node_stands_beside_the_old_one_in_the_list(tmp_path):
    folder = tmp_path / "keys"
    words = ["deploy", "keys", str(folder), "--node", "a"]
    assert CliRunner().invoke(app, words).exit_code == 0
    for name in ("a", "a.pub"):
        (folder / name).rename(folder / f"old-{name}")
    assert CliRunner().invoke(app, words).exit_code == 0
    assert len(AllowList(folder / "allowed-clients").names("name=a")) == 2


@pytest.mark.parametrize("word", ["a=b", "=0", "a=-1", "a=0.5"])
def test_a_node_that_is_misnamed_is_said_to_be_so(tmp_path, word):
    assert "bad --node" in refusal("deploy", "keys", str(tmp_path), "--node", word).problem
    assert not (tmp_path / "allowed-clients").exists()


def test_a_node_says_what_is_wrong_with_its_files(tmp_path):
    words = ["node", "--superlink", "localhost:1", "--root-certificates", str(tmp_path / "ca.crt")]
    error = refusal(*words, "--auth-supernode-private-key", str(tmp_path / "key"))
    assert "cannot read the node's key" in error.problem
    error = refusal(*words, "--auth-supernode-private-key", str(tmp_path / "key"), "--app", "nowhere:app")
    assert "cannot load the client app 'nowhere:app'" in error.problem
    error = refusal(*words, "--auth-supernode-private-key", str(tmp_path / "key"), "--app", "muster:run")
    assert "ClientApp" in error.expected


def test_node_configurations_are_read_as_flower_reads_them():
    text = 'partition-id=3 rate=0.5 site="north wing" on=true word=plain'
    assert parse_node_config(text) == {
        "partition-id": 3,
        "rate": 0.5,
        "site": "north wing",
        "on": True,
        "word": "plain",
    }
    assert parse_node_config("") == {}
    with pytest.raises(ConfigError, match="partition-id"):
        parse_node_config("partition-id 3")
