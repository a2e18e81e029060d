"""Pretrained weights: files, heads for other classes, and clear errors."""

import logging
import random
import re
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import nn

from muster.core.errors import ConfigError
from muster.models import build_model
from muster.models.weights import load_weights

IMAGES = (3, 32, 32)


def save(tmp_path, content, name="weights.pt"):
    path = tmp_path / name
    torch.save(content, path)
    return str(path)


def build(path, name="resnet20", classes=10, **options):
    return build_model(name, IMAGES, classes, {"weights": path, **options}, seed=2)


@pytest.fixture
def source():
    return build_model("resnet20", IMAGES, 10, seed=1)


def test_all_tensors_are_loaded(tmp_path, source, caplog):
    model = build(save(tmp_path, source.state_dict()))
    for name, tensor in source.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)
    assert not caplog.records


def test_wrapped_and_parallel_state_dicts_are_understood(tmp_path, source):
    wrapped = {"state_dict": {f"module.{name}": t for name, t in source.state_dict().items()}, "epoch": 3}
    assert torch.equal(build(save(tmp_path, wrapped)).fc.weight, source.fc.weight)


def test_head_for_other_classes_is_replaced_and_the_log_says_so(tmp_path, source, caplog):
    path = save(tmp_path, source.state_dict())
    with caplog.at_level(logging.WARNING):
        model = build(path, classes=4)
    assert "'fc' has 10 outputs, the data has 4 classes" in caplog.text
    fresh = build_model("resnet20", IMAGES, 4, seed=2)
    assert torch.equal(model.fc.weight, fresh.fc.weight)
    assert torch.equal(model.fc.bias, fresh.fc.bias)
    assert torch.equal(model.conv1.weight, source.conv1.weight)


def test_batch_normalised_weights_fit_the_group_normalised_model(tmp_path, caplog):
    source = build_model("mobilenetv2", IMAGES, 5, {"norm": "batch"}, seed=1)
    with caplog.at_level(logging.WARNING):
        model = build(save(tmp_path, source.state_dict()), "mobilenetv2", 5)
    assert "statistics of batch normalisation" in caplog.text
    for name, parameter in source.named_parameters():
        assert torch.equal(model.get_parameter(name), parameter)


def test_names_of_older_checkpoints_are_understood(tmp_path):
    source = build_model("densenet121", IMAGES, 3, seed=1)
    older = {
        name.replace("norm1.", "norm.1.").replace("conv2.", "conv.2."): tensor
        for name, tensor in source.state_dict().items()
        if not name.endswith("num_batches_tracked")
    }
    model = build(save(tmp_path, older), "densenet121", 3)
    for name, parameter in source.named_parameters():
        assert torch.equal(model.get_parameter(name), parameter)


#: Layers of MobileNetV2 in our order, by timm's names: stem, a block without and blocks with widening, the rest.
TIMM_BLOCKS = [["conv_dw", "bn1", "conv_pw", "bn2"]] + 16 * [
    ["conv_pw", "bn1", "conv_dw", "bn2", "conv_pwl", "bn3"]
]
TIMM_STAGES = [(stage, block) for stage, blocks in enumerate((1, 2, 3, 4, 3, 3, 1)) for block in range(blocks)]


def timm_state(model):
    """The model's tensors under the names that timm's `mobilenetv2_100` has for them."""
    layers = ["conv_stem", "bn1"]
    for (stage, block), inside in zip(TIMM_STAGES, TIMM_BLOCKS, strict=True):
        layers += [f"blocks.{stage}.{block}.{layer}" for layer in inside]
    layers += ["conv_head", "bn2", "classifier"]
    ours = list(dict.fromkeys(name.rpartition(".")[0] for name in model.state_dict()))
    names = dict(zip(ours, layers, strict=True))
    pairs = ((name.rpartition("."), tensor) for name, tensor in model.state_dict().items())
    return {f"{names[layer]}.{part}": tensor for (layer, _, part), tensor in pairs}


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_timms_names_of_mobilenet_are_understood(tmp_path, norm):
    source = build_model("mobilenetv2", IMAGES, 5, {"norm": norm}, seed=1)
    theirs = timm_state(source)
    assert {"conv_stem.weight", "blocks.0.0.bn2.bias", "blocks.6.0.conv_pwl.weight", "bn2.weight"} <= theirs.keys()
    # As FedDiverse's code writes them.
    path = save(tmp_path, {"server_model_state_dict": theirs, "round": 7})
    model = build(path, "mobilenetv2", 5, norm=norm)
    for name, tensor in source.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name


def test_weights_without_a_head(tmp_path, source, caplog):
    body = {name: tensor for name, tensor in source.state_dict().items() if not name.startswith("fc.")}
    model = build(save(tmp_path, body))
    assert "have no classification layer: 'fc' starts from its random initialisation" in caplog.text
    assert torch.equal(model.conv1.weight, source.conv1.weight)
    assert torch.equal(model.fc.weight, build_model("resnet20", IMAGES, 10, seed=2).fc.weight)


def test_the_report_says_what_was_taken_and_what_not(tmp_path):
    source = build_model("mobilenetv2", IMAGES, 7, {"norm": "batch"}, seed=1)
    model = build_model("mobilenetv2", IMAGES, 5)
    report = load_weights(model, save(tmp_path, source.state_dict()))
    assert set(report.fresh) == {"classifier.1.weight", "classifier.1.bias"}
    assert set(report.taken) == model.state_dict().keys() - set(report.fresh)
    assert set(report.left) == source.state_dict().keys() - set(report.taken)
    assert "156 tensors taken, 158 of the file left out" in str(report)
    assert str(report).endswith("2 of the model as initialised (classifier.1.bias, classifier.1.weight)")


def test_a_file_with_several_state_dicts_is_refused(tmp_path, source):
    path = save(tmp_path, {"model": source.state_dict(), "ema": source.state_dict()})
    with pytest.raises(ConfigError, match="several state dicts: ema, model"):
        build(path)


def test_a_truncated_file_is_refused(tmp_path, source):
    path = save(tmp_path, source.state_dict())
    whole = Path(path).read_bytes()
    Path(path).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=r"is not a file of weights[\s\S]*fetch it again"):
        build(path)


def test_weights_of_another_architecture_are_refused(tmp_path):
    path = save(tmp_path, build_model("resnet50", IMAGES, 10).state_dict())
    with pytest.raises(ConfigError, match=r"of the same architecture"):
        build(path, "resnet18")
    with pytest.raises(ConfigError, match=r"another shape of 'conv1\.weight'"):
        build_model("resnet50", (1, 32, 32), 10, {"weights": path})


def test_user_modules_take_weights_too(tmp_path):
    source = nn.Linear(3, 2)
    model = build_model(nn.Linear(3, 2), (3,), 2, {"weights": save(tmp_path, source.state_dict())})
    assert torch.equal(model.weight, source.weight)


def test_single_layer_with_another_number_of_classes_keeps_its_initialisation(tmp_path, caplog):
    path = save(tmp_path, nn.Linear(3, 5).state_dict())
    own = nn.Linear(3, 2)
    model = build_model(own, (3,), 2, {"weights": path})
    assert torch.equal(model.weight, own.weight)
    assert "has 5 outputs" in caplog.text


def test_another_architecture_is_refused(tmp_path, source):
    path = save(tmp_path, source.state_dict())
    with pytest.raises(ConfigError, match=r"lack 'layer2\.0\.downsample"):
        build(path, shortcut="projection")
    with pytest.raises(ConfigError, match=r"another shape of 'conv1\.weight'"):
        build_model("resnet20", (1, 32, 32), 10, {"weights": path})
    extra = source.state_dict() | {"aux.weight": torch.zeros(2)}
    with pytest.raises(ConfigError, match=r"unknown 'aux\.weight'"):
        build(save(tmp_path, extra))


@pytest.mark.parametrize("content", [[1, 2], {"a": 1}, torch.zeros(3)])
def test_a_file_without_a_state_dict_is_refused(tmp_path, content):
    with pytest.raises(ConfigError, match="holds a"):
        build(save(tmp_path, content))


def test_a_file_that_would_run_code_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"an object of type 'torch\.nn\.modules\.linear\.Linear'") as caught:
        build(save(tmp_path, nn.Linear(2, 2)))
    assert "torch.save(model.state_dict(), path)" in str(caught.value)
    assert "weights_only" not in str(caught.value)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is not a file of weights: it is empty"),
        (b"not a checkpoint", "is not a file of weights"),
        (b"hello <html>not found</html>", "is not a file of weights"),
    ],
)
def test_what_is_no_checkpoint_is_refused_in_words(tmp_path, content, said):
    damaged = tmp_path / "damaged.pt"
    damaged.write_bytes(content)
    with pytest.raises(ConfigError, match="not a file of weights") as caught:
        build(str(damaged))
    first = str(caught.value).splitlines()[0]
    assert first == f"'{damaged}' {said}" or first.startswith(f"'{damaged}' {said}: ")
    assert not re.search(r": \S*$|developers|two options", first)


@pytest.mark.parametrize("modern", [True, False])
def test_whatever_damage_is_one_clear_message(tmp_path, modern):
    """Bytes that are changed or missing anywhere: the readers of the two formats raise seven kinds of errors."""
    path = tmp_path / "weights.pt"
    torch.save(nn.Linear(3, 2).state_dict(), path, _use_new_zipfile_serialization=modern)
    whole, draw = path.read_bytes(), random.Random(0)
    refused = 0
    for turn in range(200):
        content = bytearray(whole)
        if turn % 2:
            del content[draw.randrange(len(whole)) :]
        else:
            for _ in range(4):
                content[draw.randrange(len(whole))] = draw.randrange(256)
        path.write_bytes(bytes(content))
        try:
            load_weights(nn.Linear(3, 2), str(path))
        except ConfigError:
            refused += 1
    assert refused > 100


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(tmp_path, source, value):
    state = source.state_dict()
    state["layer1.0.conv1.weight"][0, 0, 0, 0] = value
    with pytest.raises(ConfigError, match=r"not finite: 'layer1\.0\.conv1\.weight' \(1 such tensors\)"):
        build(save(tmp_path, state))


def test_a_quantised_checkpoint_is_refused(tmp_path, source):
    """Its whole numbers mean nothing without their scales."""
    state = source.state_dict()
    state["layer1.0.conv1.weight"] = (state["layer1.0.conv1.weight"] * 127).to(torch.int8)
    with pytest.raises(ConfigError, match=r"whole numbers .*'layer1\.0\.conv1\.weight' is int8 \(1 such"):
        build(save(tmp_path, state))


def test_half_precision_is_loaded(tmp_path, source):
    loaded = build(
        save(tmp_path, {name: t.half() if t.is_floating_point() else t for name, t in source.state_dict().items()})
    )
    assert torch.allclose(loaded.conv1.weight, source.conv1.weight, atol=1e-3)


def test_infinities_that_the_model_has_itself_are_loaded(tmp_path):
    class Masked(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2)
            self.register_buffer("mask", torch.full((2,), -torch.inf))

    path = save(tmp_path, Masked().state_dict())
    assert not load_weights(Masked(), path).left


def test_missing_file_is_a_clear_error(tmp_path):
    with pytest.raises(ConfigError, match="no weights at"):
        build(str(tmp_path / "absent.pt"))


def test_hub_name_without_the_extra_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(ConfigError, match=r"muster-fl\[hub\]"):
        build("timm/resnet18")


def test_hub_name_with_the_extra_is_downloaded(monkeypatch, tmp_path, source):
    path = save(tmp_path, source.state_dict(), "model.bin")
    asked = []

    def download(repository, file):
        asked.append((repository, file))
        if repository == "nobody/nothing":
            raise OSError("404")
        return path

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(hf_hub_download=download))
    assert torch.equal(build("owner/net/model.bin").fc.weight, source.fc.weight)
    with pytest.raises(ConfigError, match="404"):
        build("nobody/nothing")
    assert asked == [("owner/net", "model.bin"), ("nobody/nothing", "model.safetensors")]


def test_safetensors_without_the_package_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    path = tmp_path / "weights.safetensors"
    path.write_bytes(b"")
    with pytest.raises(ConfigError, match="pip install safetensors"):
        build(str(path))
