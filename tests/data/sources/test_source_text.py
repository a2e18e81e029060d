"""Banking77 and the text encoders."""

from __future__ import annotations

import csv
import json
import sys
import types

import numpy as np
import pytest

from muster.core.errors import ConfigError, DataError
from muster.data.sources import _text, sources
from muster.data.sources._text import encode_texts

TRAIN = [("Where is my card?", "card"), ("My card, please!", "card"), ("Top up my account", "top_up")]
TEST = [("a card", "card"), ("Top up", "top_up")]


def write_csv(path, rows) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([("text", "category"), *rows])


@pytest.fixture
def bank(isolated):
    folder = isolated / "banking77"
    write_csv(folder / "train.csv", TRAIN)
    write_csv(folder / "test.csv", TEST)
    (folder / "categories.json").write_text(json.dumps(["top_up", "card"]))
    return folder


@pytest.fixture
def fake_model(monkeypatch):
    """Stands for sentence-transformers: embeds a text as its length and its number of words; counts its calls."""
    calls = []

    class SentenceTransformer:
        def __init__(self, where, device):
            if "broken" in where:
                raise OSError("no such model")
            calls.append(where)

        def encode(self, texts, **options):
            return np.array([[len(text), len(text.split())] for text in texts], dtype=np.float64)

    module = types.ModuleType("sentence_transformers")
    monkeypatch.setattr(module, "SentenceTransformer", SentenceTransformer, raising=False)
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    return calls


@pytest.mark.usefixtures("bank")
def test_names_and_labels_follow_the_list_of_categories():
    data = sources.build("banking77", {"encoder": "tfidf"})
    assert data.class_names == ("top_up", "card")
    assert data.train.labels.tolist() == [1, 1, 0]
    assert data.test.labels.tolist() == [1, 0]
    assert data.train.features.dtype == np.float32


def test_without_a_list_categories_are_sorted(bank):
    (bank / "categories.json").unlink()
    data = sources.build("banking77", {"encoder": "tfidf"})
    assert data.class_names == ("card", "top_up")
    assert data.train.labels.tolist() == [0, 0, 1]


def test_unknown_category_and_columns(bank):
    write_csv(bank / "test.csv", [("x", "loan")])
    with pytest.raises(DataError, match="loan"):
        sources.build("banking77", {"encoder": "tfidf"})
    (bank / "test.csv").write_text("question,label\nx,card\n")
    with pytest.raises(DataError, match="no column 'text'"):
        sources.build("banking77", {"encoder": "tfidf"})


@pytest.mark.parametrize("content", ["{", '{"card": 0}', "[1, 2]"])
def test_a_list_of_categories_that_is_none(bank, content):
    (bank / "categories.json").write_text(content)
    with pytest.raises(DataError, match=r"categories\.json"):
        sources.build("banking77", {"encoder": "tfidf"})


def test_a_text_that_is_missing_is_not_the_word_none(isolated, write_parquet):
    for split in ("train", "test"):
        write_parquet(isolated / f"banking77/{split}-0.parquet", text=["a card", None], label=[0, 1])
    with pytest.raises(DataError, match="sample 1 has no 'text'"):
        sources.build("banking77", {"encoder": "words"})


def test_texts_without_words():
    with pytest.raises(DataError, match="finds no words"):
        encode_texts(["?", "!"], ["a word"], "tfidf", 8)


def test_parquet(isolated, write_parquet):
    for split, rows in (("train", TRAIN), ("test", TEST)):
        write_parquet(
            isolated / f"banking77/default/{split}/0000.parquet",
            names={"label": ["card", "top_up"]},
            text=[text for text, _ in rows],
            label=[int(name == "top_up") for _, name in rows],
        )
    data = sources.build("banking77", {"encoder": "words", "length": 4})
    assert data.train.labels.tolist() == [0, 0, 1]
    assert data.class_names == ("card", "top_up")


@pytest.mark.usefixtures("bank")
def test_embeddings_are_computed_once(fake_model):
    first = sources.build("banking77", {"encoder": "some/model"})
    again = sources.build("banking77", {"encoder": "some/model"})
    assert fake_model == ["some/model"]
    assert first.train.features[0].tolist() == [17, 4]
    assert (first.train.features == again.train.features).all()
    sources.build("banking77", {"encoder": "other/model"})
    assert fake_model == ["some/model", "other/model"]


@pytest.mark.usefixtures("fake_model")
def test_minilm_comes_from_its_package_or_by_name(fake_model, monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    encode_texts(["a"], ["b"], "minilm", 8)
    package = types.SimpleNamespace(origin=str(tmp_path / "__init__.py"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: package)
    encode_texts(["a"], ["b"], "minilm", 8)
    assert fake_model == [_text.MINILM_NAME, str(tmp_path / "model")]


@pytest.mark.usefixtures("fake_model")
def test_model_that_cannot_be_loaded():
    with pytest.raises(DataError, match="no such model"):
        encode_texts(["a"], ["b"], "broken/model", 8)


def test_missing_library_is_said_and_not_replaced(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(DataError, match=r"(?s)not installed.*tfidf"):
        encode_texts(["a"], ["b"], "minilm", 8)


def test_tfidf_learns_from_the_training_texts_only():
    features = encode_texts(["red card", "blue card"], ["red wolf", "wolf"], "tfidf", 100)
    assert features.train.shape == (2, 100)
    assert np.count_nonzero(features.train.any(axis=0)) == 5  # red, blue, card, red card, blue card
    assert np.linalg.norm(features.train, axis=1) == pytest.approx([1, 1])
    assert (features.test[0] > 0).sum() == 1
    assert not features.test[1].any()
    assert encode_texts(["red card", "blue card"], ["red"], "tfidf", 2).train.shape == (2, 2)


def test_hashing_does_not_depend_on_other_texts():
    alone = encode_texts(["red card"], ["blue wolf"], "hashing", 64)
    beside = encode_texts(["wholly different", "red card"], ["blue wolf"], "hashing", 64)
    assert (alone.train[0] == beside.train[1]).all()
    assert (alone.test == beside.test).all()


def test_word_ids():
    features = encode_texts(["the cat the dog", "The end"], ["the bird's cat", ""], "words", 2, 3)
    # "the" comes three times; of the words that come once, "cat" is first in the alphabet.
    assert features.train.tolist() == [[2, 3, 2], [2, 1, 0]]
    assert features.test.tolist() == [[2, 1, 3], [0, 0, 0]]
    assert features.tokens


@pytest.mark.parametrize(("width", "length"), [(0, 4), (4, 0)])
def test_bad_sizes(width, length):
    with pytest.raises(ConfigError, match="at least 1"):
        encode_texts(["a"], ["b"], "words", width, length)
