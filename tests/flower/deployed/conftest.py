"""A real federation for all tests that need one: a SuperLink with TLS and node authentication, six warm nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
from muster.engine.base import Engine, Failed, TrainOrder
from muster.engine.wrapped import WrappedEngine
from muster.experiment.parts import Ingredients, local_engine
from muster.experiment.runner import run
from muster.flower.deploy.driver import Task
from muster.flower.deploy.federation import LocalFederation, LocalNode
from muster.flower.deploy.link import Link
from muster.server.record import Flown, RoundRecord
from muster.server.result import Result
from muster.updates.table import Updates

NODES = 6
#: What runs the command line.
MUSTER = ("-m", "muster.cli.main")
CONFIG = f"""
rounds = 5
[data]
source = "digits"
[partition]
scheme = "dirichlet"
clients = {NODES}
alpha = 0.5
[model]
name = "mlp"
hidden = [16]
[training]
lr = 0.1
batch_size = 16
[selection]
method = "random"
clients_per_round = {NODES}
[aggregation]
method = "fedavg"
[engine]
kind = "inline"
[flower]
deadline = 60.0
"""


@pytest.fixture(scope="session")
def mischief(tmp_path_factory) -> Path:
    """The folder through which tests tell nodes to misbehave (see misbehaving.py)."""
    return tmp_path_factory.mktemp("mischief")


@pytest.fixture(scope="session")
def federation(tmp_path_factory, mischief) -> Iterator[LocalFederation]:
    """Shared by all tests, so none may leave it other than it was."""
    before = dict(os.environ)
    os.environ["MUSTER_TEST_MISCHIEF"] = str(mischief)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), before.get("PYTHONPATH", "")])
    try:
        folder = tmp_path_factory.mktemp("federation")
        with LocalFederation(folder, NODES, client_app="misbehaving:app") as running:
            yield running
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture
def task(tmp_path):
    """Makes an experiment on digits with six clients; settings are `section.key=value`."""
    config = tmp_path / "experiment.toml"
    config.write_text(CONFIG)

    def make(*settings: str, out: str = "out", resume: bool = False) -> Task:
        return Task(config, tmp_path / out, list(settings), resume=resume)

    return make


@pytest.fixture
def until():
    """Waits for something, but not for ever."""

    def wait(condition: Callable[[], Any], seconds: float = 120.0) -> Any:
        deadline = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < deadline, "waited for too long"
            time.sleep(0.02)
        return value

    return wait


class Hold:
    """Keeps a client in the middle of one training of the run."""

    def __init__(self, folder: Path, client: int, round: int) -> None:
        self.order, self.held = (folder / f"{word}-{client}-{round - 1}.0.0" for word in ("hold", "held"))
        self.order.touch()

    def release(self) -> None:
        self.order.unlink(missing_ok=True)


class Server:
    """The server as a process of its own, which tells its rounds."""

    def __init__(self, task: Task, link: Link, *options: str, program: Sequence[str] = MUSTER) -> None:
        settings = [word for setting in task.settings for word in ("--set", setting)]
        self.process = subprocess.Popen(
            [
                *(sys.executable, *program, "deploy", "run", str(task.config), *settings),
                *("--superlink", link.address, "--root-certificates", str(link.root_certificates)),
                *("--out", str(task.out), "--json", *options),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def round(self) -> RoundRecord:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.process.communicate()[1]
        return RoundRecord.from_state(json.loads(line))

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def finish(self) -> None:
        _, message = self.process.communicate(timeout=300)
        assert self.process.returncode == 0, message


@pytest.fixture
def hold_client(mischief):
    """Keeps a client in the middle of one training: client, round."""
    made: list[Hold] = []

    def hold(client: int, round: int) -> Hold:
        made.append(Hold(mischief, client, round))
        return made[-1]

    yield hold
    for each in made:
        each.release()
        each.held.unlink(missing_ok=True)


@pytest.fixture
def start_server():
    """Starts the server of an experiment as a process of its own, which does not outlive the test."""
    made: list[Server] = []

    def start(*arguments: Any, **options: Any) -> Server:
        made.append(Server(*arguments, **options))
        return made[-1]

    yield start
    for each in made:
        each.kill()


@pytest.fixture
def start_again(until):
    """Starts a node again and waits until the SuperLink has it."""

    def start(federation: LocalFederation, node: LocalNode) -> None:
        lines = node.child.log.read_text().count("is ready")
        federation.restart_node(node)
        until(lambda: node.child.log.read_text().count("is ready") > lines)

    return start


class Interrupted(WrappedEngine):
    """An engine on which chosen clients fail in chosen exchanges, or are not there in chosen rounds."""

    def __init__(
        self, inner: Engine, failing: Mapping[tuple[int, int], set[int]], absent: Mapping[int, set[int]]
    ) -> None:
        super().__init__(inner)
        self.failing, self.absent = failing, absent

    def reachable(self, round):
        return np.setdiff1d(self.inner.reachable(round), list(self.absent.get(round, ())))

    def train(self, order: TrainOrder) -> Iterator[Updates | Failed]:
        failing = self.failing.get((order.place.round, order.place.iteration), set())
        answering = np.setdiff1d(order.clients, list(failing))
        for client in np.setdiff1d(order.clients, answering).tolist():
            yield Failed(client, "as on the federation")
        yield from self.inner.train(replace(order, clients=answering))


@pytest.fixture
def locally_with_the_same_faults():
    """Runs an experiment on the local engine, where the same clients fail in the same exchanges.

    For selections that train everybody who is there: who was not asked was absent.
    """

    def repeat(task: Task, records: list[RoundRecord]) -> Result:
        failing, absent = {}, {}
        for record in records:
            (training,) = record.trainings
            lost = {*training.failed, *training.rejected}
            failing[record.round - 1, 0] = lost
            absent[record.round - 1] = set(range(NODES)) - lost - set(training.clients)

        def make_engine(ingredients: Ingredients) -> Interrupted:
            return Interrupted(local_engine(ingredients, workers=0), failing, absent)

        return run(task.experiment, make_engine=make_engine)

    return repeat


@pytest.fixture
def without_time():
    """The trainings of a result, but for when they were."""
    return lambda result: [[replace(t, flown=Flown()) for t in record.trainings] for record in result.records]
