"""Late fusion with encoders of its own: a ResNet for pictures, a BERT for texts, frozen or trained."""

import csv

import numpy as np
import pytest
import torch
from PIL import Image

pytest.importorskip("transformers", reason="needs the extra `text`")

import muster
from fixtures.bert import write_bert
from muster.core.errors import ConfigError, DataError
from muster.core.parameters import spec_of
from muster.data.sources import sources
from muster.experiment import from_dict
from muster.experiment.features import with_features
from muster.experiment.parts import build_ingredients, build_parts
from muster.models import build_model
from muster.models.freezing import agrees, split

SIZE, LENGTH = 32, 8
WORDS = {"fire": "lost money", "flood": "top up", "none": "where is my card"}


@pytest.fixture
def medic(tmp_path, tiny_bert, monkeypatch):
    """MEDIC's files with three kinds of posts, which colours and words tell apart; the folder of everything."""
    monkeypatch.setenv("MUSTER_CACHE", str(tmp_path / "cache"))
    folder, rng = tmp_path / "medic", np.random.default_rng(0)
    (folder / "images").mkdir(parents=True)
    for split_name, count in (("train", 36), ("test", 12)):
        with (folder / f"MEDIC_{split_name}.tsv").open("w", newline="") as stream:
            rows = csv.writer(stream, delimiter="\t")
            rows.writerow(("image_path", "tweet_text", "disaster_types"))
            for number in range(count):
                kind = number % 3
                pixels = rng.integers(0, 100, (40, 50, 3)).astype(np.uint8)
                pixels[:, :, kind] += 150
                Image.fromarray(pixels).save(folder / "images" / f"{split_name}{number}.png")
                label = sorted(WORDS)[kind]
                rows.writerow((f"images/{split_name}{number}.png", WORDS[label], label))
    torch.save(build_model("resnet18", (3, SIZE, SIZE), 1000, seed=4).state_dict(), tmp_path / "resnet18.pt")
    return tmp_path


def experiment(place, sections=None, **model):
    values = {
        "rounds": 2,
        "data": {
            "source": "medic",
            "encoder": "wordpiece",
            "vocabulary": str(place / "bert"),
            "length": LENGTH,
            "image_size": SIZE,
            "data_dir": str(place),
        },
        "partition": {"scheme": "iid", "clients": 4},
        "model": {
            "name": "late-fusion",
            "image_shape": [3, SIZE, SIZE],
            "width": 8,
            "image_encoder": "resnet18",
            "image_weights": str(place / "resnet18.pt"),
            "text_encoder": "bert",
            "text_folder": str(place / "bert"),
        }
        | model,
        "training": {"lr": 0.02, "batch_size": 4, "drop_last": True},
        "selection": {"method": "random", "clients_per_round": 2},
    }
    return from_dict(values | (sections or {}))


def test_a_sample_is_a_picture_and_ids(medic):
    data = build_ingredients(experiment(medic)).data.dataset
    assert data.sample_shape == (3 * SIZE * SIZE + LENGTH,)
    ids = data.train.features[0, -LENGTH:]
    assert ids[0] == 3  # [CLS]
    assert (ids == np.round(ids)).all()
    assert data.vocabulary
    assert data.picture.shape == (3, SIZE, SIZE)


def test_the_encoders_are_those_of_the_files(medic):
    model = build_ingredients(experiment(medic)).module
    resnet = build_model("resnet18", (3, SIZE, SIZE), 1000, seed=4)
    assert torch.equal(model.image_encoder.layer4[1].conv2.weight, resnet.layer4[1].conv2.weight)
    bert = build_model("bert", (LENGTH,), 3, {"folder": str(medic / "bert")})
    theirs, ours = bert.encoder.state_dict(), model.text_encoder.state_dict()
    assert all(torch.equal(theirs[name], tensor) for name, tensor in ours.items())
    spec = spec_of(model)
    assert spec.final_layer_name == "fc"
    assert not spec.frozen


@pytest.mark.parametrize(
    ("freeze", "gone"),
    [
        ("backbone", ("image_encoder.", "text_encoder.")),
        (["image_encoder"], ("image_encoder.",)),
        (["text_encoder"], ("text_encoder.",)),
    ],
)
def test_frozen_branches_do_not_travel_and_are_computed_once(medic, freeze, gone):
    run = experiment(medic, freeze=freeze)
    model, data = build_ingredients(run).module, build_ingredients(run).data
    names = [entry.name for entry in spec_of(model).entries]
    assert not any(name.startswith(gone) for name in names)
    parts = split(model)
    few, _ = data.tensors(data.dataset.train, np.arange(5))
    assert agrees(model, parts, few)
    assert spec_of(parts.rest) == spec_of(model)
    # Vectors stand in the place of what is encoded: 512 numbers for a picture, 16 for a text.
    pixels = 512 if "image_encoder." in gone else 3 * SIZE * SIZE
    assert parts.backbone(few).shape == (5, pixels + (16 if "text_encoder." in gone else LENGTH))


def test_a_frozen_branch_without_weights_is_said(medic, caplog):
    build_ingredients(experiment(medic, freeze="backbone"))
    build_ingredients(experiment(medic, freeze=["text_encoder"], image_weights=None))
    assert "drawn at random" not in caplog.text
    build_ingredients(experiment(medic, freeze=["image_encoder"], image_weights=None))
    assert "drawn at random" in caplog.text


def test_frozen_branches_are_told_apart_and_the_rest_is_not(medic):
    shapes = []
    for freeze in ("backbone", ["image_encoder"], ["text_encoder"]):
        for seed in (0, 1):
            parts = build_ingredients(experiment(medic, {"seed": seed}, freeze=freeze))
            shapes.append(with_features(parts.data, parts.module, workers=0)[0].dataset.sample_shape)
    pixels = 3 * SIZE * SIZE
    assert [shape[0] for shape in shapes[::2]] == [512 + 16, 512 + LENGTH, pixels + 16]
    # What is trained starts from other numbers with another seed; what is frozen comes from files.
    assert len(list((medic / "cache" / "decoded").glob("features-*"))) == 3


def test_training_on_vectors_is_training_the_network(medic, monkeypatch):
    quick = muster.run(experiment(medic, freeze="backbone"), workers=0)
    monkeypatch.setattr("muster.experiment.parts.with_features", lambda data, module, **_: (data, module))
    slow = muster.run(experiment(medic, freeze="backbone"), workers=0)
    np.testing.assert_allclose(quick.parameters, slow.parameters, atol=1e-4)
    assert quick.spec == slow.spec


def test_everything_can_be_trained(medic):
    run = experiment(medic, {"rounds": 1})
    before = build_ingredients(run).module.state_dict()
    result = muster.run(run, workers=0)
    after = result.model().state_dict()
    for part in (
        "image_encoder.conv1.weight",
        "text_encoder.bert.encoder.layer.0.output.dense.weight",
        "fc.weight",
    ):
        assert not torch.equal(before[part], after[part])
    assert result.ledger.total().bytes_up == 2 * result.spec.bytes


def test_pictures_are_augmented_and_texts_are_not(medic):
    augmentation = ["flip", "colour-jitter", "rotation"]
    training = {"lr": 0.02, "batch_size": 4, "drop_last": True, "augmentation": augmentation}
    parts = build_parts(experiment(medic, {"training": training}, freeze="backbone"), workers=0)
    from muster.training.augmentation import augmenter

    data = parts.data
    change = augmenter(augmentation, data.dataset, torch.device("cpu"))
    samples, _ = data.tensors(data.dataset.train, np.arange(6))
    changed = change(samples, np.random.default_rng(0))
    assert changed.shape == samples.shape
    assert torch.equal(changed[:, -LENGTH:], samples[:, -LENGTH:])
    assert not torch.allclose(changed[:, :-LENGTH], samples[:, :-LENGTH])
    # Jittered pixels stay within black and white.
    pixels = changed[:, :-LENGTH].reshape(-1, 3, SIZE, SIZE)
    palette = data.dataset.picture.normalisation
    back = pixels * torch.tensor(palette.std).view(1, 3, 1, 1) + torch.tensor(palette.mean).view(1, 3, 1, 1)
    assert back.min() > -1e-5
    assert back.max() < 1 + 1e-5
    with parts.engine:
        assert parts.server().run(1).complete


def test_a_flipped_picture_is_the_mirrored_one(medic):
    from muster.training.augmentation import augmenter

    data = build_ingredients(experiment(medic)).data
    change = augmenter([{"name": "flip", "chance": 1.0}], data.dataset, torch.device("cpu"))
    samples, _ = data.tensors(data.dataset.train, np.arange(2))
    mirrored = samples[:, :-LENGTH].reshape(-1, 3, SIZE, SIZE).flip(3).flatten(1)
    assert torch.equal(change(samples, np.random.default_rng(0))[:, :-LENGTH], mirrored)


# --- what is no good -----------------------------------------------------------------------------------------


def test_pictures_of_another_size(medic):
    with pytest.raises(ConfigError, match=r"does not fit samples of shape[\s\S]*image_size"):
        build_ingredients(experiment(medic, image_shape=[3, 48, 48], text_width=LENGTH))
    with pytest.raises(ConfigError, match="does not fit"):
        build_ingredients(experiment(medic, image_shape=[3, 48, 48]))


def test_the_rest_of_a_picture_is_not_taken_for_text(medic):
    run = experiment(medic, image_shape=[3, 16, 16], image_encoder="small", text_encoder="features")
    run.model.pop("image_weights")
    run.data = run.data | {"encoder": "tfidf", "width": 8}
    with pytest.raises(DataError, match=r"picture of 3 × 32 × 32 numbers, .* 3 × 16 × 16[\s\S]*image_shape"):
        build_ingredients(run)
    run.model |= {"image_shape": [3, 32, 32]}
    assert build_ingredients(run)


def test_a_vocabulary_of_another_model(medic):
    other = write_bert(medic / "other")
    pieces = (other / "vocab.txt").read_text().split("\n")
    (other / "vocab.txt").write_text("\n".join([*pieces[:6], *pieces[:5:-1]]).replace("\n\n", "\n"))
    with pytest.raises(DataError, match="another vocabulary than the model's"):
        build_ingredients(experiment(medic, text_folder=str(other)))


def test_numbers_where_ids_are_wanted(medic):
    run = experiment(medic)
    run.data = run.data | {"encoder": "hashing", "width": LENGTH}
    with pytest.raises(DataError, match="the model takes token ids"):
        build_ingredients(run)


def test_ids_where_numbers_are_wanted(medic):
    with pytest.raises(ConfigError, match="the model 'late-fusion' would take for numbers"):
        build_ingredients(experiment(medic, text_encoder="features"))


def test_neither_ids_nor_normalised_pixels_are_normalised(medic):
    run = experiment(medic)
    run.data = run.data | {"normalise": [0.5, 0.5]}
    with pytest.raises(ConfigError, match="normalised already"):
        build_ingredients(run)


@pytest.mark.parametrize("kept", [{"image_encoder": "small", "image_weights": None}, {"text_encoder": "features"}])
def test_pretrained_weights_are_not_drawn_again(medic, kept):
    run = experiment(medic, init="xavier", **kept)
    options = {name: value for name, value in run.model.items() if name != "name" and value is not None}
    with pytest.raises(ConfigError, match=r"model\.init = 'xavier' would draw the pretrained weights"):
        build_model("late-fusion", (3 * SIZE * SIZE + LENGTH,), 3, options)


def test_weights_of_another_network(medic):
    with pytest.raises(ConfigError, match="of the same architecture"):
        build_ingredients(experiment(medic, image_encoder="resnet50"))
    with pytest.raises(ConfigError, match="image_weights for the small image encoder"):
        build_ingredients(experiment(medic, image_encoder="small"))


@pytest.mark.parametrize("encoder", ["tfidf", "hashing"])
def test_a_small_corpus_has_the_width_that_was_asked_for(medic, encoder):
    """Five posts have fewer words than columns; the model is made for the columns."""
    data = sources.build("medic", {"encoder": encoder, "width": 64, "image_size": 16, "data_dir": str(medic)})
    assert data.sample_shape == (3 * 16 * 16 + 64,)
    model = {"image_shape": [3, 16, 16], "text_width": 64, "width": 8}
    assert build_model("late-fusion", data.sample_shape, 3, model)(
        torch.from_numpy(data.test.features[:2])
    ).shape == (
        2,
        3,
    )
