"""Features of a frozen backbone: computed once, trained on by any engine, the same as without."""

import dataclasses
import logging

import numpy as np
import pytest
import torch
from torch import nn

import muster
from muster.core.errors import CheckpointError
from muster.data import from_arrays
from muster.experiment.components import build_data
from muster.experiment.features import BLOCK, with_features
from muster.experiment.parts import build_ingredients, build_parts
from muster.models import build_model
from muster.models.freezing import split
from muster.server.loop import Observer

MODEL = {"name": "resnet20", "freeze": "backbone"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("MUSTER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def pictures(count=2 * BLOCK + 9, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, count)
    features = (rng.integers(0, 120, (count, 3, 16, 16)) + 60 * labels[:, None, None, None]).astype(np.uint8)
    return from_arrays(features, labels, clients=np.arange(count) % 6, test=(features[:20], labels[:20]))


def experiment(**changes):
    sections = {
        "rounds": 2,
        "data": pictures(),
        "model": MODEL,
        "training": {"lr": 0.05, "batch_size": 8},
        "selection": {"method": "random", "clients_per_round": 3},
    }
    return muster.Experiment(**(sections | changes))


def uncached(monkeypatch):
    monkeypatch.setattr("muster.experiment.parts.with_features", lambda data, module, **_: (data, module))


def test_features_are_what_enters_the_head_sample_by_sample():
    data, module = pictures(), build_ingredients(experiment()).module
    made, rest = with_features(data, module, workers=0)
    assert made.dataset.sample_shape == (64,)
    backbone = split(module).backbone.eval()
    for samples, features in ((data.dataset.train, made.dataset.train), (data.dataset.test, made.dataset.test)):
        for position in (0, len(samples) // 2, len(samples) - 1):
            one, _ = data.tensors(samples, np.array([position]))
            with torch.no_grad():
                np.testing.assert_allclose(features.features[position], backbone(one)[0], atol=1e-5)
    assert np.array_equal(made.dataset.train.labels, data.dataset.train.labels)
    assert made.train_index is data.train_index
    assert isinstance(rest, nn.Sequential)


def test_any_number_of_workers_gives_the_same_bits(own_cache):
    module = build_ingredients(experiment()).module
    found = []
    for workers in (0, 1, 2):
        made, _ = with_features(pictures(), module, workers=workers)
        found.append(np.array(made.dataset.train.features))
        import shutil

        shutil.rmtree(own_cache)
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


def test_the_head_trains_in_the_vectorised_engine():
    parts = build_parts(experiment())
    with parts.engine:
        assert "every layer can be computed for many clients at once" in parts.engine.describe()


@pytest.mark.parametrize("kind", ["vectorised", "inline"])
def test_training_on_features_is_training_the_network(monkeypatch, kind):
    quick = muster.run(experiment(engine={"kind": kind}), workers=0)
    uncached(monkeypatch)
    slow = muster.run(experiment(engine={"kind": "inline"}), workers=0)
    np.testing.assert_allclose(quick.parameters, slow.parameters, atol=1e-5)
    assert quick.spec == slow.spec
    assert quick.final("accuracy") == slow.final("accuracy")
    # The result is the whole network, whose frozen part is as it was.
    network, before = quick.model(), build_ingredients(experiment()).module
    assert torch.equal(network.layer3[0].conv1.weight, before.layer3[0].conv1.weight)
    assert not torch.equal(network.fc.weight, before.fc.weight)
    data = build_data(experiment())
    features, labels = data.tensors(data.dataset.test, np.arange(20))
    assert float((network(features).argmax(1) == labels).double().mean()) == quick.final("accuracy")


def test_other_pictures_or_weights_are_not_taken_for_these(own_cache):
    module = build_ingredients(experiment()).module
    with_features(pictures(), module, workers=0)
    with_features(pictures(), module, workers=0)
    assert len(list((own_cache / "decoded").iterdir())) == 1
    with_features(pictures(seed=1), module, workers=0)
    with_features(pictures(), build_ingredients(experiment(seed=1)).module, workers=0)
    assert len(list((own_cache / "decoded").iterdir())) == 3
    # The same bytes seen through another normalisation are other pictures.
    data = pictures()
    dimmed = muster.data.federated.FederatedData(data.dataset.normalised([0.2, 0.7]), data.train_index)
    with_features(dimmed, module, workers=0)
    assert len(list((own_cache / "decoded").iterdir())) == 4


def kept(own_cache):
    return len(list((own_cache / "decoded").iterdir()))


def test_the_number_of_heads_tells_networks_apart(own_cache):
    """Attention with two heads has the tensors of attention with four."""
    ids = np.random.default_rng(0).integers(1, 10, (12, 5))
    data = from_arrays(ids, np.arange(12) % 3, clients=np.arange(12) % 2, test=(ids[:3], np.arange(3)))
    data = dataclasses.replace(data, dataset=dataclasses.replace(data.dataset, tokens=True))
    found = []
    for heads in (2, 4):
        options = {"encoder": "transformer", "vocabulary": 10, "width": 8, "layers": 1, "heads": heads}
        model = build_model("text-classifier", (5,), 3, options | {"freeze": "backbone"})
        found.append(with_features(data, model, workers=0)[0].dataset.train.features)
    assert not np.array_equal(*found)
    assert kept(own_cache) == 2


def own_network(factor, head_seed=0):
    """A body that is always the same but for what its code does, and a head that is drawn."""

    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.body = nn.Linear(768, 4)
            torch.manual_seed(head_seed)
            self.last = nn.Linear(4, 3)

        def forward(self, x):
            return self.last(torch.relu(factor * self.body(x.flatten(1))))

    network = Own()
    network.body.requires_grad_(False)
    return network


def test_code_that_was_changed_gives_other_features():
    first, second = (
        with_features(pictures(), own_network(factor), workers=0)[0].dataset.train.features for factor in (1, 2)
    )
    np.testing.assert_allclose(second, 2 * first, rtol=1e-5)


def test_the_head_does_not_matter_to_features(own_cache):
    """So that repetitions with other seeds share them where the backbone comes from a file."""
    for seed in (0, 1):
        with_features(pictures(), own_network(1, head_seed=seed), workers=0)
    assert kept(own_cache) == 1


def test_dropout_before_the_head_is_off_with_features_and_without(monkeypatch):
    def network():
        torch.manual_seed(0)
        between = [nn.BatchNorm1d(6, affine=False), nn.Dropout(0.5)]
        return nn.Sequential(nn.Flatten(), nn.Linear(768, 6), *between, nn.Linear(6, 3))

    def result():
        made = network()
        made[1].requires_grad_(False)
        return muster.run(experiment(model=made, engine={"kind": "inline"}), workers=0), made

    quick, made = result()
    trained = quick.model(made)
    assert torch.equal(trained[1].weight, network()[1].weight)
    assert not torch.equal(trained[4].weight, network()[4].weight)
    uncached(monkeypatch)
    slow, _ = result()
    np.testing.assert_allclose(quick.parameters, slow.parameters, atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"training": {"augmentation": ["flip"]}}, "training.augmentation changes samples"),
        ({"filters": [{"method": "label-flip", "share": 0.5}]}, "attackers change samples"),
    ],
)
def test_samples_stay_what_they_are_where_somebody_changes_them(changes, reason, caplog):
    with caplog.at_level(logging.INFO):
        parts = build_parts(experiment(**changes), workers=0)
    assert reason in caplog.text
    with parts.engine:
        assert type(parts.engine).__name__ == "LocalEngine"
        assert parts.engine.population.spec == build_parts(experiment(), workers=0).engine.population.spec


@pytest.mark.parametrize("kind", ["vectorised", "inline"])
def test_a_frozen_backbone_sees_augmented_pictures_never_features_that_were_kept(kind, own_cache, monkeypatch):
    """Features of the plain pictures are in the cache by then."""

    def run(**training):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(768, 6), nn.ReLU(), nn.Linear(6, 3))
        network[1].requires_grad_(False)
        training = {"lr": 0.05, "batch_size": 8} | training
        return muster.run(experiment(model=network, engine={"kind": kind}, training=training), workers=0)

    plain = run()
    assert kept(own_cache) == 1
    augmented = run(augmentation=["crop", "flip"])
    assert kept(own_cache) == 1
    assert not np.allclose(augmented.parameters, plain.parameters, atol=1e-4)
    uncached(monkeypatch)
    assert np.array_equal(augmented.parameters, run(augmentation=["crop", "flip"]).parameters)


class Doubled(nn.Module):
    """Something follows the head."""

    def __init__(self):
        super().__init__()
        self.body, self.last = nn.Linear(768, 4), nn.Linear(4, 3)

    def forward(self, x):
        return 2 * self.last(torch.relu(self.body(x.flatten(1))))


def test_a_network_that_cannot_be_taken_apart_trains_whole(caplog):
    network = Doubled()
    network.body.requires_grad_(False)
    with caplog.at_level(logging.INFO):
        _, module = with_features(pictures(), network, workers=0)
    assert module is network
    assert "something follows the classification layer" in caplog.text


def test_features_that_would_fill_the_disk_are_not_kept(caplog, monkeypatch):
    monkeypatch.setattr("muster.experiment.features.MAX_BYTES", 64 * 4 * 90)
    module = build_ingredients(experiment()).module
    with caplog.at_level(logging.INFO):
        assert with_features(pictures(), module, workers=0)[1] is module
    assert "would take" in caplog.text


def test_a_run_does_not_go_on_with_other_frozen_weights(tmp_path, monkeypatch):
    """A file with other content makes another run; of a name that stands for itself, the checkpoint knows."""
    monkeypatch.setattr("muster.config.experiment.content_of_weights", lambda model: {})

    class Stopper(Observer):
        def wants_stop(self):
            return True

    path = tmp_path / "weights.pt"
    for seed in (1, 2):
        network = muster.models.build_model("resnet20", (3, 16, 16), 3, seed=seed)
        torch.save(network.state_dict(), path)
        run = experiment(model=MODEL | {"weights": str(path)})
        if seed == 1:
            muster.run(run, workers=0, store=tmp_path / "store", observers=[Stopper()])
    with pytest.raises(CheckpointError, match="frozen parts of the model are not those"):
        muster.run(run, workers=0, store=tmp_path / "store", resume=True)
