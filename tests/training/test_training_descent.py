"""Plain descent takes the steps of PyTorch's SGD, inside the backward pass or after it."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from muster.training.base import LocalTraining
from muster.training.descent import (
    FUSED_WEIGHTS,
    DescendingLinear,
    PlainDescent,
    allow_fused_steps,
    fused_steps,
)

WIDTH = 260
assert WIDTH * WIDTH >= FUSED_WEIGHTS


def chain(bias: bool = True) -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Linear(6, WIDTH),
        nn.Sequential(nn.ReLU(), nn.Linear(WIDTH, WIDTH, bias=bias)),
        nn.Tanh(),
        nn.Linear(WIDTH, 3),
    )


def fused_layers(module: nn.Module) -> list[str]:
    return [name for name, layer in module.named_modules() if isinstance(layer, DescendingLinear)]


def sample(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def step(model: nn.Module, optimizer: torch.optim.Optimizer | PlainDescent, features: torch.Tensor) -> None:
    model.zero_grad(set_to_none=True)
    model(features).square().mean().backward()
    optimizer.step()


@given(lr=st.floats(1e-3, 0.5), weight_decay=st.sampled_from([0.0, 0.01, 0.3]), steps=st.integers(1, 4))
@settings(max_examples=15, deadline=None)
def test_steps_are_those_of_sgd(lr: float, weight_decay: float, steps: int) -> None:
    ours, theirs = chain(), chain()
    descent = PlainDescent(list(ours.parameters()), lr, weight_decay)
    sgd = torch.optim.SGD(theirs.parameters(), lr=lr, weight_decay=weight_decay, foreach=False)
    for number in range(steps):
        step(ours, descent, sample(number, 5, 6))
        step(theirs, sgd, sample(number, 5, 6))
    for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


def test_parameters_without_gradient_stay() -> None:
    model = chain()
    before = copy.deepcopy(model.state_dict())
    PlainDescent(list(model.parameters()), 0.1, 0.5).step()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("weight_decay", [0.0, 0.2])
@pytest.mark.parametrize("shape", [(7, 6), (4, 5, 6)], ids=["matrix", "sequence"])
def test_fused_steps_are_the_same_steps(bias: bool, weight_decay: float, shape: tuple[int, ...]) -> None:
    fused, plain = chain(bias), chain(bias)
    allow_fused_steps(fused)
    assert fused_layers(fused) == ["1.1"]
    assert list(fused.state_dict()) == list(plain.state_dict())
    for number in range(3):
        descent = PlainDescent(list(fused.parameters()), 0.3, weight_decay)
        with fused_steps(fused, descent):
            step(fused, descent, sample(number, *shape))
        # Its step is done, and there was no gradient in between.
        assert fused[1][1].weight.grad is None
        assert fused[0].weight.grad is not None
        step(plain, PlainDescent(list(plain.parameters()), 0.3, weight_decay), sample(number, *shape))
    for mine, other in zip(fused.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shape", [(7, WIDTH), (4, 5, WIDTH)], ids=["matrix", "sequence"])
def test_the_next_layer_may_work_in_place(shape: tuple[int, ...]) -> None:
    def make() -> nn.Sequential:
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH))

    fused, plain = make(), make()
    allow_fused_steps(fused)
    assert fused_layers(fused) == ["0", "2"]
    descent = PlainDescent(list(fused.parameters()), 0.3)
    with fused_steps(fused, descent):
        step(fused, descent, sample(0, *shape))
    step(plain, PlainDescent(list(plain.parameters()), 0.3), sample(0, *shape))
    for mine, other in zip(fused.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)


def test_a_local_algorithm_may_change_the_rate() -> None:
    ours, theirs = chain(), chain()
    descent = PlainDescent(list(ours.parameters()), 0.4)
    descent.param_groups[0]["lr"] *= 0.5
    step(ours, descent, sample(0, 5, 6))
    step(theirs, PlainDescent(list(theirs.parameters()), 0.2), sample(0, 5, 6))
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


def test_it_is_an_ordinary_layer_outside() -> None:
    model = chain()
    allow_fused_steps(model)
    descent = PlainDescent(list(model.parameters()), 0.3)
    with pytest.raises(RuntimeError, match="stop here"), fused_steps(model, descent):
        raise RuntimeError("stop here")
    before = model[1][1].weight.detach().clone()
    model(sample(0, 4, 6)).sum().backward()
    assert torch.equal(model[1][1].weight, before)
    assert model[1][1].weight.grad is not None


def test_predictions_do_not_step() -> None:
    model = chain()
    allow_fused_steps(model)
    before = copy.deepcopy(model.state_dict())
    with fused_steps(model, PlainDescent(list(model.parameters()), 0.3)), torch.no_grad():
        torch.testing.assert_close(model(sample(0, 4, 6)), chain()(sample(0, 4, 6)))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def reused() -> nn.Module:
    layer = nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(layer, nn.ReLU(), layer)


def tied() -> nn.Module:
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    second.weight = first.weight
    return nn.Sequential(first, second)


def watched() -> nn.Module:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH))
    model[0].register_full_backward_hook(lambda *_: None)
    return model


def watched_inside() -> nn.Module:
    model = nn.Sequential(nn.Sequential(nn.Linear(WIDTH, WIDTH)))
    model[0].register_full_backward_hook(lambda *_: None)
    return model


class Tied(nn.Sequential):
    """A chain by its class, but not by its forward."""

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(self[0](features), self[0].weight.t())


def tied_by_forward() -> nn.Module:
    return Tied(nn.Linear(WIDTH, WIDTH))


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3))
    model[0].weight.requires_grad_(False)
    return model


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return self.layer(self.layer(features))


@pytest.mark.parametrize(
    "make",
    [
        reused,
        tied,
        watched,
        watched_inside,
        tied_by_forward,
        frozen,
        Branching,
        lambda: nn.Sequential(Branching()),
    ],
)
def test_only_where_a_weight_is_used_once(make: object) -> None:
    model = make()
    allow_fused_steps(model)
    assert not fused_layers(model)


@pytest.mark.parametrize(
    ("options", "fuses"),
    [
        ({}, True),
        ({"weight_decay": 0.1}, True),
        ({"momentum": 0.9}, False),
        ({"optimizer": "adam"}, False),
        ({"clip_norm": 1.0}, False),
    ],
)
def test_only_plain_training_fuses(options: dict[str, object], fuses: bool) -> None:
    training, model = LocalTraining(lr=0.1, **options), chain()
    allow_fused_steps(model)
    optimizer = training.make_optimizer(list(model.parameters()), 0.1)
    with training.fusing(model, optimizer):
        assert (model[1][1].descent is optimizer) == fuses
