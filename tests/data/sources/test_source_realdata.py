"""The real data sets, where MUSTER_DATA has them."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest

from muster.data.sources import sources

pytestmark = pytest.mark.realdata

#: Training samples, test samples, sample shape, classes.
FACTS = {
    "mnist": (60_000, 10_000, (1, 28, 28), 10),
    "fashion-mnist": (60_000, 10_000, (1, 28, 28), 10),
    "cmnist": (60_000, 10_000, (3, 28, 28), 2),
    "cifar10": (50_000, 10_000, (3, 32, 32), 10),
}


@pytest.fixture(scope="module")
def cache():
    """One cache for all tests of this file; half a gigabyte, so it does not outlive them."""
    with tempfile.TemporaryDirectory() as folder:
        yield folder


@pytest.fixture
def load(cache, monkeypatch):
    """Loads a data set from MUSTER_DATA, or skips when it is not there."""
    root = os.environ.get("MUSTER_DATA")

    def build(name: str, **options):
        folder = "mnist" if name == "cmnist" else name
        if not root or not (Path(root) / folder).is_dir():
            pytest.skip(f"the real data set {folder} is not in MUSTER_DATA ({root or 'not set'})")
        monkeypatch.setenv("MUSTER_CACHE", cache)
        return sources.build(name, options)

    return build


@pytest.mark.parametrize("name", FACTS)
def test_pictures(load, name):
    data = load(name)
    train, test, shape, classes = FACTS[name]
    assert (len(data.train), len(data.test), data.sample_shape, data.classes) == (train, test, shape, classes)
    assert np.unique(data.train.labels).tolist() == list(range(classes))
    if name != "cmnist":
        assert np.bincount(data.test.labels).min() > 800
        pixels = data.train.features * np.float32(data.normalisation.scale)
        mean, std = pixels.mean(axis=(0, 2, 3)), pixels.std(axis=(0, 2, 3))
        # The pictures of CIFAR-10 here may be JPEG, so the usual figures hold to a percent.
        assert mean == pytest.approx(data.normalisation.mean, abs=0.01)
        assert std == pytest.approx(data.normalisation.std, abs=0.01)


@pytest.mark.parametrize("name", ["cifar10", "shakespeare", "mnist"])
def test_second_load_is_fast(load, name):
    load(name)
    started = time.perf_counter()
    data = load(name)
    assert time.perf_counter() - started < 0.5
    assert isinstance(data.train.features.base, np.memmap)


def test_pacs(load):
    data = load("pacs")
    assert (len(data.train) + len(data.test), data.sample_shape, data.classes) == (9991, (3, 64, 64), 7)
    groups = sum(np.bincount(part.labels * 4 + part.attributes) for part in (data.train, data.test))
    assert groups.reshape(7, 4).tolist() == [
        [379, 389, 189, 772],
        [255, 457, 202, 740],
        [285, 346, 182, 753],
        [184, 135, 186, 608],
        [201, 324, 199, 816],
        [295, 288, 280, 80],
        [449, 405, 432, 160],
    ]
    assert data.class_names == ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")


def test_cmnist_has_the_test_groups_of_the_authors_code(load):
    test = load("cmnist").test
    groups = np.bincount(test.labels * 2 + test.attributes).reshape(2, 2)
    assert groups.tolist() == [[2571, 2568], [2505, 2356]]


def test_cmnist_colours_are_independent_of_the_class(load):
    train = load("cmnist").train
    table = np.bincount(train.labels * 2 + train.attributes).reshape(2, 2) / len(train)
    assert table == pytest.approx(np.outer(table.sum(axis=1), table.sum(axis=0)), abs=0.005)


def test_shakespeare(load):
    data = load("shakespeare")
    plays = {name.split(":")[0] for name in data.owner_names}
    assert len(plays) == 37
    assert 1_000 < len(data.owner_names) < 1_300
    assert "sonnets" not in plays
    assert "hamlet: HAM" in data.owner_names
    assert "midsummer nights dream: THESEUS" in data.owner_names
    assert 350_000 < len(data.train) < 400_000
    assert data.train.features.max() < data.classes == 80


@pytest.mark.parametrize("encoder", ["tfidf", "hashing", "words"])
def test_banking77(load, encoder):
    data = load("banking77", encoder=encoder)
    assert (len(data.train), len(data.test), data.classes) == (10_003, 3_080, 77)
    assert np.bincount(data.test.labels).tolist() == [40] * 77
    assert data.class_names[0] == "card_arrival"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_banking77_embeddings_separate_intents(load):
    pytest.importorskip("sentence_transformers", reason="needs the extra `text`")
    from sklearn.neighbors import NearestCentroid

    data = load("banking77", encoder="minilm")
    assert data.sample_shape == (384,)
    model = NearestCentroid().fit(data.train.features, data.train.labels)
    assert model.score(data.test.features, data.test.labels) > 0.8
