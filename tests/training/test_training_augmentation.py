"""Augmentation: every operation against a slow form, its distribution, and the same bits wherever it runs."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import muster
from muster.core.errors import ConfigError, DataError
from muster.data import Dataset, Normalisation, Samples
from muster.data.federated import FederatedData, Index
from muster.engine.runtime import ClientRuntime
from muster.engine.task import ClientTask, Place
from muster.experiment.parts import build_parts
from muster.models.base import build_model
from muster.server.loop import Observer
from muster.signals.losses import Loss
from muster.signals.probe import ProbeNorm
from muster.training.augmentation import (
    ColourJitter,
    Crop,
    Flip,
    Palette,
    Rotation,
    augmenter,
    build_operations,
    operations,
)
from muster.training.base import LocalTraining, Plain

COLOURS = Normalisation(mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3), scale=1 / 255)
PALETTE = Palette.of(COLOURS)
ENGINES = ["auto", "vectorised", "processes", "inline"]


def picture_data(shape=(3, 8, 10), count=60, normalisation=COLOURS) -> Dataset:
    rng = np.random.default_rng(1)
    images, labels = rng.integers(0, 256, (count, *shape), dtype=np.uint8), rng.integers(0, 4, count)
    train, test = (Samples(images[part], labels[part]) for part in (slice(count - 12), slice(count - 12, None)))
    return Dataset("pictures", train, test, classes=4, normalisation=normalisation)


def batch(count: int, shape=(3, 8, 10)) -> torch.Tensor:
    pixels = torch.from_numpy(np.random.default_rng(2).integers(0, 256, (count, *shape), dtype=np.uint8))
    return COLOURS.apply(pixels)


def test_crop_is_a_window_of_the_framed_picture():
    """By hand: frame each picture in black, as bytes, and find it again at one of the 49 places."""
    pixels = np.random.default_rng(0).integers(1, 256, (500, 3, 8, 10), dtype=np.uint8)
    cropped = Crop(padding=3)(COLOURS.apply(torch.from_numpy(pixels)), PALETTE, np.random.default_rng(0))
    places = np.zeros((7, 7), dtype=int)
    for before, after in zip(pixels, cropped, strict=True):
        framed = np.zeros((3, 14, 16), dtype=np.uint8)
        framed[:, 3:11, 3:13] = before
        windows = {
            (i, j): COLOURS.apply(torch.from_numpy(framed[:, i : i + 8, j : j + 10].copy())[None])[0]
            for i in range(7)
            for j in range(7)
        }
        found = [place for place, window in windows.items() if torch.allclose(window, after, atol=1e-6)]
        assert len(found) == 1
        places[found[0]] += 1
    # 49 places, 500 draws: the statistic has mean 48 and deviation 10.
    assert ((places - 500 / 49) ** 2 / (500 / 49)).sum() < 100


@pytest.mark.parametrize("chance", [0.5, 0.1, 1.0])
def test_flip_mirrors_as_often_as_it_should(chance):
    pictures = batch(4000, (3, 2, 2))
    flipped = Flip(chance)(pictures, PALETTE, np.random.default_rng(3))
    mirrored = [torch.equal(after, before.flip(2)) for before, after in zip(pictures, flipped, strict=True)]
    same = [torch.equal(after, before) for before, after in zip(pictures, flipped, strict=True)]
    assert all(left or right for left, right in zip(mirrored, same, strict=True))
    assert np.mean(mirrored) == pytest.approx(chance, abs=0.04)


def slow_jitter(pixels: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """One picture, pixel by pixel."""
    brightness, contrast, saturation = factors
    pixels = np.clip(pixels * brightness, 0, 1)

    def grey(p: np.ndarray) -> np.ndarray:
        return p[0] if len(p) == 1 else 0.299 * p[0] + 0.587 * p[1] + 0.114 * p[2]

    pixels = np.clip(grey(pixels).mean() * (1 - contrast) + pixels * contrast, 0, 1)
    return np.clip(grey(pixels) * (1 - saturation) + pixels * saturation, 0, 1)


@pytest.mark.parametrize("channels", [1, 3])
def test_jitter_against_the_slow_form(channels):
    normalisation = COLOURS if channels == 3 else Normalisation((0.3,), (0.5,), 1 / 255)
    palette = Palette.of(normalisation)
    pixels = np.random.default_rng(2).integers(0, 256, (20, channels, 6, 5), dtype=np.uint8)
    changed = ColourJitter(0.4, 0.5, 0.6)(
        normalisation.apply(torch.from_numpy(pixels)), palette, np.random.default_rng(5)
    )
    drawn = np.random.default_rng(5).uniform(-1, 1, (3, 20)) * [[0.4], [0.5], [0.6]] + 1
    for before, after, factors in zip(pixels, palette.pixels(changed), drawn.T, strict=True):
        np.testing.assert_allclose(after, slow_jitter(before / 255, factors), atol=1e-5)


@pytest.mark.parametrize(("degrees", "turns"), [(90, 1), (-90, -1), (180, 2)])
def test_rotation_by_right_angles(degrees, turns):
    pictures = batch(3, (3, 7, 7))
    fixed = SimpleNamespace(uniform=lambda low, high, count: np.full(count, float(degrees)))
    turned = Rotation(180)(pictures, PALETTE, fixed)
    torch.testing.assert_close(turned, torch.rot90(pictures, turns, (2, 3)), atol=1e-4, rtol=0)


def test_rotation_keeps_shapes_of_oblong_pictures():
    """A disc in the middle of an oblong picture stays where and what it is; corners become black."""
    y, x = np.mgrid[:30, :60]
    disc = ((y - 14.5) ** 2 + (x - 29.5) ** 2 < 100).astype(np.float32)
    plain = Palette.of(Normalisation((0.2,), (0.5,)))
    pictures = plain.normalised(torch.from_numpy(0.5 + 0.5 * disc)[None, None].repeat(8, 1, 1, 1))
    turned = plain.pixels(Rotation(40)(pictures, plain, np.random.default_rng(0)))
    inner, outer = (y - 14.5) ** 2 + (x - 29.5) ** 2 < 81, (y - 14.5) ** 2 + (x - 29.5) ** 2 < 121
    torch.testing.assert_close(turned[:, 0, inner], torch.ones(8, int(inner.sum())), atol=1e-4, rtol=0)
    ring = ~torch.from_numpy(outer) & torch.from_numpy((y - 14.5) ** 2 + (x - 29.5) ** 2 < 180)
    torch.testing.assert_close(turned[:, 0, ring], torch.full((8, int(ring.sum())), 0.5), atol=1e-4, rtol=0)
    assert turned[:, 0, 0, 0].abs().max() < 1e-5


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", operations.names())
def test_shape_type_and_layout_stay_and_draws_are_the_generators(name, layout):
    change = augmenter([name], picture_data(), torch.device("cpu"))
    pictures = batch(16).contiguous(memory_format=layout)
    before = pictures.clone()
    first, again, other = (change(pictures, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert first.shape == pictures.shape
    assert first.dtype == torch.float32
    assert first.is_contiguous(memory_format=layout)
    assert torch.equal(pictures, before)  # samples are not changed for good
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_operations_with_options_in_order():
    built = build_operations([{"name": "crop", "padding": 2}, "flip"])
    assert built == (Crop(padding=2), Flip())


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("crpo", "crop"),
        ({"padding": 4}, "no name"),
        ({"name": "crop", "padding": 0}, "padding"),
        ({"name": "crop", "size": 3}, "size"),
        ({"name": "flip", "chance": 0.0}, "chance"),
        ({"name": "rotation", "degrees": 200}, "degrees"),
        ({"name": "colour-jitter", "contrast": 1.5}, "contrast"),
    ],
)
def test_mistakes_are_named(config, message):
    with pytest.raises(ConfigError, match=message):
        LocalTraining(augmentation=(config,)).check()


def test_data_that_is_no_picture_is_refused(tiny):
    for kind in ENGINES:
        experiment = tiny(training={"augmentation": ["flip"]}, data={"source": "synthetic"}, engine={"kind": kind})
        with pytest.raises(DataError, match=r"training\.augmentation \(flip\) changes pictures, .* shape"):
            build_parts(experiment, workers=0)
    rng = np.random.default_rng(0)
    tokens = Samples(rng.integers(0, 9, (20, 8)), rng.integers(0, 2, 20))
    with pytest.raises(DataError, match="tokens"):
        augmenter(["crop"], Dataset("text", tokens, tokens, 2, tokens=True), torch.device("cpu"))
    noise = Samples(rng.normal(size=(20, 3, 8, 8)).astype(np.float32), rng.integers(0, 2, 20))
    with pytest.raises(DataError, match="black"):
        augmenter(["colour-jitter"], Dataset("noise", noise, noise, 2), torch.device("cpu"))


OPERATIONS = ["crop", "flip", {"name": "rotation", "degrees": 5}, "colour-jitter"]


def pictures_experiment(tiny, **training) -> muster.Experiment:
    return tiny(
        data=picture_data((3, 8, 8), 240),
        model={"name": "mlp"},
        partition={"clients": 6, "alpha": 100.0},
        training={"lr": 0.05, "batch_size": 8, "epochs": 2} | training,
        selection={"clients_per_round": 4},
        rounds=2,
    )


MIXTURES = pytest.mark.parametrize("augmentation", [["crop", "flip"], OPERATIONS], ids=["moved", "all"])


@MIXTURES
@pytest.mark.parametrize("kind", ["vectorised", "processes"])
def test_any_number_of_workers(tiny, kind, augmentation):
    experiment = pictures_experiment(tiny, augmentation=augmentation)
    experiment.engine = {"kind": kind}
    alone, *others = (muster.run(experiment, workers=workers) for workers in (0, 1, 2, 3))
    for other in others:
        assert np.array_equal(alone.parameters, other.parameters)
    experiment.training = {key: value for key, value in experiment.training.items() if key != "augmentation"}
    plain = muster.run(experiment, workers=0)
    assert not np.allclose(alone.parameters, plain.parameters, atol=1e-4)


@MIXTURES
@pytest.mark.parametrize("kind", ["vectorised", "inline"])
def test_a_resumed_run_goes_on_with_the_same_pictures(tiny, tmp_path, kind, augmentation):
    experiment = pictures_experiment(tiny, augmentation=augmentation)
    experiment.engine = {"kind": kind}

    class StopAfterOne(Observer):
        def wants_stop(self) -> bool:
            return True

    whole = muster.run(experiment, workers=0)
    muster.run(experiment, workers=0, out=tmp_path, observers=[StopAfterOne()])
    resumed = muster.run(experiment, workers=0, out=tmp_path, resume=True)
    assert np.array_equal(whole.parameters, resumed.parameters)


@pytest.mark.parametrize(
    ("model", "reason"),
    [("mlp", "vectorised engine.*every layer"), ("lenet", "local engine.*not vectorised: .*Conv2d")],
)
def test_the_engine_follows_from_the_model(tiny, model, reason):
    experiment = replace(pictures_experiment(tiny, augmentation=OPERATIONS), data=picture_data((3, 32, 32), 240))
    with build_parts(replace(experiment, model={"name": model}), workers=0).engine as engine:
        assert re.search(reason, engine.describe())


@pytest.mark.parametrize("shape", [(1, 5, 9), (3, 8, 8)])
@pytest.mark.parametrize("augmentation", [["crop"], ["flip"], ["flip", "crop"], ["rotation", "flip"], OPERATIONS])
def test_mini_batches_of_many_clients_change_as_each_would_alone(augmentation, shape):
    """To the bit, although sizes differ and one generator after the other is used."""
    grey = Normalisation((0.3,), (0.5,), 1 / 255)
    data = picture_data(shape, normalisation=COLOURS if shape[0] == 3 else grey)
    change = augmenter(augmentation, data, torch.device("cpu"))
    sizes = [5, 1, 8, 3, 8, 2]
    samples = data.normalisation.apply(torch.from_numpy(data.train.features[: sum(sizes)]))
    before = samples.clone()
    alone = [change(part, np.random.default_rng(number)) for number, part in enumerate(samples.split(sizes))]
    together = change.of_many(samples, sizes, (np.random.default_rng(number) for number in range(len(sizes))))
    assert torch.equal(together, torch.cat(alone))
    assert torch.equal(samples, before)
    assert not torch.equal(together, samples)


def runtime(augmentation=()) -> ClientRuntime:
    data = picture_data((3, 8, 8))
    training = LocalTraining(lr=0.1, batch_size=8, epochs=2, augmentation=augmentation)
    fed = FederatedData(data, Index.from_lists([np.arange(24), np.arange(24, 48)]))
    return ClientRuntime(fed, build_model("mlp", (3, 8, 8), 4, seed=0), training, Plain(), seed=0)


@pytest.mark.parametrize("probe", [ProbeNorm(batches=2), ProbeNorm(batches=1)])
def test_going_on_from_a_probe_is_the_training_without_one(probe):
    client = runtime(tuple(OPERATIONS))
    origin = torch.from_numpy(client.model.vector())
    job, straight, state = ClientTask.of("train", 1, Place(3, 0, 0), lr=0.1), torch.empty(len(origin)), {}
    client.train(job, origin, straight, {})
    client.ask(ClientTask.of("ask", 1, Place(3, 0, 0), lr=0.1, signals=(probe,)), origin, state)
    went_on = torch.empty(len(origin))
    client.train(job, origin, went_on, state)
    torch.testing.assert_close(went_on, straight, atol=1e-6, rtol=1e-5)


def test_measurements_see_the_pictures_as_they_are():
    losses = []
    for client in (runtime(), runtime(tuple(OPERATIONS))):
        origin = torch.from_numpy(client.model.vector())
        losses.append(
            client.ask(ClientTask.of("ask", 0, Place(0, 0, 0), lr=0.1, signals=(Loss(),)), origin, {})["loss"]
        )
    assert losses[0] == losses[1]
