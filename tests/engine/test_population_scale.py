"""A million clients: what an idle one costs in memory, in a round, in a checkpoint and when everybody is asked."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest

import muster
from muster.data.federated import Dataset, FederatedData, Index, Samples
from muster.engine.base import AskOrder
from muster.engine.task import Place
from muster.experiment import build_parts
from muster.selection.history import History
from muster.server.loop import Observer
from muster.signals.labels import LabelEntropy, LabelHistogram

SAMPLES, FEATURES, CLASSES, COHORT = 20, 10, 5, 100


def federation(clients: int) -> FederatedData:
    """Clients with 20 samples each. They share samples, so that memory is that of clients and not of data."""
    rng = np.random.default_rng(0)
    pool = 20_000
    train = Samples(rng.normal(size=(pool, FEATURES)).astype(np.float32), rng.integers(0, CLASSES, pool))
    test = Samples(train.features[:500], train.labels[:500])
    index = Index(
        np.arange(0, SAMPLES * clients + 1, SAMPLES), (np.arange(SAMPLES * clients) % pool).astype(np.int32)
    )
    return FederatedData(Dataset("made-up", train, test, CLASSES), index)


def experiment(data: FederatedData, rounds: int) -> muster.Experiment:
    return muster.Experiment(
        rounds=rounds,
        data=data,
        model={"name": "logistic"},
        training={"lr": 0.1, "batch_size": 10},
        selection={"method": "random", "clients_per_round": COHORT},
    )


def question(clients: np.ndarray, parameters: np.ndarray) -> AskOrder:
    return AskOrder(clients, parameters, Place(0, 0, 0), 0.1, (LabelHistogram(), LabelEntropy()))


class Seconds(Observer):
    """Processor time of each round: other programs on the machine do not count."""

    def __init__(self) -> None:
        self.stamps: list[float] = []

    def round_ended(self, record, ledger) -> None:
        self.stamps.append(time.process_time())

    @property
    def best(self) -> float:
        return float(np.diff(self.stamps)[1:].min())


def test_asking_everybody_for_histograms_is_one_pass(tiny):
    parts = build_parts(tiny(), workers=0)
    everybody = np.arange(parts.data.clients)
    order = question(everybody, parts.engine.initial_parameters())
    replies, _ = parts.engine.ask(order)
    assert np.array_equal(replies["label_histogram"], parts.data.label_histograms)
    shares = replies["label_histogram"] / replies["label_histogram"].sum(axis=1, keepdims=True)
    logs = np.log(shares, out=np.zeros_like(shares), where=shares > 0)
    np.testing.assert_allclose(replies["label_entropy"], -(shares * logs).sum(axis=1))


def test_some_clients_in_any_order_get_their_own_counts():
    data = federation(50)
    some = np.array([7, 3, 44])
    assert np.array_equal(data.counts(some), data.label_histograms[some])
    for client, row in zip(some.tolist(), data.counts(some), strict=True):
        assert np.array_equal(row, np.bincount(data.client(client)[1].numpy(), minlength=CLASSES))


def test_a_checkpoint_holds_only_clients_of_which_something_is_known():
    history = History(1_000_000)
    history.trained(np.array([5, 999_999]), round=2)
    history.reported("loss", np.array([5, 17]), np.array([0.5, np.nan]))
    state = history.state_dict()
    assert state["known"].tolist() == [5, 999_999]
    copy = History(1)
    copy.load_state_dict(state)
    assert copy.clients == 1_000_000
    for name in ("trainings", "rounds", "last_round", "failures"):
        assert np.array_equal(getattr(copy, name), getattr(history, name))
    assert np.array_equal(copy.last("loss"), history.last("loss"), equal_nan=True)


@pytest.mark.bench
def test_an_idle_client_takes_less_than_64_bytes_beside_its_index(capsys):
    clients = 1_000_000
    data = federation(clients)
    tracemalloc.start()
    try:
        parts = build_parts(experiment(data, rounds=3), workers=0)
        result = parts.server().run(3)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    with capsys.disabled():
        print(f"\nbytes per idle client: {held / clients:.1f} at the end, {peak / clients:.1f} at most")
    assert result.complete
    assert peak / clients < 64


@pytest.mark.bench
@pytest.mark.parametrize("kept", [False, True], ids=["in memory", "with checkpoints"])
def test_a_round_costs_the_same_with_a_million_clients(kept, tmp_path, capsys):
    rounds, repeats = 40, 3
    federations = {clients: federation(clients) for clients in (1_000, 1_000_000)}
    best = dict.fromkeys(federations, np.inf)
    for repeat in range(repeats):
        for clients, data in federations.items():
            clock = Seconds()
            out = tmp_path / f"{clients}-{repeat}" if kept else None
            muster.run(experiment(data, rounds), workers=0, out=out, observers=[clock])
            best[clients] = min(best[clients], clock.best)
    with capsys.disabled():
        print(f"\nround of {COHORT} clients: " + ", ".join(f"{n:,}: {1e3 * s:.2f} ms" for n, s in best.items()))
    assert best[1_000_000] < 1.2 * best[1_000]


@pytest.mark.bench
def test_asking_a_million_clients_takes_seconds(capsys):
    parts = build_parts(experiment(federation(1_000_000), 1), workers=0)
    everybody = np.arange(1_000_000)
    order = question(everybody, parts.engine.initial_parameters())
    start = time.process_time()
    replies, _ = parts.engine.ask(order)
    seconds = time.process_time() - start
    with capsys.disabled():
        print(f"\nhistograms and entropies of a million clients: {seconds:.1f} s")
    assert replies["label_histogram"].shape == (1_000_000, CLASSES)
    assert seconds < 10
