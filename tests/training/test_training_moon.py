"""MOON."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from muster.core.errors import ConfigError
from muster.core.parameters import FlatModel, ParameterSpec
from muster.training.base import Plain
from muster.training.moon import PREVIOUS, Moon, contrastive_loss


def test_worked_example() -> None:
    def at(cosine):
        return torch.tensor([[cosine, math.sqrt(1 - cosine**2)]], dtype=torch.float64)

    loss = contrastive_loss(at(1.0), at(0.8), at(0.2), temperature=0.5)
    assert loss.item() == pytest.approx(0.263282, abs=1e-6)


def test_equals_the_papers_quotient() -> None:
    torch.manual_seed(0)
    own, of_global, of_previous = torch.randn(3, 6, 4, dtype=torch.float64)
    positive = torch.exp(torch.cosine_similarity(own, of_global) / 0.5)
    negative = torch.exp(torch.cosine_similarity(own, of_previous) / 0.5)
    expected = -torch.log(positive / (positive + negative)).mean()
    assert contrastive_loss(own, of_global, of_previous, 0.5).item() == pytest.approx(expected.item())


class Deep(nn.Module):
    final_layer = "head"

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.body(x))))


@pytest.fixture
def deep(convex):
    torch.manual_seed(0)
    convex.model = FlatModel(Deep())
    convex.spec = convex.model.spec
    return convex


def test_first_training_is_plain_and_remembers_the_model(deep) -> None:
    origin = deep.model.vector()
    _, plain = deep.train(0, origin, Plain())
    _, first = deep.train(0, origin, Moon())
    np.testing.assert_array_equal(first, plain)
    np.testing.assert_allclose(deep.states[0][PREVIOUS], origin + first, atol=1e-6)


def test_second_training_follows_the_gradient_of_both_terms(deep) -> None:
    """One step of SGD against automatic differentiation of the formula written out."""
    deep.training = deep.training.__class__(lr=0.1, steps=1, batch_size=12)
    origin = deep.model.vector()
    previous = origin + 0.5 * np.random.default_rng(1).normal(size=len(origin)).astype(np.float32)
    previous[deep.spec.counted] = 0
    previous[deep.spec.entry("norm.running_var").slice] = 1
    deep.states[0][PREVIOUS] = previous.copy()
    _, movement = deep.train(0, origin, Moon(mu=2.0, temperature=0.3))

    models = {}
    for name, flat in {"own": origin, "global": origin, "previous": previous}.items():
        models[name] = Deep().train(name == "own")
        FlatModel(models[name]).load(torch.from_numpy(flat))
    x = deep.features[0]
    z = {name: torch.relu(model.norm(model.body(x))) for name, model in models.items()}
    fixed = {name: z[name].detach() for name in ("global", "previous")}
    logits = models["own"].head(z["own"])
    loss = nn.functional.cross_entropy(logits, deep.labels[0])
    loss = loss + 2.0 * contrastive_loss(z["own"], fixed["global"], fixed["previous"], 0.3)
    gradient = torch.cat(
        [g.flatten() for g in torch.autograd.grad(loss, list(models["own"].parameters()))]
    ).numpy()
    np.testing.assert_allclose(movement[deep.spec.trainable], -0.1 * gradient, atol=1e-5)


def test_leaves_no_hook_behind(deep) -> None:
    origin = deep.model.vector()
    for _ in range(2):
        deep.train(0, origin, Moon())
    assert not deep.model.module.head._forward_pre_hooks
    assert deep.model.module.body.weight.requires_grad


def test_without_strength_it_is_plain(deep) -> None:
    origin = deep.model.vector()
    deep.train(0, origin, Moon(mu=0.0))
    _, second = deep.train(0, origin, Moon(mu=0.0))
    _, plain = deep.train(0, origin, Plain())
    np.testing.assert_array_equal(second, plain)


@pytest.mark.parametrize("option", [{"mu": -1.0}, {"temperature": 0.0}])
def test_impossible_options_are_refused(convex, option) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        Moon(**option).check(convex.population())


def test_a_model_without_a_classification_layer_is_refused(convex) -> None:
    population = convex.population()
    headless = ParameterSpec(population.spec.parameters, final_layer_name="nowhere")
    with pytest.raises(ConfigError, match="classification layer"):
        Moon().check(population.__class__(population.sizes, 3, headless, 10))
