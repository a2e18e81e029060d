"""An episode on a real federation: SuperLink, nodes and server die, stop and come back while it trains."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from episodes import BASE
from machine import PATIENCE, Command, Counts, demand, wait_for_progress

from muster.config.toml import to_toml
from muster.experiment import replay
from muster.flower.deploy.federation import LocalFederation, LocalNode
from muster.results.store import Store

NODES, ROUNDS, FAULTS = 3, 12, 4
#: More samples a client than in other episodes, so that faults hit trainings.
CONFIG = {key: value for key, value in BASE.items() if key != "engine"} | {
    "rounds": ROUNDS,
    "partition": {"scheme": "dirichlet", "clients": NODES, "alpha": 0.5},
    "selection": {"method": "random", "clients_per_round": NODES},
    "training": {"lr": 0.1, "batch_size": 2, "epochs": 2},
    "engine": {"kind": "inline"},
    "flower": {"deadline": 60.0, "wait": 240.0, "nodes": 2},
}


@contextmanager
def federation(folder: Path) -> Iterator[LocalFederation]:
    """Shared by all episodes: starting one takes longer than using it."""
    with LocalFederation(folder, NODES, database=folder / "superlink.db") as running:
        yield running


def federation_episode(rng: random.Random, folder: Path, counts: Counts, running: LocalFederation) -> None:
    config, out = folder / "experiment.toml", folder / "out"
    config.write_text(to_toml(CONFIG | {"seed": rng.randrange(1000)}), encoding="utf-8")

    def start(*options: str) -> Command:
        counts.starts += 1
        link = running.link
        return Command(
            folder / "log",
            *("deploy", "run", str(config), "--superlink", link.address, "--out", str(out)),
            *("--root-certificates", str(link.root_certificates), "--allow-list", str(running.allow_list)),
            *options,
        )

    command, done = start(), 0
    try:
        for _ in range(FAULTS):
            done = wait_for_progress(command, out, done)
            if command.alive:
                time.sleep(rng.uniform(0, 0.5))
                _disturb(rng, command, running, counts)
            if not command.alive:
                command.check_manners()
                if command.code == 0:
                    break
                command = start("--resume")
        code = command.wait(2 * PATIENCE)
        demand(code == 0, f"the run on the federation ended with {code}: {command.said()[-1500:]}")
        command.check_manners()
    finally:
        command.kill()
        for node in running.nodes:
            _bring_back(running, node)
    counts.rounds += ROUNDS
    _check(out)


def _disturb(rng: random.Random, command: Command, running: LocalFederation, counts: Counts) -> None:
    node = rng.choice(running.nodes)
    fault = rng.choice(("kill the server", "kill a node", "stop a node", "kill the SuperLink"))
    match fault:
        case "kill the server":
            command.kill()
        case "kill a node":
            node.child.kill()
            time.sleep(rng.uniform(0, 1))
            _bring_back(running, node)
        case "stop a node":
            node.child.signal(signal.SIGSTOP)
            time.sleep(rng.uniform(0.2, 4))
            node.child.signal(signal.SIGCONT)
        case "kill the SuperLink":
            running.superlink.kill()
            time.sleep(rng.uniform(0, 1))
            running.restart_superlink()
    counts.faults[fault] += 1


def _bring_back(running: LocalFederation, node: LocalNode) -> None:
    if not node.child.alive:
        running.restart_node(node)


def _check(out: Path) -> None:
    """Every round once, nobody twice in it, and a local repetition of what was recorded has the same bits."""
    with Store(out) as store:
        (run,) = store.runs()
        result = store.result(run)
    demand(run.status == "complete", f"a run that is {run.status}")
    demand([record.round for record in result.records] == list(range(1, ROUNDS + 1)), "rounds lost or doubled")
    counted = [0] * NODES
    for record in result.records:
        for training in record.trainings:
            demand(len(set(training.clients)) == len(training.clients), "a client twice in a training")
            demand(not set(training.clients) & set(training.failed), "a client that failed and counted")
            for client in training.clients:
                counted[client] += 1
    demand(counted == result.history.trainings.tolist(), "a history that disagrees with the records")
    differences = replay(str(out), workers=0).differences
    demand(differences == [], f"a repetition with the same failures is another: {differences[:3]}")
