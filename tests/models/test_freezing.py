"""Frozen parts: which, what that means for a network, and taking it apart."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from muster.core.errors import ConfigError
from muster.core.parameters import FlatModel, in_training, spec_of
from muster.engine.vectorised.chain import chain_of
from muster.models import build_model
from muster.models.freezing import Split, agrees, split

IMAGES = (3, 32, 32)
#: Families, with the classes of their head.
FAMILIES = {
    "mlp": {"hidden": [8, 6]},
    "cifar10-cnn": {"dropout": 0.2},
    "resnet20": {},
    "resnet18": {"norm": "group"},
    "resnet50": {"stem": "cifar"},
    "densenet121": {},
    "mobilenetv2": {},
}


def build(name, **options):
    return build_model(name, IMAGES, 5, FAMILIES[name] | options, seed=3)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_frozen_backbone_leaves_the_head(name):
    whole, model = build(name), build(name, freeze="backbone")
    head = spec_of(whole).final_layer_name
    spec = spec_of(model)
    assert [entry.name for entry in spec.entries] == [f"{head}.weight", f"{head}.bias"]
    assert spec.final_layer == slice(0, spec.size)
    assert spec.frozen
    # Freezing changes no number.
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), model.parameters(), strict=True))


@pytest.mark.parametrize("name", FAMILIES)
def test_the_network_is_its_two_halves(name):
    model = build(name, freeze="backbone")
    parts, samples = split(model), torch.randn(4, *IMAGES, generator=torch.Generator().manual_seed(1))
    assert agrees(model, parts, samples)
    assert spec_of(parts.rest) == spec_of(model)
    assert np.array_equal(FlatModel(parts.rest).vector(), FlatModel(copy.deepcopy(model)).vector())


def test_the_dropout_of_the_head_stays_with_it():
    rest = split(build("mobilenetv2", freeze="backbone")).rest
    assert any(isinstance(layer, nn.Dropout) for layer in rest.modules())


def test_a_frozen_part_without_pretrained_weights_is_said(tmp_path, caplog):
    build("resnet20")
    assert not caplog.records
    for name, freeze in (("resnet20", ["conv1"]), ("mlp", "backbone")):
        build(name, freeze=freeze)
        assert "drawn at random" in caplog.text
        caplog.clear()
    torch.save(build("resnet20").state_dict(), tmp_path / "weights.pt")
    build("resnet20", freeze="backbone", weights=str(tmp_path / "weights.pt"))
    # What is brought as a network has the numbers that it is meant to have.
    build_model(build("resnet20"), IMAGES, 5, {"freeze": "backbone"})
    assert not caplog.records


def test_named_parts():
    model = build("resnet20", freeze=["conv1", "bn1", "layer1"])
    names = [entry.name for entry in spec_of(model).entries]
    assert not any(name.startswith(("conv1", "bn1", "layer1")) for name in names)
    assert any(name.startswith("layer2") for name in names)
    # Something is trained behind the frozen parts, so nothing can be computed once.
    assert split(model) is None


@pytest.mark.parametrize(
    ("freeze", "message"),
    [
        (["layer9"], "no part 'layer9'"),
        ("bakcbone", "did you mean 'backbone'"),
        (["conv1", "bn1", "layer1", "layer2", "layer3", "fc"], "leaves nothing to train"),
        (3, "bad value for 'model.freeze'"),
        ([], "bad value for 'model.freeze'"),
    ],
)
def test_what_cannot_be_frozen(freeze, message):
    with pytest.raises(ConfigError, match=message):
        build("resnet20", freeze=freeze)


def test_a_model_that_is_a_head_has_no_backbone():
    with pytest.raises(ConfigError, match="nothing else"):
        build_model("logistic", (4,), 3, {"freeze": "backbone"})


def test_own_modules_are_frozen_in_a_copy():
    own = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    model = build_model(own, (4,), 2, {"freeze": "backbone"})
    assert [p.requires_grad for p in model.parameters()] == [False, False, True, True]
    assert all(p.requires_grad for p in own.parameters())


class GoesAround(nn.Module):
    """Adds something to what its last layer says."""

    def __init__(self):
        super().__init__()
        self.body, self.last = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        hidden = self.body(x)
        return self.last(hidden) + hidden[:, :2]


def test_a_network_that_goes_around_its_head_is_found_out():
    model = build_model(GoesAround, (4,), 2, {"freeze": "backbone"})
    assert not agrees(model, split(model), torch.ones(3, 4))


class ByKeyword(GoesAround):
    def forward(self, x):
        return self.last(input=self.body(x))


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.sum = nn.Linear(3, 2)

    def forward(self, x, y):
        return self.sum(x + y)


class TwoInputs(nn.Module):
    head_part = "last"

    def __init__(self):
        super().__init__()
        self.body, self.last = nn.Linear(4, 3), Pair()

    def forward(self, x):
        return self.last(self.body(x), self.body(x))


class Twice(GoesAround):
    def forward(self, x):
        return self.last(self.body(x)) + self.last(self.body(-x))


@pytest.mark.parametrize("network", [ByKeyword, TwoInputs, Twice])
def test_a_head_that_takes_other_things_than_one_tensor_is_not_cut_off(network):
    model = build_model(network, (4,), 2, {"freeze": "backbone"})
    assert not agrees(model, split(model), torch.ones(3, 4))


class Renamed(GoesAround):
    """Takes itself apart, but calls its tensors otherwise."""

    def split_frozen(self):
        return Split(copy.deepcopy(self.body), nn.Sequential(copy.deepcopy(self.last)))


def test_halves_whose_tensors_are_others_are_not_used():
    assert split(build_model(Renamed, (4,), 2, {"freeze": "backbone"})) is None


class Tied(nn.Module):
    """What it trains in its head it uses before the head too."""

    def __init__(self):
        super().__init__()
        self.last, self.body = nn.Linear(4, 4), nn.Linear(4, 4)
        self.first = nn.Linear(4, 4)
        self.body.weight = self.last.weight
        self.body.bias.requires_grad_(False)
        self.first.requires_grad_(False)
        self.final_layer = "last"

    def forward(self, x):
        return self.last(self.body(self.first(x)))


def test_a_head_whose_numbers_are_used_before_it_is_not_cut_off():
    assert split(Tied()) is None


def test_a_part_without_parameters_cannot_be_frozen():
    own = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2))
    with pytest.raises(ConfigError, match="the part '1' has no parameters"):
        build_model(own, (4,), 2, {"freeze": ["1"]})


# --- what frozen means to a flat vector -----------------------------------------------------------------------


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
        self.norm, self.last = nn.BatchNorm1d(3), nn.Linear(3, 2)

    def forward(self, x):
        return self.last(self.norm(self.body(x)))


def test_statistics_of_frozen_parts_stand_still_and_do_not_travel():
    model = build_model(Normed, (4,), 2, {"freeze": ["body"]})
    flat = FlatModel(model)
    names = [entry.name for entry in flat.spec.entries]
    assert names == [
        "norm.weight",
        "norm.bias",
        "last.weight",
        "last.bias",
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    ]
    before = copy.deepcopy(model.body.state_dict())
    samples = torch.randn(8, 4)
    # Neither do they drop: two passes give the same.
    assert torch.equal(flat.train().body(samples), model.body(samples))
    flat.module(samples)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.body.state_dict().items())
    assert int(model.norm.num_batches_tracked) == 1
    assert in_training(model).norm.training
    assert not model.body[2].training


class Dropping(nn.Module):
    """Between its frozen layers, and before its head, things without parameters behave otherwise in training."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.between = nn.Sequential(nn.BatchNorm1d(6, affine=False), nn.Dropout(0.5))
        self.last = nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 2))

    def forward(self, x):
        hidden = self.between(self.body(x))
        return self.last(nn.functional.dropout(hidden, 0.5, self.training))


@pytest.mark.parametrize(("head", "drops"), [("last", True), ("last.1", False)])
def test_all_before_the_head_computes_as_in_evaluation(head, drops):
    model = build_model(Dropping, (4,), 2)
    model.head_part = head
    assert in_training(model).between[1].training
    model.body.requires_grad_(False)
    entering = []
    model.get_submodule(head).register_forward_pre_hook(lambda _, inputs: entering.append(inputs[0]))
    samples = torch.randn(8, 4)
    expected = split(model).backbone.eval()(samples)
    for trained in (in_training(model), FlatModel(model).train()):
        trained(samples)
        torch.testing.assert_close(entering[-1], expected)
        assert model.last[0].training == drops
        assert model.last[1].training
    # Statistics that stand still do not travel.
    assert [entry.name for entry in spec_of(model).entries] == ["last.1.weight", "last.1.bias"]
    assert spec_of(split(model).rest) == spec_of(model)


def test_dropout_before_the_head_is_off_for_many_clients_at_once_too():
    own = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Dropout(0.5), nn.Linear(3, 2))
    assert chain_of(own).draws
    assert not chain_of(build_model(own, (4,), 2, {"freeze": ["0"]})).draws


class Remembering(nn.Module):
    """Keeps something beside its tensors."""

    def __init__(self):
        super().__init__()
        self.body, self.last = nn.Linear(4, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.last(self.body(x))

    def get_extra_state(self):
        return {"made": "by hand"}

    def set_extra_state(self, state):
        assert state == self.get_extra_state()


def test_extra_state_is_no_tensor():
    plain = spec_of(Remembering())
    assert plain.frozen == ""
    model = build_model(Remembering, (4,), 2, {"freeze": "backbone"})
    assert spec_of(model).frozen
    assert agrees(model, split(model), torch.ones(3, 4))


def test_the_digest_tells_frozen_numbers_apart_and_nothing_else():
    model = build_model(Normed, (4,), 2, {"freeze": ["body"]})
    digest = spec_of(model).frozen
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.last.weight.add_(1)
        other.norm.running_mean.add_(1)
    assert spec_of(other).frozen == digest
    with torch.no_grad():
        other.body[1].running_mean[0] += 1e-6
    assert spec_of(other).frozen != digest
    assert spec_of(Normed()).frozen == ""


def test_tied_weights_are_not_taken_for_frozen_ones():
    first = nn.Linear(3, 3)
    assert spec_of(nn.Sequential(first, nn.ReLU(), first)).frozen == ""


def test_a_spec_of_before_is_read():
    spec = spec_of(nn.Linear(2, 2))
    state = {name: value for name, value in spec.state_dict().items() if name != "frozen"}
    assert type(spec).from_state(state) == spec
