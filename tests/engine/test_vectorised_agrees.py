"""Clients that train side by side end where they end alone, for every layer, optimiser and local algorithm."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from muster.data.federated import Dataset, FederatedData, Index, LeadingPicture, Normalisation, Samples
from muster.engine.base import AskOrder, TrainOrder
from muster.engine.local import LocalEngine
from muster.engine.task import Place
from muster.engine.vectorised import VectorisedEngine
from muster.engine.vectorised.chain import Chain
from muster.models.text_classifier import BagEncoder
from muster.privacy.noise import private
from muster.signals.gradients import MeanGradient
from muster.signals.labels import LabelEntropy, LabelHistogram
from muster.signals.losses import BatchLoss, Loss, SquaredLoss, TrainLoss
from muster.signals.probe import ProbeNorm
from muster.signals.progress import LocalProgress
from muster.signals.start_loss import StartLoss
from muster.signals.updates import BiasUpdate, FinalLayerNorm, WholeUpdate
from muster.training import base
from muster.training.base import LocalTraining, Plain
from muster.training.feddyn import FedDyn
from muster.training.fedprox import FedProx
from muster.training.scaffold import Scaffold
from muster.updates.table import Updates

SEED, CLASSES, WIDTH, WORDS = 5, 4, 6, 11
SIZES = [17, 40, 23, 9, 31, 16, 2, 24, 24, 33]
CLIENTS = np.arange(len(SIZES))
PICTURE, CHANGES = (3, 6, 7), ("crop", "flip", "rotation", "colour-jitter")
REPORT = (
    TrainLoss(),
    SquaredLoss(),
    StartLoss(),
    FinalLayerNorm(),
    BiasUpdate(),
    LocalProgress(),
    LabelEntropy(),
    MeanGradient(part="final_layer"),
)


def federation(shape: tuple[int, ...] = (WIDTH,), words: bool = False) -> FederatedData:
    rng = np.random.default_rng(SEED)

    def samples(count: int) -> Samples:
        features = rng.integers(0, WORDS, (count, *shape)) if words else rng.normal(size=(count, *shape))
        return Samples(features.astype(np.int64 if words else np.float32), rng.integers(0, CLASSES, count))

    owners = rng.permutation(np.repeat(CLIENTS, SIZES))
    dataset = Dataset("made-up", samples(sum(SIZES)), samples(20), CLASSES, tokens=words)
    return FederatedData(dataset, Index.from_owners(owners, len(SIZES)))


def pictures(beginning: bool = False) -> FederatedData:
    """Pictures of bytes; or flat samples that begin with one."""
    rng = np.random.default_rng(SEED)
    normalisation = Normalisation((0.5, 0.4, 0.3), (0.2, 0.25, 0.3), 1 / 255)

    def samples(count: int) -> Samples:
        pixels, labels = rng.integers(0, 256, (count, *PICTURE), dtype=np.uint8), rng.integers(0, CLASSES, count)
        if not beginning:
            return Samples(pixels, labels)
        seen = normalisation.apply(torch.from_numpy(pixels)).flatten(1).numpy()
        return Samples(np.hstack([seen, rng.normal(size=(count, 5)).astype(np.float32)]), labels)

    owners = rng.permutation(np.repeat(CLIENTS, SIZES))
    parts = samples(sum(SIZES)), samples(20)
    if beginning:
        dataset = Dataset("medley", *parts, CLASSES, picture=LeadingPicture(PICTURE, normalisation))
    else:
        dataset = Dataset("pictures", *parts, CLASSES, normalisation=normalisation)
    return FederatedData(dataset, Index.from_owners(owners, len(SIZES)))


class Written(nn.Module):
    """A chain that is written out in `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES)
        self.unused = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(nn.functional.relu(self.first(x.flatten(1))).tanh())


def frozen_first() -> nn.Module:
    model = nn.Sequential(nn.Linear(WIDTH, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, CLASSES))
    model[0].requires_grad_(False)
    model[1].bias.requires_grad_(False)
    return model


def dense(*between: nn.Module, width: int = 8) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, width), *between, nn.Linear(width, CLASSES))


def on_pictures(*between: nn.Module, width: int = 126) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(width, 8), *between, nn.ReLU(), nn.Linear(8, CLASSES))


IMAGE: dict[str, Any] = {"shape": (2, 3, 4)}
TEXT: dict[str, Any] = {"words": True}
FUNCTIONS = (nn.Tanh, nn.Sigmoid, nn.GELU, nn.LeakyReLU, nn.Softplus, nn.Hardtanh, nn.Mish)
MODELS: dict[str, tuple[Any, dict[str, Any]]] = {
    "logistic": (lambda: nn.Linear(WIDTH, CLASSES), {}),
    "no bias": (lambda: nn.Sequential(nn.Linear(WIDTH, 8, bias=False), nn.ReLU(), nn.Linear(8, CLASSES)), {}),
    "flatten": (lambda: nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(24, CLASSES)), IMAGE),
    "last axis": (lambda: nn.Sequential(nn.Linear(4, 5), nn.ELU(), nn.Flatten(), nn.Linear(30, CLASSES)), IMAGE),
    "layer norm": (lambda: dense(nn.LayerNorm(8), nn.ReLU()), {}),
    "layer norm, no bias": (lambda: dense(nn.LayerNorm(8, bias=False), nn.ReLU()), {}),
    "layer norm over axes": (
        lambda: nn.Sequential(nn.LayerNorm((3, 4)), nn.Flatten(), nn.Linear(24, CLASSES)),
        IMAGE,
    ),
    "group norm": (lambda: dense(nn.GroupNorm(2, 8), nn.ReLU()), {}),
    "group norm, images": (
        lambda: nn.Sequential(nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(24, CLASSES)),
        IMAGE,
    ),
    "batch norm": (lambda: dense(nn.BatchNorm1d(8), nn.ReLU()), {}),
    "batch norm, no scale": (lambda: dense(nn.BatchNorm1d(8, affine=False), nn.ReLU()), {}),
    "batch norm over axes": (
        lambda: nn.Sequential(nn.Flatten(2), nn.BatchNorm1d(2), nn.Flatten(), nn.Linear(24, CLASSES)),
        IMAGE,
    ),
    "dropout": (lambda: dense(nn.Dropout(0.1), nn.ReLU(), nn.Dropout(0.4)), {}),
    "identity, no dropout": (lambda: dense(nn.Identity(), nn.Dropout(0.0), nn.SiLU(inplace=True)), {}),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(WORDS, 3, padding_idx=0), nn.Flatten(), nn.Linear(18, CLASSES)),
        TEXT,
    ),
    "bag of words": (lambda: nn.Sequential(BagEncoder(WORDS, 3), nn.ReLU(), nn.Linear(3, CLASSES)), TEXT),
    "sum of words": (lambda: nn.Sequential(nn.EmbeddingBag(WORDS, 3, mode="sum"), nn.Linear(3, CLASSES)), TEXT),
    "written out": (Written, {}),
    "frozen layers": (frozen_first, {}),
}
MODELS |= {kind.__name__: (lambda kind=kind: dense(kind()), {}) for kind in FUNCTIONS}
TRAININGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two epochs": {"epochs": 2},
    "steps, less than an epoch": {"steps": 2},
    "steps, more than an epoch": {"steps": 7},
    "weight decay": {"weight_decay": 0.1},
    "momentum": {"momentum": 0.9, "epochs": 2},
    "nesterov, decay": {"momentum": 0.5, "nesterov": True, "weight_decay": 0.01, "epochs": 2},
    "adam": {"optimizer": "adam", "lr": 0.01, "epochs": 2},
    "adam, decay": {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.1},
    "clipped": {"clip_norm": 0.05, "epochs": 2},
    "large batches": {"batch_size": 100},
    "single samples": {"batch_size": 1},
}


def engines(
    model: Any, data: FederatedData, options: dict[str, Any], algorithm: Any = None
) -> tuple[LocalEngine, VectorisedEngine]:
    torch.manual_seed(1)
    module, training = model(), LocalTraining(**{"lr": 0.1, "batch_size": 8} | options)
    return tuple(
        kind(data, module, training, algorithm or Plain(), seed=SEED, workers=0, device="cpu")
        for kind in (LocalEngine, VectorisedEngine)
    )  # type: ignore[return-value]


def order(engine: LocalEngine, **changes: Any) -> TrainOrder:
    values = {
        "clients": CLIENTS,
        "parameters": engine.initial_parameters(),
        "place": Place(0, 0, 0),
        "lr": engine.training.lr,
        "report": REPORT,
    }
    return TrainOrder(**values | changes)


def assert_agree(alone: LocalEngine, together: VectorisedEngine, request: TrainOrder, moves: bool = True) -> None:
    def answers(engine: LocalEngine) -> list[Updates]:
        # Buffers are reused: keep copies.
        found = [copy.deepcopy(row) for part in engine.train(request) for row in part]
        engine.settle(np.sort(request.clients), request.clients[:0])
        return found

    expected, found = answers(alone), answers(together)
    assert [a.clients.tolist() for a in found] == [a.clients.tolist() for a in expected]
    for left, right in zip(expected, found, strict=True):
        assert {name: left.numbers[name].tolist() for name in left.numbers} == {
            name: right.numbers[name].tolist() for name in right.numbers
        }
        scale = np.abs(left.movements).max()
        assert not moves or scale > 1e-4
        np.testing.assert_allclose(right.movements, left.movements, rtol=1e-3, atol=2e-5 * max(1.0, scale))
        assert list(left.reports) == list(right.reports)
        for name, values in left.reports.items():
            np.testing.assert_allclose(right.reports[name], values, rtol=2e-3, atol=2e-5, err_msg=name)
        for name, vector in left.extra.items():
            np.testing.assert_allclose(right.extra[name], vector, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("name", MODELS)
def test_every_layer(name: str) -> None:
    model, data = MODELS[name]
    options = {"batch_size": 7, "epochs": 2} if name.startswith("batch norm") else {"epochs": 2}
    alone, together = engines(model, federation(**data), options)
    assert_agree(alone, together, order(alone))


@pytest.mark.parametrize("name", TRAININGS)
@pytest.mark.parametrize("model", ["layer norm", "bag of words"])
def test_every_optimiser_and_amount_of_work(name: str, model: str) -> None:
    make, data = MODELS[model]
    alone, together = engines(make, federation(**data), TRAININGS[name])
    assert_agree(alone, together, order(alone))


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"optimizer": "adam", "lr": 0.01}])
@pytest.mark.parametrize("algorithm", [FedProx(0.5), FedDyn(0.2), Scaffold(), Scaffold(option="I")], ids=repr)
def test_every_local_algorithm_over_two_rounds(algorithm: Any, options: dict[str, Any]) -> None:
    alone, together = engines(MODELS["frozen layers"][0], federation(), options, algorithm)
    rng = np.random.default_rng(0)
    broadcast = (
        rng.normal(0, 0.01, alone.spec.size).astype(np.float32) if isinstance(algorithm, Scaffold) else None
    )
    for round, clients in enumerate(([0, 1, 2, 5, 6], [1, 2, 3, 7, 8, 9])):
        request = order(alone, clients=np.array(clients), place=Place(round, 0, 0), broadcast=broadcast, report=())
        assert_agree(alone, together, request)
    left, right = alone.state_dict()["clients"], together.state_dict()["clients"]
    assert left.keys() == right.keys()
    for name, kept in left.items():
        assert kept["clients"].tolist() == right[name]["clients"].tolist()
        np.testing.assert_allclose(right[name]["vectors"], kept["vectors"], rtol=1e-3, atol=2e-5)


def own_factors(seed: int = 0, low: float = 0.25) -> np.ndarray:
    return np.random.default_rng(seed).uniform(low, 2.0, len(CLIENTS))


@pytest.mark.parametrize("algorithm", [Plain(), FedProx(0.5)], ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("name", TRAININGS)
@pytest.mark.parametrize("model", ["layer norm", "bag of words"])
def test_every_optimiser_with_rates_and_strengths_of_their_own(name: str, model: str, algorithm: Any) -> None:
    make, data = MODELS[model]
    alone, together = engines(make, federation(**data), TRAININGS[name], algorithm)
    pulls = np.where(CLIENTS % 4 == 0, 0.0, 2 * own_factors(1)) if algorithm != Plain() else None
    shuffled = np.random.default_rng(2).permutation(CLIENTS)
    request = order(alone, clients=shuffled, lr_factors=own_factors(), pull_factors=pulls)
    assert_agree(alone, together, request)


@pytest.mark.parametrize("name", ["batch norm", "frozen layers", "embedding", "no bias", "dropout"])
def test_layers_with_rates_of_the_clients_own(name: str) -> None:
    make, data = MODELS[name]
    alone, together = engines(make, federation(**data), {"batch_size": 7, "weight_decay": 0.05})
    assert_agree(alone, together, order(alone, lr_factors=own_factors()))


@pytest.mark.parametrize("algorithm", [FedDyn(0.2), Scaffold(), Scaffold(option="I")], ids=repr)
def test_algorithms_with_state_and_rates_of_the_clients_own(algorithm: Any) -> None:
    alone, together = engines(MODELS["layer norm"][0], federation(), {"momentum": 0.5}, algorithm)
    broadcast = np.full(alone.spec.size, 0.01, dtype=np.float32) if isinstance(algorithm, Scaffold) else None
    for round in range(2):
        request = order(alone, place=Place(round, 0, 0), broadcast=broadcast, report=())
        assert_agree(alone, together, replace(request, lr_factors=own_factors(round)))


def test_a_training_goes_on_from_a_probe_at_its_own_rate() -> None:
    alone, together = engines(MODELS["layer norm"][0], federation(), {"momentum": 0.9, "epochs": 2})
    for engine in (alone, together):
        engine.ask(AskOrder(CLIENTS[:5], engine.initial_parameters(), Place(0, 0, 0), 0.1, (ProbeNorm(),)))
    assert_agree(alone, together, order(alone, place=Place(0, 0, 1), lr_factors=own_factors()))


@pytest.mark.parametrize("name", ["plain", "weight decay", "nesterov, decay", "adam"])
def test_equal_factors_are_the_rate_and_the_strength_that_they_make(name: str) -> None:
    """With 1 to the bit what comes without factors; with others what the product says."""
    options, halves = TRAININGS[name], np.full(len(CLIENTS), 0.5)
    for kind in (0, 1):
        usual = engines(MODELS["layer norm"][0], federation(), options, FedProx(0.5))[kind]
        weaker = engines(MODELS["layer norm"][0], federation(), options, FedProx(0.25))[kind]
        ones = np.ones(len(CLIENTS))
        pairs = [
            (order(usual), order(usual, lr_factors=ones, pull_factors=ones), usual),
            (order(usual, lr=usual.training.lr / 2), order(usual, lr_factors=halves), usual),
            (order(weaker), order(usual, pull_factors=halves), weaker),
        ]
        for left, right, engine in pairs:
            expected = {int(a.clients[0]): copy.deepcopy(a) for part in engine.train(left) for a in part}
            for answer in (row for part in usual.train(right) for row in part):
                known = expected[int(answer.clients[0])]
                assert np.array_equal(answer.movements, known.movements)
                for signal, values in known.reports.items():
                    # Adam's local work is not a number, on both sides.
                    assert np.array_equal(answer.reports[signal], values, equal_nan=True), signal


def test_a_factor_reaches_its_client_and_nobody_else() -> None:
    for engine in engines(MODELS["layer norm"][0], federation(), {"steps": 1}):
        first = engine.train(order(engine, report=()))
        usual = {int(a.clients[0]): a.movements[0].copy() for part in first for a in part}
        factors = np.where(CLIENTS == 4, 3.0, 1.0)
        reversed_order = order(engine, report=(), clients=CLIENTS[::-1], lr_factors=factors[::-1])
        for answer in (row for part in engine.train(reversed_order) for row in part):
            client = int(answer.clients[0])
            factor = 3.0 if client == 4 else 1.0
            np.testing.assert_allclose(answer.movements[0], factor * usual[client], rtol=1e-3, atol=1e-6)


def test_the_whole_matrix_and_whole_updates() -> None:
    alone, together = engines(MODELS["batch norm"][0], federation(), {"batch_size": 7})
    request = order(alone, keep_all=True, report=(WholeUpdate(),))
    assert_agree(alone, together, request)
    some = np.array([1, 3, 4, 8])
    np.testing.assert_allclose(together.matrix(some), alone.matrix(some), rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("credit", ["batches", "epoch"])
@pytest.mark.parametrize(("momentum", "kept"), [(0.0, "fresh"), (0.9, "fresh"), (0.9, "kept")])
def test_training_goes_on_from_a_probe(credit: Any, momentum: float, kept: Any) -> None:
    options = {"batch_size": 7, "epochs": 2, "momentum": momentum}
    alone, together = engines(MODELS["batch norm"][0], federation(), options)
    signal = ProbeNorm(credit=credit, optimizer_state=kept)
    for engine in (alone, together):
        probe = AskOrder(np.array([0, 3, 6, 9]), engine.initial_parameters(), Place(0, 0, 0), 0.1, (signal,))
        replies, failures = engine.ask(probe)
        assert replies.clients.tolist() == [0, 3, 6, 9]
        assert not failures
    assert_agree(alone, together, order(alone, place=Place(0, 0, 1), report=(LocalProgress(),)))


@pytest.mark.parametrize("augmentation", [(), ("crop", "flip"), CHANGES], ids=str)
def test_a_client_that_has_nothing_left_to_train_after_its_probe(augmentation: tuple[str, ...]) -> None:
    alone, together = engines(on_pictures, pictures(), {"batch_size": 100, "augmentation": augmentation})
    for engine in (alone, together):
        engine.ask(AskOrder(CLIENTS[:3], engine.initial_parameters(), Place(0, 0, 0), 0.1, (ProbeNorm(),)))
    assert_agree(alone, together, order(alone, clients=CLIENTS[:3], place=Place(0, 0, 1)))


def test_questions() -> None:
    alone, together = engines(MODELS["dropout"][0], federation(), {})
    signals = (LabelHistogram(), Loss(), BatchLoss(), LabelEntropy())
    request = AskOrder(CLIENTS, alone.initial_parameters(), Place(1, 0, 2), 0.1, signals)
    (expected, _), (found, _) = alone.ask(request), together.ask(request)
    assert found.clients.tolist() == expected.clients.tolist() == CLIENTS.tolist()
    assert list(found.values) == list(expected.values)
    for name in expected.values:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5)


def test_noise_on_reports_is_the_same() -> None:
    alone, together = engines(MODELS["layer norm"][0], federation(), {})
    noisy = [private(signal, "laplace", 1.0, 1e-5, CLASSES) for signal in (LabelHistogram(), LabelEntropy())]
    request = order(alone, report=(TrainLoss(), *noisy))
    left, right = ([row.reports for part in engine.train(request) for row in part] for engine in (alone, together))
    for expected, found in zip(left, right, strict=True):
        assert np.array_equal(expected["label_histogram"], found["label_histogram"])
        assert np.array_equal(expected["label_entropy"], found["label_entropy"])


def test_a_client_that_diverges_spoils_nobody_else() -> None:
    data = federation()
    features = data.dataset.train.features
    features[data.train_index[4]] *= 1e30
    alone, together = engines(MODELS["GELU"][0], data, {"epochs": 3, "lr": 10.0})
    expected, found = (
        {int(a.clients[0]): a.movements[0].copy() for part in engine.train(order(alone, report=())) for a in part}
        for engine in (alone, together)
    )
    assert not np.isfinite(found[4]).all()
    for client in set(expected) - {4}:
        assert np.isfinite(found[client]).all()


# --- augmentation ----------------------------------------------------------------------------------------------


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[bytes]]:
    """The mini-batches that models train on, as bytes, in each engine."""
    found: dict[str, list[bytes]] = {"alone": [], "together": []}
    one, many = base.forward, Chain.forward

    def forward_one(module: nn.Module, features: torch.Tensor) -> torch.Tensor:
        found["alone"].append(features.numpy().tobytes())
        return one(module, features)

    def forward_many(chain: Chain, x: torch.Tensor, batch: Any) -> torch.Tensor:
        found["together"] += [
            rows[:size].numpy().tobytes() for rows, size in zip(x, batch.sizes, strict=True) if size
        ]
        return many(chain, x, batch)

    monkeypatch.setattr(base, "forward", forward_one)
    monkeypatch.setattr(Chain, "forward", forward_many)
    return found


@pytest.mark.parametrize("augmentation", [*((name,) for name in CHANGES), ("crop", "flip"), CHANGES], ids=str)
@pytest.mark.parametrize("options", [{"epochs": 1}, {"epochs": 2}, {"steps": 7, "momentum": 0.9}], ids=str)
def test_pictures_are_changed_to_the_same_bits(
    augmentation: tuple[str, ...], options: dict[str, Any], seen: dict[str, list[bytes]]
) -> None:
    """Clients have nine different numbers of samples, and nearly all of them a shorter last batch."""
    alone, together = engines(on_pictures, pictures(), options | {"augmentation": augmentation})
    assert_agree(alone, together, order(alone))
    changed = sorted(seen["alone"])
    assert changed == sorted(seen["together"])
    seen["alone"].clear()
    plain, _ = engines(on_pictures, pictures(), options)
    assert len([*plain.train(order(plain))]) == len(SIZES)
    # A flip may leave a few pictures as they are.
    assert len(set(changed) & set(seen["alone"])) < len(changed) / 4


@pytest.mark.parametrize("options", [{}, {"optimizer": "adam", "lr": 0.01}, {"momentum": 0.9, "clip_norm": 0.5}])
@pytest.mark.parametrize("augmentation", [("crop", "flip"), CHANGES], ids=str)
def test_dropout_beside_augmentation(
    augmentation: tuple[str, ...], options: dict[str, Any], seen: dict[str, list[bytes]]
) -> None:
    def model() -> nn.Module:
        return on_pictures(nn.Dropout(0.3))

    alone, together = engines(model, pictures(), options | {"epochs": 2, "augmentation": augmentation})
    assert_agree(alone, together, order(alone, lr_factors=own_factors()))
    assert sorted(seen["alone"]) == sorted(seen["together"])


@pytest.mark.parametrize("algorithm", [FedProx(0.5), FedDyn(0.2), Scaffold(), Scaffold(option="I")], ids=repr)
def test_local_algorithms_on_changed_pictures(algorithm: Any, seen: dict[str, list[bytes]]) -> None:
    """In the second round draws are others, and clients have kept something from the first."""
    alone, together = engines(on_pictures, pictures(), {"augmentation": CHANGES}, algorithm)
    broadcast = np.full(alone.spec.size, 0.01, dtype=np.float32) if isinstance(algorithm, Scaffold) else None
    for round in range(2):
        assert_agree(alone, together, order(alone, place=Place(round, 0, 0), broadcast=broadcast, report=()))
    assert set(seen["together"]) <= set(seen["alone"])  # option I also takes gradients of the plain pictures


@pytest.mark.parametrize("augmentation", [("crop", "flip"), CHANGES], ids=str)
@pytest.mark.parametrize("credit", ["batches", "epoch"])
@pytest.mark.parametrize(("momentum", "kept"), [(0.0, "fresh"), (0.9, "fresh"), (0.9, "kept")])
def test_a_probe_and_what_follows_it_see_the_changed_pictures(
    augmentation: tuple[str, ...], credit: Any, momentum: float, kept: Any, seen: dict[str, list[bytes]]
) -> None:
    """Clients that were probed go on with the draws of later steps than their neighbours in a slice."""
    options = {"batch_size": 7, "epochs": 2, "momentum": momentum, "augmentation": augmentation}
    alone, together = engines(lambda: on_pictures(nn.Dropout(0.2)), pictures(), options)
    signal, norms = ProbeNorm(credit=credit, optimizer_state=kept), []
    for engine in (alone, together):
        probe = AskOrder(np.array([0, 3, 6, 9]), engine.initial_parameters(), Place(0, 0, 0), 0.1, (signal,))
        replies, failures = engine.ask(probe)
        assert not failures
        norms.append(replies["probe_norm"].tolist())
    assert norms[0] == norms[1]
    assert_agree(alone, together, order(alone, place=Place(0, 0, 1), report=(LocalProgress(),)))
    assert sorted(seen["alone"]) == sorted(seen["together"])


@pytest.mark.parametrize("augmentation", [("crop", "flip"), CHANGES], ids=str)
def test_pictures_with_which_samples_begin(augmentation: tuple[str, ...], seen: dict[str, list[bytes]]) -> None:
    options = {"epochs": 2, "augmentation": augmentation}
    alone, together = engines(lambda: on_pictures(width=131), pictures(beginning=True), options)
    assert_agree(alone, together, order(alone))
    assert sorted(seen["alone"]) == sorted(seen["together"])


def test_a_frozen_layer_sees_the_changed_pictures(seen: dict[str, list[bytes]]) -> None:
    def model() -> nn.Module:
        made = on_pictures()
        made[1].requires_grad_(False)
        return made

    alone, together = engines(model, pictures(), {"epochs": 2, "augmentation": CHANGES})
    assert_agree(alone, together, order(alone))
    assert sorted(seen["alone"]) == sorted(seen["together"])


def test_measurements_see_pictures_as_they_are_beside_augmentation() -> None:
    found = []
    for augmentation in ((), CHANGES):
        _, together = engines(on_pictures, pictures(), {"augmentation": augmentation})
        [*answers] = together.train(order(together, report=(StartLoss(), LabelEntropy())))
        rows = [row for part in answers for row in part]
        found.append({int(row.clients[0]): row.reports["start_loss"].item() for row in rows})
    assert found[0] == found[1]
