"""Every registered model: parameter counts, shapes, the final layer, and what input it refuses."""

import numpy as np
import pytest
import torch

from muster.core.errors import ConfigError
from muster.core.parameters import FlatModel
from muster.models import build_model, models

IMAGES = (3, 32, 32)

#: name, sample shape, classes, options, parameters.
PUBLISHED = [
    ("logistic", (1, 28, 28), 10, {}, 7_850),
    ("mlp", (1, 28, 28), 10, {"hidden": [200, 200]}, 199_210),  # the 2NN of McMahan et al. (2017)
    ("femnist-cnn", (1, 28, 28), 10, {}, 1_663_370),  # McMahan et al. (2017)
    ("femnist-cnn", (1, 28, 28), 62, {}, 1_690_046),
    ("cifar10-cnn", IMAGES, 10, {}, 122_570),
    ("resnet20", IMAGES, 10, {}, 269_722),
    ("resnet20", IMAGES, 10, {"shortcut": "projection"}, 272_474),
    ("resnet18", (3, 64, 64), 1000, {}, 11_689_512),
    ("resnet18", IMAGES, 10, {"stem": "cifar"}, 11_173_962),
    ("resnet50", (3, 64, 64), 1000, {}, 25_557_032),
    ("densenet121", (3, 64, 64), 1000, {}, 7_978_856),
    ("mobilenetv2", (3, 64, 64), 1000, {}, 3_504_872),
    ("mobilenetv2", (3, 64, 64), 1000, {"norm": "batch"}, 3_504_872),
    ("char-lstm", (80,), 80, {"layers": 2, "embedding": 8, "hidden": 256}, 819_920),  # LEAF
]

#: Counted by hand from the layers, where nobody has published a number.
COUNTED = [
    ("mlp", (1, 28, 28), 10, {}, 784 * 64 + 64 + 64 * 10 + 10),
    (
        "fmnist-cnn",
        (1, 28, 28),
        10,
        {},
        9 * 32 + (9 * 32 * 32 + 32) + (9 * 32 * 64 + 64) + 3 + 2 * (32 + 32 + 64) + (3136 * 64 + 64) + 650,
    ),
    (
        "cifar100-cnn",
        IMAGES,
        100,
        {},
        (25 * 3 * 64 + 64) + (25 * 64 * 128 + 128) + (3200 * 256 + 256) + (256 * 128 + 128) + 12_900,
    ),
    (
        "conv3",
        IMAGES,
        10,
        {},
        (27 * 32 + 32) + (9 * 32 * 64 + 64) + (9 * 64 * 128 + 128) + (512 * 256 + 256) + (256 * 128 + 128) + 1_290,
    ),
    ("conv3", IMAGES, 10, {"padding": 1}, 258_762 + (2048 - 512) * 256),
    (
        "lenet",
        IMAGES,
        100,
        {},
        (75 * 64 + 64) + (25 * 64 * 64 + 64) + (4096 * 384 + 384) + (384 * 192 + 192) + 19_300,
    ),
    (
        "lenet",
        IMAGES,
        10,
        {"filters": [6, 16], "hidden": [120, 84], "padding": 0},
        (75 * 6 + 6) + (25 * 6 * 16 + 16) + (400 * 120 + 120) + (120 * 84 + 84) + 850,
    ),
    (
        "cifar100-cnn",
        IMAGES,
        100,
        {"filters": [8, 16], "hidden": [128, 64]},
        (75 * 8 + 8) + (25 * 8 * 16 + 16) + (400 * 128 + 128) + (128 * 64 + 64) + 6_500,
    ),
    (
        "conv3",
        IMAGES,
        10,
        {"filters": [8, 16, 32], "hidden": [64, 32]},
        (27 * 8 + 8) + (9 * 8 * 16 + 16) + (9 * 16 * 32 + 32) + (128 * 64 + 64) + (64 * 32 + 32) + 330,
    ),
    # ResNet-8: a stem, three stages of two convolutions, shortcuts without parameters.
    (
        "resnet20",
        IMAGES,
        10,
        {"blocks": 1, "width": 8},
        27 * 8 + 9 * (2 * 8 * 8 + 8 * 16 + 16 * 16 + 16 * 32 + 32 * 32) + 2 * (3 * 8 + 2 * 16 + 2 * 32) + 330,
    ),
    ("char-lstm", (80,), 80, {}, 80 * 32 + 4 * 128 * (32 + 128 + 2) + 128 * 80 + 80),
    ("text-classifier", (384,), 77, {}, 384 * 256 + 256 + 256 * 77 + 77),
    (
        "text-classifier",
        (20,),
        5,
        {"encoder": "bag", "vocabulary": 50, "width": 8, "hidden": []},
        50 * 8 + 8 * 5 + 5,
    ),
    (
        "group-norm-cnn",
        (3, 28, 28),
        2,
        {},
        27 * 32 + 9 * 32 * 64 + 9 * 64 * 128 + 2 * (32 + 64 + 128) + 2 * 128 + 2,
    ),
    (
        "group-norm-cnn",
        (3, 28, 28),
        2,
        {"widths": [8, 16, 32], "groups": 4, "grid": 7},
        27 * 8 + 9 * 8 * 16 + 9 * 16 * 32 + 2 * (8 + 16 + 32) + 2 * 32 * 49 + 2,
    ),
    (
        "late-fusion",
        (30,),
        3,
        {"image_shape": [20], "text_width": 10, "width": 8},
        (20 * 8 + 8) + (10 * 8 + 8) + 16 * 3 + 3,
    ),
]


@pytest.mark.parametrize(("name", "shape", "classes", "options", "count"), PUBLISHED + COUNTED)
def test_parameter_counts(name, shape, classes, options, count):
    model = build_model(name, shape, classes, options)
    assert sum(p.numel() for p in model.parameters()) == count


SMALL = [
    ("logistic", (1, 8, 8), {}),
    ("mlp", (12,), {"hidden": [5, 4]}),
    ("femnist-cnn", (1, 28, 28), {}),
    ("fmnist-cnn", (1, 28, 28), {}),
    ("fmnist-cnn", (1, 8, 8), {"filters": [4, 4, 8], "hidden": 6}),
    ("cifar10-cnn", IMAGES, {"dropout": 0.2}),
    ("cifar100-cnn", IMAGES, {}),
    ("conv3", IMAGES, {}),
    ("lenet", IMAGES, {}),
    ("lenet", (3, 16, 16), {"filters": [6, 16], "hidden": [120, 84], "padding": 0}),
    ("resnet20", IMAGES, {}),
    ("resnet20", IMAGES, {"shortcut": "projection", "norm": "group"}),
    ("resnet18", (3, 16, 16), {"stem": "cifar"}),
    ("resnet18", IMAGES, {"norm": "group"}),
    ("resnet50", IMAGES, {"norm": "group"}),
    ("resnet50", (3, 8, 8), {"stem": "cifar"}),
    ("densenet121", IMAGES, {}),
    ("densenet121", (3, 8, 8), {"stem": "cifar"}),
    ("mobilenetv2", IMAGES, {}),
    ("group-norm-cnn", (3, 28, 28), {}),
    ("char-lstm", (80,), {"vocabulary": 50}),
    ("char-lstm", (80,), {"layers": 2, "dropout": 0.2, "vocabulary": 50}),
    ("text-classifier", (384,), {}),
    ("text-classifier", (20,), {"encoder": "bag", "vocabulary": 50}),
    ("text-classifier", (20,), {"encoder": "transformer", "vocabulary": 50, "width": 16}),
    ("late-fusion", (3 * 16 * 16 + 10,), {"image_shape": [3, 16, 16], "text_width": 10}),
    ("late-fusion", (30,), {"image_shape": [20], "text_width": 10}),
]


def samples_for(name, shape, options, count=2):
    generator = torch.Generator().manual_seed(1)
    if name == "char-lstm" or options.get("encoder", "frozen") != "frozen":
        return torch.randint(0, 50, (count, *shape), generator=generator)
    return torch.randn(count, *shape, generator=generator)


def test_every_registered_model_is_tested_here():
    # BERT is made from files: tests/models/test_bert.py.
    assert {name for name, *_ in SMALL} | {"bert"} == set(models.names())


@pytest.mark.parametrize(("name", "shape", "options"), SMALL)
def test_trains_in_channels_last_and_its_classifier_is_recognised(name, shape, options):
    model = FlatModel(build_model(name, shape, 7, options))
    features = samples_for(name, shape, options)
    logits = model.module(features)
    assert logits.shape == (2, 7)
    model.module.eval()
    plain = model.module(features)
    if features.dim() == 4:
        features = features.contiguous(memory_format=model.memory_format)
    np.testing.assert_allclose(model.module(features).detach(), plain.detach(), rtol=1e-3, atol=1e-4)

    model.module.train()
    torch.nn.functional.cross_entropy(model.module(features), torch.tensor([0, 1])).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.module.parameters())

    # The layer that the spec calls final is the one whose bias shifts the logits one to one.
    weight, bias = model.spec.final_weight, model.spec.final_bias
    assert weight.shape[0] == 7
    model.module.eval()
    flat = torch.from_numpy(model.vector())
    before = model.module(features).detach()
    flat[bias.slice] += torch.arange(7.0)
    model.load(flat)
    np.testing.assert_allclose(model.module(features).detach() - before, [np.arange(7.0)] * 2, atol=1e-4)


@pytest.mark.parametrize("name", sorted({name for name, *_ in SMALL} - {"mlp", "logistic"}))
def test_input_that_does_not_fit_is_refused_with_what_fits(name):
    shape = (3, 2, 2) if name in {"char-lstm", "text-classifier", "late-fusion"} else (10,)
    options = {"image_shape": (1, 4, 4), "text_width": 2} if name == "late-fusion" else {}
    with pytest.raises(ConfigError, match="does not fit") as caught:
        build_model(name, shape, 2, options)
    assert caught.value.expected


@pytest.mark.parametrize(
    ("name", "smallest", "options"),
    [
        ("femnist-cnn", 4, {}),
        ("fmnist-cnn", 4, {}),
        ("lenet", 4, {}),
        ("cifar10-cnn", 18, {}),
        ("cifar100-cnn", 16, {}),
        ("conv3", 22, {}),
        ("conv3", 8, {"padding": 1}),
        ("group-norm-cnn", 4, {}),
        ("group-norm-cnn", 28, {"grid": 7}),
    ],
)
def test_smallest_image_works_and_smaller_is_refused(name, smallest, options):
    model = build_model(name, (1, smallest, smallest), 2, options)
    assert model(torch.randn(2, 1, smallest, smallest)).shape == (2, 2)
    with pytest.raises(ConfigError, match="does not fit"):
        build_model(name, (1, smallest - 1, smallest), 2, options)


@pytest.mark.parametrize(
    ("name", "shape", "options", "reason"),
    [
        ("mlp", (4,), {"hidden": [0]}, "width 0"),
        ("cifar10-cnn", IMAGES, {"dropout": 1.0}, "dropout"),
        ("conv3", IMAGES, {"padding": 2}, "padding"),
        ("fmnist-cnn", IMAGES, {"filters": [8, 0, 8]}, "width 0"),
        ("group-norm-cnn", IMAGES, {"widths": []}, "no widths"),
        ("group-norm-cnn", IMAGES, {"groups": 7}, "7 groups"),
        ("group-norm-cnn", IMAGES, {"grid": 0}, "grid"),
        ("lenet", IMAGES, {"padding": 1}, "padding is 1"),
        ("lenet", IMAGES, {"filters": [6]}, "model.filters"),
        ("lenet", IMAGES, {"hidden": [120, 0]}, "width 0"),
        ("lenet", (3, 15, 15), {"padding": 0}, "16×16"),
        ("conv3", IMAGES, {"filters": [8, 0, 8]}, "width 0"),
        ("cifar100-cnn", IMAGES, {"hidden": [-1, 8]}, "width -1"),
        ("resnet20", IMAGES, {"width": 0}, "width 0"),
        ("resnet20", IMAGES, {"blocks": 0}, "0 blocks"),
        ("mobilenetv2", IMAGES, {"groups": 0}, "0 groups"),
        ("resnet18", IMAGES, {"stem": "vgg"}, "stem"),
        ("char-lstm", (80,), {"dropout": 0.5}, "dropout"),
        ("char-lstm", (80,), {"hidden": 0}, "hidden"),
        ("text-classifier", (8,), {"encoder": "transformer", "heads": 3}, "3 heads"),
        ("late-fusion", (9,), {"image_shape": [2, 2], "text_width": 5}, "image_shape"),
        ("late-fusion", (9,), {"image_shape": [5], "text_width": 5}, "does not fit"),
        ("late-fusion", (9,), {"text_width": 5}, "missing key 'model.image_shape'"),
        ("resnet20", IMAGES, {"depth": 20}, "unknown key 'model.depth'"),
        ("restnet20", IMAGES, {}, "unknown model 'restnet20'"),
    ],
)
def test_bad_options_are_refused(name, shape, options, reason):
    with pytest.raises(ConfigError, match=reason):
        build_model(name, shape, 10, options)


def test_pooling_before_relu_changes_nothing():
    from muster.models._layers import pool_and_relu

    generator = torch.Generator().manual_seed(1)
    # Small integers: ties, zeros and windows without a positive number are frequent.
    images = torch.randint(-2, 3, (8, 3, 6, 6), generator=generator).float()
    weights = torch.randn(8, 3, 3, 3, generator=generator)
    results = []
    for layers in (pool_and_relu(), pool_and_relu()[::-1]):
        x = images.clone().requires_grad_()
        out = torch.nn.Sequential(*layers)(x)
        (out * weights).sum().backward()
        results.append((out.detach(), x.grad))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_padded_shortcut_takes_every_second_pixel_and_adds_empty_channels():
    from muster.models.resnet import PaddedShortcut

    x = torch.arange(2 * 4 * 4.0).view(1, 2, 4, 4)
    out = PaddedShortcut(new_channels=2, stride=2)(x)
    assert out.shape == (1, 4, 2, 2)
    assert torch.equal(out[:, 1:3], x[:, :, ::2, ::2])
    assert not out[:, 0].any()
    assert not out[:, 3].any()


@pytest.mark.parametrize("encoder", ["bag", "transformer"])
def test_text_encoders_ignore_padding_and_survive_empty_texts(encoder):
    options = {"encoder": encoder, "vocabulary": 20, "width": 8, "dropout": 0.0}
    model = build_model("text-classifier", (6,), 3, options).eval()
    longer = build_model("text-classifier", (9,), 3, options).eval()
    state = model.state_dict()
    if encoder == "transformer":
        positions = longer.state_dict()["0.positions.weight"].clone()
        positions[:6] = state["0.positions.weight"]
        state = state | {"0.positions.weight": positions}
    longer.load_state_dict(state)
    tokens = torch.tensor([[4, 5, 6, 0, 0, 0], [7, 8, 0, 0, 0, 0]])
    padded = torch.nn.functional.pad(tokens, (0, 3))
    np.testing.assert_allclose(model(tokens).detach(), longer(padded).detach(), atol=1e-5)
    assert model(torch.zeros(2, 6, dtype=torch.long)).isfinite().all()


def test_late_fusion_uses_both_parts():
    model = build_model("late-fusion", (3 * 8 * 8 + 4,), 2, {"image_shape": [3, 8, 8], "text_width": 4}).eval()
    sample = torch.randn(1, 3 * 8 * 8 + 4)
    other_image, other_text = sample.clone(), sample.clone()
    other_image[:, :192] += torch.randn(192)
    other_text[:, 192:] += torch.randn(4)
    assert not torch.equal(model(sample), model(other_image))
    assert not torch.equal(model(sample), model(other_text))
