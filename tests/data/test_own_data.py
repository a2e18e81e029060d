"""Own data: what is taken over, how it is divided, and what each mistake is told as."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data import Dataset as TorchDataset

import muster
from muster.core.errors import ConfigError, DataError
from muster.data import (
    Dataset,
    FederatedData,
    Index,
    Samples,
    from_arrays,
    from_folder,
    from_huggingface,
    from_pandas,
    from_torch,
)

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(60, 4))
LABELS = np.arange(60) % 3
CLIENTS = np.arange(60) % 5


def with_nan(at):
    features = FEATURES.copy()
    features[at] = np.nan
    return features


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=20, max_size=60), st.sampled_from([0.1, 0.2, 0.5]))
def test_every_sample_is_once_in_training_or_test_and_with_its_client(owners, share):
    numbers = np.arange(len(owners), dtype=np.float64)[:, None]
    if all(share * owners.count(owner) < 1 for owner in owners):
        with pytest.raises(DataError, match="nothing to test on"):
            from_arrays(numbers, np.arange(len(owners)) % 2, clients=owners, test_share=share)
        return
    data = from_arrays(numbers, np.arange(len(owners)) % 2, clients=owners, test_share=share)
    train, test = data.dataset.train, data.dataset.test
    found = np.concatenate([train.features, test.features]).ravel().astype(int)
    assert sorted(found.tolist()) == list(range(len(owners)))
    names = data.dataset.owner_names
    assert sorted(map(int, names)) == sorted(set(owners))
    for split, index in ((train, data.train_index), (test, data.test_index)):
        for client in range(data.clients):
            for row in index[client]:
                assert owners[int(split.features[row, 0])] == int(names[client])
    assert (data.sizes >= 1).all()


def test_labels_of_any_kind_are_taken_as_classes():
    expected = from_arrays(FEATURES, LABELS).train.labels
    for labels in (LABELS.astype(np.uint8), LABELS.tolist(), torch.from_numpy(LABELS), pd.Series(LABELS)):
        found = from_arrays(FEATURES, labels).train.labels
        assert found.dtype == np.int64
        assert np.array_equal(found, expected)
    words = from_arrays(FEATURES, np.array(["cat", "ant", "bee"])[LABELS])
    assert words.class_names == ("ant", "bee", "cat")
    assert np.array_equal(np.array([2, 0, 1])[expected], words.train.labels)
    assert from_arrays(FEATURES, LABELS > 0).classes == 2


@pytest.mark.parametrize("kind", [np.uint8, np.bool_, np.int16])
@pytest.mark.parametrize("engine", ["vectorised", "inline"])
def test_small_label_types_train_in_every_engine(kind, engine):
    # Sixteen classes and 100 samples of each: sums over classes × classes overflow bytes.
    labels = (np.arange(320) % (2 if kind is np.bool_ else 16)).astype(kind)
    features = RNG.normal(size=(320, 4)).astype(np.float32)
    samples = Samples(features, labels)
    data = Dataset("mine", samples, samples, classes=2 if kind is np.bool_ else 16)
    experiment = muster.Experiment(
        rounds=1, data=data, partition={"scheme": "iid", "clients": 8}, training={"lr": 0.1}, engine=engine
    )
    result = muster.run(experiment, workers=0)
    assert 0 <= result.final("accuracy") <= 1
    network = result.model()
    predicted = network(torch.from_numpy(features)).argmax(1).numpy()
    assert result.final("accuracy") == pytest.approx((predicted == labels).mean())


MISTAKES = {
    "fewer labels": (lambda: from_arrays(FEATURES, LABELS[:50]), "60 training samples and 50 labels"),
    "NaN": (lambda: from_arrays(with_nan((7, 2)), LABELS), "first: nan in sample 7, position 2"),
    "infinite": (lambda: from_arrays(np.where(FEATURES[3, 1] == FEATURES, np.inf, FEATURES), LABELS), "sample 3"),
    "too large for single precision": (
        lambda: from_arrays(np.where(FEATURES[3, 1] == FEATURES, 1e300, FEATURES), LABELS),
        "single precision",
    ),
    "words as features": (
        lambda: from_arrays(FEATURES.astype(str), LABELS),
        "Expected: numbers",
    ),
    "ragged": (lambda: from_arrays([[1.0], [1.0, 2.0]], [0, 1]), "samples of the same shape"),
    "one axis": (lambda: from_arrays(FEATURES[:, 0], LABELS), r"features\[:, None\]"),
    "labels from 1": (lambda: from_arrays(FEATURES, LABELS + 1), r"labels - 1"),
    "negative labels": (lambda: from_arrays(FEATURES, LABELS - 1), "from -1 to 1"),
    "one-hot": (lambda: from_arrays(FEATURES, np.eye(3)[LABELS].astype(int)), r"argmax\(axis=1\)"),
    "a column of labels": (lambda: from_arrays(FEATURES, LABELS[:, None]), r"labels\[:, 0\]"),
    "float labels": (lambda: from_arrays(FEATURES, LABELS * 1.0), "task='regression'"),
    "NaN labels": (lambda: from_arrays(FEATURES, np.where(LABELS, 1.0, np.nan)), "training labels: 20 of 60"),
    "scattered labels": (lambda: from_arrays(FEATURES, LABELS * 1000), "return_inverse"),
    "labels beyond classes": (lambda: from_arrays(FEATURES, LABELS, classes=2), "first: 2 in sample 2"),
    "unknown word": (
        lambda: from_arrays(FEATURES, np.array(["a", "b", "c"])[LABELS], class_names=["a", "b"]),
        "label is 'c'",
    ),
    "fewer clients": (
        lambda: from_arrays(FEATURES, LABELS, clients=CLIENTS[:9]),
        r"clients have the shape \(9,\)",
    ),
    "client without a name": (
        lambda: from_arrays(FEATURES, LABELS, clients=[None, *CLIENTS[1:]]),
        "sample 0 has no entry among the clients",
    ),
    "client only in the test data": (
        lambda: from_arrays(
            FEATURES, LABELS, clients=CLIENTS, test=(FEATURES, LABELS), test_clients=np.where(LABELS, 0, 9)
        ),
        "first: '9'",
    ),
    "other shape of test data": (
        lambda: from_arrays(FEATURES, LABELS, test=(FEATURES[:, :3], LABELS)),
        r"test sample has the shape \(3,\)",
    ),
    "test data no pair": (lambda: from_arrays(FEATURES, LABELS, test=FEATURES), "not a pair"),
    "unknown task": (lambda: from_arrays(FEATURES, LABELS, task="regresion"), "did you mean 'regression'"),
    "multi-label with a two": (
        lambda: from_arrays(FEATURES, np.tile(LABELS[:, None], 2), task="multi-label"),
        "sample 2 has",
    ),
    "NaN target": (
        lambda: from_arrays(FEATURES, with_nan((5, 0))[:, 0], task="regression"),
        "training labels.*sample 5",
    ),
    "maps of another size": (
        lambda: from_arrays(np.zeros((4, 1, 6, 6)), np.zeros((4, 5, 6), dtype=int), task="segmentation"),
        "height × width",
    ),
    "nothing to test on": (
        lambda: from_arrays(FEATURES[:6], [0, 1] * 3, clients=range(6)),
        "leaves nothing to test on",
    ),
    "lengths in a data set": (lambda: Samples(FEATURES, LABELS[:50]), "60 samples have 50 labels"),
    "no column": (
        lambda: from_pandas(pd.DataFrame({"a": [1.0], "ill": [0]}), label="il"),
        "did you mean 'ill'",
    ),
    "gap in a table": (
        lambda: from_pandas(pd.DataFrame({"a": [1.0, None], "y": [0, 1]}), label="y"),
        "column 'a'.*first: row 1",
    ),
    "words in a table": (
        lambda: from_pandas(pd.DataFrame({"a": ["x", "y"], "y": [0, 1]}), label="y"),
        "get_dummies",
    ),
    "empty client": (
        lambda: from_torch({"a": TensorDataset(torch.zeros(3, 2), torch.zeros(3)), "b": Items([])}),
        "client 'b' has no training samples",
    ),
    "items of a data set": (
        lambda: from_torch(Items([(torch.zeros(2), 0), torch.zeros(2)])),
        "item 1 is a Tensor",
    ),
    "shapes in a data set": (
        lambda: from_torch(Items([(torch.zeros(2), 0), (torch.zeros(3), 1)])),
        r"sample 1 has the shape \(3,\)",
    ),
    "an item that cannot be read": (
        lambda: from_torch(Items([(torch.zeros(2), 0), Unreadable()])),
        "item 1 cannot be read.*no such picture",
    ),
    "a loader": (
        lambda: from_torch(DataLoader(TensorDataset(torch.zeros(3, 2), torch.zeros(3)))),
        r"DataLoader cannot be indexed.*loader\.dataset",
    ),
    "masked features": (
        lambda: from_arrays(np.ma.masked_greater(FEATURES, 1), LABELS),
        "training features have masked values",
    ),
    "a word missing": (
        lambda: from_arrays(FEATURES, ["a", "b", None] * 20),
        "label of sample 2 is None.*or words",
    ),
    "words and numbers": (
        lambda: from_arrays(FEATURES, np.array(["a", "b", 3, "c"] * 15, dtype=object)),
        "label of sample 2 is 3.*of one type",
    ),
    "the name of a data set": (lambda: from_huggingface("mnist"), r"of type str.*load_dataset"),
    "pictures of several sizes": (
        lambda: from_huggingface(
            SimpleHub({"image": [Image.new("L", (4, 4)), Image.new("L", (5, 4))], "label": [0, 1]}, None)
        ),
        "column 'image' are not an array.*same shape",
    ),
}


class Items(TorchDataset):
    """A data set that is a list."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, number):
        if isinstance(item := self.items[number], Unreadable):
            raise OSError("no such picture")
        return item


class Unreadable:
    """An item that cannot be read."""


@pytest.mark.parametrize("mistake", list(MISTAKES))
def test_mistakes_say_what_and_where(mistake):
    make, message = MISTAKES[mistake]
    with pytest.raises((DataError, ConfigError), match=rf"(?s){message}"):
        make()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"labels": LABELS + 1}, "go from 1 to 3"),
        ({"features": with_nan((11, 3)).astype(np.float32)}, "sample 11, position 3"),
        ({"labels": LABELS * 1.0}, "float64"),
    ],
)
@pytest.mark.parametrize("divided", [True, False])
def test_data_objects_are_checked_before_anything_trains(change, message, divided):
    given = {"features": FEATURES.astype(np.float32), "labels": LABELS} | change
    dataset = Dataset("mine", Samples(**given), Samples(**given), classes=3)
    data = FederatedData(dataset, Index.from_owners(CLIENTS, 5)) if divided else dataset
    with pytest.raises(DataError, match=message):
        muster.run(muster.Experiment(rounds=1, data=data, partition={"scheme": "iid", "clients": 5}))


def test_an_index_beyond_the_data_names_the_client():
    samples = Samples(FEATURES.astype(np.float32), LABELS)
    data = FederatedData(Dataset("mine", samples, samples, 3), Index.from_lists([[0, 1], [2, 60]]))
    with pytest.raises(DataError, match="client 1 has the training sample 60"):
        muster.run(muster.Experiment(rounds=1, data=data))


def test_one_column_of_features_is_named_as_a_word():
    table = pd.DataFrame({"age": range(20), "name": ["x"] * 20, "ill": [0, 1] * 10})
    assert from_pandas(table, label="ill", features="age").sample_shape == (1,)


def test_whole_numbers_in_a_column_of_objects_are_classes():
    labels = np.array(LABELS.tolist(), dtype=object)
    assert np.array_equal(from_arrays(FEATURES, labels).train.labels, from_arrays(FEATURES, LABELS).train.labels)


def test_other_features_are_another_experiment():
    def fingerprint(features):
        return muster.Experiment(data=from_arrays(features, LABELS, clients=CLIENTS)).fingerprint

    assert fingerprint(FEATURES) == fingerprint(FEATURES.copy())
    assert fingerprint(FEATURES) != fingerprint(FEATURES * 2)


def test_tables_folders_and_data_sets_give_the_same_federation(tmp_path):
    features = np.round(FEATURES, 3).astype(np.float32)
    names = np.array(["ann", "bob", "eve", "joe", "liz"])[CLIENTS]
    expected = from_arrays(features, LABELS, clients=names)
    table = pd.DataFrame(features, columns=list("abcd")).assign(y=LABELS, who=names)
    for at, (row, label, name) in enumerate(zip(features, LABELS, names, strict=True)):
        place = tmp_path / name / f"class {label}"
        place.mkdir(parents=True, exist_ok=True)
        np.save(place / f"{at:03}.npy", row)
    hub = SimpleHub({"f": features.tolist(), "label": LABELS.tolist(), "who": names.tolist()}, ["x", "y", "z"])
    found = {
        "table": from_pandas(table, label="y", client="who"),
        "data set": from_torch(TensorDataset(torch.from_numpy(features), torch.from_numpy(LABELS)), clients=names),
        "hub": from_huggingface(hub, client="who"),
    }
    for kind, data in found.items():
        assert data.dataset.owner_names == ("ann", "bob", "eve", "joe", "liz"), kind
        assert np.array_equal(data.dataset.train.features, expected.dataset.train.features), kind
        assert np.array_equal(data.dataset.train.labels, expected.dataset.train.labels), kind
        assert np.array_equal(data.train_index.samples, expected.train_index.samples), kind
    assert found["hub"].dataset.class_names == ("x", "y", "z")
    folder = from_folder(tmp_path)
    assert folder.dataset.class_names == ("class 0", "class 1", "class 2")
    assert folder.sizes.tolist() == expected.sizes.tolist()
    # The same samples with the same labels, whichever of them are for testing.
    pairs = {
        tuple(row.tolist()): int(label)
        for split in (folder.dataset.train, folder.dataset.test)
        for row, label in zip(split.features, split.labels, strict=True)
    }
    assert pairs == {tuple(row.tolist()): int(label) for row, label in zip(features, LABELS, strict=True)}


class SimpleHub:
    """As much of a data set of the library `datasets` as is looked at."""

    def __init__(self, columns, class_names):
        self.columns, self.column_names = columns, list(columns)
        self.features = {"label": SimpleNamespace(names=class_names)}

    def __getitem__(self, name):
        return self.columns[name]


def test_hub_pictures_become_channels_first():
    pictures = [Image.fromarray(RNG.integers(0, 255, (5, 7, 3), dtype=np.uint8)) for _ in range(20)]
    data = from_huggingface(SimpleHub({"image": pictures, "label": [0, 1] * 10}, None))
    assert data.sample_shape == (3, 5, 7)
    assert data.normalisation.scale == pytest.approx(1 / 255)
    with pytest.raises(DataError, match="which of them are the features"):
        from_huggingface(SimpleHub({"a": [1], "b": [2], "label": [0]}, None))


def test_folders_of_pictures_run_from_a_config(tmp_path):
    for client in ("north", "south"):
        for label, grey in (("dark", 30), ("light", 220)):
            for split, count in (("train", 6), ("test", 2)):
                place = tmp_path / "photos" / split / client / label
                place.mkdir(parents=True)
                for number in range(count):
                    pixels = np.clip(RNG.normal(grey, 20, (12, 10, 3)), 0, 255).astype(np.uint8)
                    Image.fromarray(pixels).save(place / f"{number}.png")
    config = tmp_path / "photos.toml"
    config.write_text(
        f"""rounds = 3
[data]
source = "folder"
path = "{tmp_path / "photos"}"
size = 8
colours = "grey"
[partition]
scheme = "natural"
[training]
lr = 0.5
batch_size = 4
[selection]
method = "random"
clients_per_round = 2
"""
    )
    result = muster.run(muster.load(config), workers=0)
    assert result.final("accuracy") > 0.9
    data = from_folder(tmp_path / "photos", size=8)
    assert data.dataset.sample_shape == (3, 8, 8)
    assert data.sizes.tolist() == [12, 12]
    assert data.test_index.sizes.tolist() == [4, 4]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda root: (root / "south" / "light" / "9.png").write_bytes(b"no picture"), "9.png"),
        (lambda root: Image.new("RGB", (3, 3)).save(root / "south" / "light" / "9.png"), "3 × 3 pixels"),
        (lambda root: (root / "empty").mkdir(), "empty has no samples"),
        (lambda root: np.save(root / "south" / "light" / "9.npy", np.zeros(3)), "array among pictures"),
    ],
)
def test_wrong_folders_name_the_file(tmp_path, change, message):
    for client in ("north", "south"):
        for label in ("dark", "light"):
            (tmp_path / client / label).mkdir(parents=True)
            for number in range(5):
                Image.new("RGB", (6, 6)).save(tmp_path / client / label / f"{number}.png")
    from_folder(tmp_path)
    change(tmp_path)
    with pytest.raises(DataError, match=message):
        from_folder(tmp_path)
    for options, wrong in (({"colours": "gray"}, "did you mean 'grey'"), ({"size": 0}, "data.size")):
        with pytest.raises(ConfigError, match=wrong):
            from_folder(tmp_path, **options)


@pytest.mark.parametrize("kinds", [(np.uint8, np.float32), (np.float32, np.uint8)])
def test_bytes_and_other_numbers_are_not_mixed(tmp_path, kinds):
    """Only bytes are scaled, and numbers from 0 to 1 would all become the byte 0."""
    for label, kind in zip(("dark", "light"), kinds, strict=True):
        (tmp_path / "north" / label).mkdir(parents=True)
        for number in range(5):
            np.save(tmp_path / "north" / label / f"{number}.npy", np.ones(3, dtype=kind))
    with pytest.raises(DataError, match=r"light/\d\.npy holds numbers of the type"):
        from_folder(tmp_path)


def test_next_tokens_are_the_texts_moved_on():
    texts = RNG.integers(0, 7, (20, 6))
    data = from_arrays(texts, task="next-token")
    assert np.array_equal(data.train.features[:, 1:], data.train.labels[:, :-1])
    assert (data.classes, data.tokens) == (7, True)


def test_data_are_shown_in_one_line():
    data = from_arrays(FEATURES, LABELS, clients=CLIENTS)
    assert repr(data) == "FederatedData(5 clients, 'own data': 50 + 10 test samples of 4, 3 classes)"
    assert repr(data.dataset.train) == "Samples(50 of shape (4,))"
    assert repr(data.train_index) == "Index(5 clients, 50 samples)"
    targets = from_arrays(FEATURES, FEATURES[:, 0], task="regression")
    assert repr(targets).endswith("test samples of 4, regression)")


def test_a_partition_of_data_that_has_its_clients_is_refused():
    data = from_arrays(FEATURES, LABELS, clients=CLIENTS)
    small = {"rounds": 1, "data": data, "selection": {"method": "random", "clients_per_round": 2}}
    with pytest.raises(ConfigError, match=r"its 5 clients already, and partition says to divide it \(iid\)"):
        muster.run(muster.Experiment(**small, partition={"scheme": "iid", "clients": 3}))
    natural = muster.Experiment(**small, partition={"scheme": "natural"})
    assert (
        muster.run(natural, workers=0).selections == muster.run(muster.Experiment(**small), workers=0).selections
    )


def test_clients_that_are_missing_are_counted():
    clients = CLIENTS.astype(float)
    clients[[7, 9, 30]] = np.nan
    with pytest.raises(DataError, match="training sample 7 has no entry among the clients, nor have 2 others"):
        from_arrays(FEATURES, LABELS, clients=clients)
