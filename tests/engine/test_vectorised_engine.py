"""The vectorised engine in whole runs: workers do not matter, runs go on, and it says when it does not apply."""

from __future__ import annotations

import dataclasses
import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import muster
from muster.core.errors import CheckpointError, ConfigError
from muster.core.randomness import generator, seeded, seeds
from muster.engine.vectorised import why_not
from muster.engine.vectorised.chain import _steps
from muster.engine.vectorised.slices import PADDING_SHARE, batch_sizes, cut, longest_slice
from muster.engine.vectorised.trainer import SliceData, Timetable
from muster.experiment import build_parts, from_dict
from muster.models.base import build_model
from muster.training.base import LocalTraining, Plain, batches
from muster.training.moon import Moon

SELECTIONS = {
    "random": {"method": "random", "clients_per_round": 9},
    "terraform": {"method": "terraform", "clients_per_round": 8, "min_clients": 2},
    "probe-fairness": {"method": "probe-fairness", "clients_per_round": 4},
    "power-of-choice": {"method": "power-of-choice", "clients_per_round": 3, "d": 8},
}


def same(left: muster.Result, right: muster.Result) -> bool:
    return np.array_equal(left.parameters, right.parameters) and left.selections == right.selections


@pytest.mark.parametrize(
    ("selection", "aggregation"),
    [("random", "fedavg"), ("terraform", "simprox"), ("probe-fairness", "fedavg"), ("power-of-choice", "fedavg")],
)
def test_workers_do_not_matter_and_results_agree(tiny, selection, aggregation):
    experiment = tiny(selection=SELECTIONS[selection], aggregation={"method": aggregation})
    alone, by_two = (muster.run(experiment, workers=workers) for workers in (0, 2))
    assert same(alone, by_two)
    one_by_one = muster.run(dataclasses.replace(experiment, engine="inline"))
    assert one_by_one.selections == alone.selections
    assert one_by_one.ledger.total().samples == alone.ledger.total().samples
    np.testing.assert_allclose(alone.parameters, one_by_one.parameters, atol=1e-4)
    assert not np.array_equal(alone.parameters, one_by_one.parameters), "then it was the same engine"


def test_threads_do_not_matter(tiny):
    import torch

    before = torch.get_num_threads()
    expected = muster.run(tiny(), workers=0)
    try:
        torch.set_num_threads(2)
        assert same(expected, muster.run(tiny(), workers=0))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("method", ["scaffold", "feddyn"])
def test_a_run_goes_on_to_the_bit(tiny, tmp_path, method):
    class StopAfterTwo(muster.server.Observer):
        def __init__(self):
            self.rounds = 0

        def round_ended(self, record, ledger):
            self.rounds += 1

        def wants_stop(self):
            return self.rounds >= 1

    experiment = tiny(rounds=4, algorithm={"method": method}, aggregation={"method": method})
    whole = muster.run(experiment, workers=0)
    muster.run(experiment, workers=0, out=tmp_path, observers=[StopAfterTwo()])
    assert same(whole, muster.run(experiment, workers=2, out=tmp_path, resume=True))


def test_a_run_does_not_go_on_with_other_arithmetic(tiny):
    together, alone = (build_parts(tiny(engine=kind), workers=0).engine for kind in ("vectorised", "processes"))
    with pytest.raises(CheckpointError, match="side by side"):
        alone.load_state_dict(together.state_dict())


# --- the choice ------------------------------------------------------------------------------------------


def described(**sections: Any) -> str:
    values = {"rounds": 1, "partition": {"scheme": "iid", "clients": 4}} | sections
    return build_parts(from_dict(values), workers=0).engine.describe()


def test_the_choice_is_said_with_its_reason():
    assert described() == (
        "vectorised engine, in this process, device cpu (every layer can be computed for many clients at once)"
    )
    assert "local engine, in this process" in described(engine="inline")
    assert described(engine={"kind": "processes"}).startswith("local engine")
    moon = described(algorithm={"method": "moon"})
    assert moon.endswith("(not vectorised: the local algorithm Moon works on individual clients)")
    assert "it has the layer Conv2d" in described(model={"name": "lenet"})


def test_asking_for_what_does_not_apply_is_a_mistake():
    with pytest.raises(ConfigError, match=r"cannot be used: the model does not fit: it has the layer Conv2d"):
        described(engine="vectorised", model={"name": "lenet"})
    with pytest.raises(ConfigError, match="inline"):
        build_parts(from_dict({"engine": "inline"}), workers=2)
    with pytest.raises(ConfigError, match=r"engine\.kind"):
        described(engine="fast")


def test_only_an_engine_that_is_asked_for_is_part_of_the_fingerprint(tiny):
    usual = tiny().fingerprint
    assert tiny(engine={"workers": 3}).fingerprint == usual
    assert tiny(engine="auto").fingerprint == usual
    asked = {kind: tiny(engine=kind).fingerprint for kind in ("vectorised", "processes", "inline")}
    assert usual not in asked.values()
    assert asked["processes"] == asked["inline"] != asked["vectorised"]


class Skipping(nn.Module):
    """Not a chain: its input is used twice."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 6)

    def forward(self, x):
        return self.fc(x) + x


class Deciding(nn.Module):
    """What it computes depends on the data."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 4)

    def forward(self, x):
        return self.fc(x) if x.sum() > 0 else -self.fc(x)


def tied():
    layer = nn.Linear(6, 6)
    return nn.Sequential(layer, nn.ReLU(), layer)


def hooked():
    model = nn.Sequential(nn.Linear(6, 4))
    model[0].register_forward_hook(lambda *_: None)
    return model


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Skipping, "do not form a chain"),
        (Deciding, "cannot be followed"),
        (tied, "share parameters"),
        (hooked, "has hooks"),
        (lambda: nn.Sequential(nn.Linear(6, 4), nn.PReLU()), "the layer PReLU '1'"),
        (lambda: nn.Sequential(nn.Flatten(0), nn.Linear(6, 4)), "merges samples"),
        (lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4, momentum=None)), "no moving averages"),
        (lambda: nn.Sequential(nn.Embedding(9, 4, max_norm=1.0)), "change its gradients"),
        (lambda: nn.Sequential(nn.EmbeddingBag(9, 4, mode="max")), "not a sum or mean"),
    ],
)
def test_what_does_not_fit_is_told(model, reason):
    assert reason in str(why_not(model(), Plain(), "cpu"))


def test_other_devices_and_algorithms_do_not_fit():
    model = nn.Linear(6, 4)
    assert why_not(model, Plain(), "cpu") is None
    assert "cuda" in str(why_not(model, Plain(), "cuda"))
    assert "Moon" in str(why_not(model, Moon(), "cpu"))


@pytest.mark.parametrize(
    ("name", "options", "fits"),
    [
        ("logistic", {}, True),
        ("mlp", {"hidden": (8, 8)}, True),
        ("text-classifier", {}, True),
        ("text-classifier", {"encoder": "bag", "vocabulary": 20, "width": 4}, True),
        ("text-classifier", {"encoder": "transformer", "vocabulary": 20, "width": 8}, False),
    ],
)
def test_models_of_the_registry(name, options, fits):
    assert (why_not(build_model(name, (12,), 3, options), Plain(), "cpu") is None) == fits


# --- slices ----------------------------------------------------------------------------------------------


@given(
    sizes=st.lists(st.integers(1, 90), min_size=1, max_size=60),
    batch=st.integers(1, 32),
    steps=st.none() | st.integers(1, 12),
    epochs=st.integers(1, 3),
    longest=st.integers(1, 20),
)
@settings(max_examples=60, deadline=None)
def test_slices_cover_everybody_and_waste_no_more_than_they_say(sizes, batch, steps, epochs, longest):
    training = LocalTraining(batch_size=batch, steps=steps, epochs=epochs)
    descending = np.sort(np.array(sizes))[::-1]
    slices = cut(descending, training, longest)
    assert [k for part in slices for k in range(part.start, part.stop)] == list(range(len(sizes)))
    for part in slices:
        own = [batch_sizes(int(size), training) for size in descending[part]]
        assert len(own) <= longest
        padded = sum(
            max(b[step] for b in own if step < len(b)) * sum(step < len(b) for b in own)
            for step in range(max(map(len, own)))
        )
        assert sum(b.sum() for b in own) >= (1 - PADDING_SHARE) * padded


@given(
    size=st.integers(1, 40), batch=st.integers(1, 12), steps=st.none() | st.integers(1, 9), skip=st.integers(0, 4)
)
@settings(max_examples=60, deadline=None)
def test_the_timetable_holds_the_batches_of_a_client_alone(size, batch, steps, skip):
    training = LocalTraining(batch_size=batch, steps=steps, epochs=2)
    skip = min(skip, training.steps_for(size) - 1)
    cohort = SliceData(np.array([size]), [np.random.default_rng(3)], [skip], lambda positions: None)
    table = Timetable.of(cohort, training)
    expected = list(batches(size, training, np.random.default_rng(3), skip))
    found = [row[0, : sizes[0]] for row, sizes in zip(table.positions, table.sizes, strict=True)]
    assert [row.tolist() for row in found] == [row.tolist() for row in expected]


def test_slices_are_small_enough_for_the_cache_and_many_enough_for_workers():
    assert longest_slice(clients=1000, parameters=610) == 64
    assert longest_slice(clients=50, parameters=50_890) == 13
    assert longest_slice(clients=1000, parameters=50_890) == 20
    assert longest_slice(clients=3, parameters=610) == 1
    assert longest_slice(clients=1000, parameters=10**8) == 1


@given(seed=st.integers(0, 2**70), coordinates=st.lists(st.integers(0, 2**40), max_size=3))
@settings(max_examples=40, deadline=None)
def test_generators_that_are_seeded_together_are_those_that_are_made_alone(seed, coordinates):
    clients = np.array([0, 1, 77, 999_999, 2**31])
    words = seeds(seed, "train", *coordinates, clients=clients)
    for client, rng in zip(clients.tolist(), seeded(words), strict=True):
        alone = generator(seed, "train", *coordinates, client)
        assert rng.permutation(33).tolist() == alone.permutation(33).tolist()
        assert rng.random() == alone.random()


@given(seed=st.integers(0, 2**70), coordinates=st.lists(st.integers(0, 2**40), max_size=3))
@settings(max_examples=40, deadline=None)
def test_the_same_with_a_step_for_each_client(seed, coordinates):
    clients, steps = np.array([0, 1, 77, 77, 2**31]), np.array([5, 0, 3, 4, 2**20])
    words = seeds(seed, "augment", *coordinates, clients=clients, steps=steps)
    for client, step, rng in zip(clients.tolist(), steps.tolist(), seeded(words), strict=True):
        alone = generator(seed, "augment", *coordinates, client, step)
        assert rng.integers(0, 8, 5, endpoint=True).tolist() == alone.integers(0, 8, 5, endpoint=True).tolist()
        assert rng.random() == alone.random()


def test_a_model_that_is_followed_does_not_disturb_another_thread():
    """While one run looks at its model, another one in the same process computes with its own."""
    other, computed = nn.Linear(3, 2), []

    class Slow(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x):
            worker = threading.Thread(target=lambda: computed.append(other(torch.ones(1, 3))))
            worker.start()
            worker.join()
            return self.layer(x)

    call = nn.Module.__call__
    assert [name for name, _ in _steps(Slow())] == ["layer"]
    assert torch.equal(computed[0], other(torch.ones(1, 3)))
    assert nn.Module.__call__ is call
