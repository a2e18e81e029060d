"""A client that kills its worker costs nobody else the answer: its slice is tried again, client by client."""

from __future__ import annotations

import copy
import os
import signal
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
from torch import nn

from muster.data.federated import Dataset, FederatedData, Index, Samples
from muster.engine.base import AskOrder, Failed, TrainOrder
from muster.engine.task import ClientTask, Place
from muster.engine.vectorised import VectorisedEngine
from muster.engine.vectorised.runner import SliceRunner
from muster.signals.losses import TrainLoss
from muster.signals.probe import ProbeNorm
from muster.training.base import LocalTraining, Plain
from muster.training.scaffold import Scaffold
from muster.updates.table import Updates

CLIENTS = 32
#: Of equal sizes, so that slices are 0 … 7, 8 … 15, 16 … 23 and 24 … 31.
SLICE = 8


def engine(workers: int, algorithm: Any = None, **options: Any) -> VectorisedEngine:
    rng = np.random.default_rng(0)
    count = 10 * CLIENTS
    samples = Samples(rng.normal(size=(count, 6)).astype(np.float32), rng.integers(0, 3, count))
    data = FederatedData(
        Dataset("made-up", samples, samples, 3), Index(np.arange(0, count + 1, 10), np.arange(count))
    )
    nn.init.zeros_((module := nn.Linear(6, 3)).weight)
    nn.init.zeros_(module.bias)
    training = LocalTraining(batch_size=5, momentum=0.5)
    return VectorisedEngine(data, module, training, algorithm or Plain(), workers=workers, device="cpu", **options)


def order(of: VectorisedEngine, **changes: Any) -> TrainOrder:
    usual = {"clients": np.arange(CLIENTS), "place": Place(0, 0, 0), "lr": 0.1, "report": (TrainLoss(),)}
    return TrainOrder(parameters=of.initial_parameters(), **usual | changes)


Answer = Updates | Failed


def client(answer: Answer) -> int:
    return answer.client if isinstance(answer, Failed) else int(answer.clients[0])


def settled(made: VectorisedEngine, found: list[Answer]) -> list[Answer]:
    """As if the server had used all answers that there are."""
    used = sorted(client(answer) for answer in found if isinstance(answer, Updates))
    made.settle(np.array(used), np.setdiff1d(np.arange(CLIENTS), used))
    return found


def answers(of: VectorisedEngine, request: TrainOrder) -> list[Answer]:
    """One by one; buffers are reused: copies."""
    return [copy.deepcopy(row) for found in of.train(request) for row in rows(found)]


def rows(found: Answer) -> Iterable[Answer]:
    return (found,) if isinstance(found, Failed) else found


@pytest.fixture
def deadly(monkeypatch) -> Callable[..., None]:
    """`deadly(3, 20)`: tasks that train these clients end their worker, or do something else to it."""

    def make(*clients: int, how: Callable[[], None] = lambda: os._exit(1)) -> None:
        usual = SliceRunner.__call__

        def dying(self: SliceRunner, message: object) -> object:
            if isinstance(message, ClientTask) and np.isin(clients, message.clients).any():
                how()
            return usual(self, message)

        monkeypatch.setattr(SliceRunner, "__call__", dying)

    return make


def assert_agree(left: Updates, right: Updates) -> None:
    assert left.clients.tolist() == right.clients.tolist()
    for name in left.numbers:
        assert left.numbers[name].tolist() == right.numbers[name].tolist()
    np.testing.assert_allclose(left.movements, right.movements, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(left.reports["train_loss"], right.reports["train_loss"], rtol=1e-5)
    for name in left.extra:
        np.testing.assert_allclose(left.extra[name], right.extra[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("keep_all", [False, True])
def test_only_the_client_whose_own_task_crashes_fails(deadly, keep_all):
    with engine(0) as undisturbed:
        expected = {client(found): found for found in answers(undisturbed, order(undisturbed))}
    # Two slices: more clients to be tried again than one worker's buffers.
    deadly(3, 20)
    courses = []
    for workers in (1, 2):
        with engine(workers) as disturbed:
            courses.append(answers(disturbed, order(disturbed, keep_all=keep_all)))
            if keep_all:
                some = np.array([0, 4, 8, 21, 31])
                movements = {
                    client(found): found.movements[0] for found in courses[-1] if isinstance(found, Updates)
                }
                assert np.array_equal(disturbed.matrix(some), np.stack([movements[k] for k in some.tolist()]))
    first, second = courses
    assert [client(found) for found in first] == [*range(8, 16), *range(24, 32), *range(8), *range(16, 24)]
    assert [client(found) for found in first if isinstance(found, Failed)] == [3, 20]
    assert "died" in first[19].reason
    for found, again in zip(first, second, strict=True):
        assert type(found) is type(again)
        if isinstance(found, Updates):
            assert np.array_equal(found.movements, again.movements), "the number of workers matters"
            assert_agree(found, expected[client(found)])
            if client(found) // SLICE in (1, 3):
                assert np.array_equal(found.movements, expected[client(found)].movements)


def test_client_state_and_probes_are_there_when_a_client_is_tried_again(deadly):
    def course(workers: int) -> tuple[list[Updates | Failed], dict[str, Any]]:
        with engine(workers, Scaffold()) as made:
            assert isinstance(made, VectorisedEngine)
            broadcast = np.full(made.spec.size, 0.01, dtype=np.float32)
            settled(made, answers(made, order(made, broadcast=broadcast)))
            made.ask(
                AskOrder(np.arange(6), made.initial_parameters(), Place(1, 0, 0), 0.1, (ProbeNorm(batches=1),))
            )
            second = order(made, broadcast=broadcast, place=Place(1, 0, 1))
            return settled(made, answers(made, second)), made.state_dict()["clients"]

    expected, _ = course(0)
    known = {client(found): found for found in expected}
    deadly(3)
    found, state = course(1)
    assert [client(answer) for answer in found if isinstance(answer, Failed)] == [3]
    assert len(found) == CLIENTS
    for answer in found:
        if isinstance(answer, Updates):
            assert_agree(answer, known[client(answer)])
            assert answer.numbers["credited_steps"][0] == (1 if client(answer) < 6 else 0)
    kept = [sorted(vectors["clients"].tolist()) for vectors in state.values() if len(vectors["clients"])]
    assert kept == [[client for client in range(CLIENTS) if client != 3]]


def test_a_slice_of_one_that_crashes_is_not_tried_again(deadly):
    deadly(1)
    with engine(1) as disturbed:
        found = answers(disturbed, order(disturbed, clients=np.array([0, 1, 2])))
    assert [(client(answer), isinstance(answer, Failed)) for answer in found] == [
        (0, False),
        (1, True),
        (2, False),
    ]


@pytest.mark.slow
def test_only_the_client_whose_own_task_hangs_fails(deadly):
    """The worker is stopped, as deadlocked native code would leave it."""
    deadly(3, how=lambda: os.kill(os.getpid(), signal.SIGSTOP))
    with engine(2, task_deadline=5.0) as disturbed:
        found = answers(disturbed, order(disturbed, clients=np.arange(2 * SLICE)))
    assert len(found) == 2 * SLICE
    (failed,) = (answer for answer in found if isinstance(answer, Failed))
    assert failed.client == 3
    assert "no answer within 5 s" in failed.reason
