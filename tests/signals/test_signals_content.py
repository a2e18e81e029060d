"""Content diversity."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from muster.core.component import Population
from muster.core.parameters import spec_of
from muster.server.ledger import Bookkeeper, Ledger
from muster.signals._evaluation import evaluated
from muster.signals.content import ContentDiversity, diversity
from muster.signals.losses import Loss, mean_loss
from muster.training.base import LocalTraining


def test_worked_example():
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    assert diversity(rows) == pytest.approx(0.528595, abs=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 8), st.integers(1, 5), st.integers(0, 10_000))
def test_equals_the_mean_over_pairs(rows, columns, seed):
    x = torch.from_numpy(np.random.default_rng(seed).standard_normal((rows, columns)))
    cosines = [
        float(torch.nn.functional.cosine_similarity(x[i], x[j], dim=0)) for i in range(rows) for j in range(i)
    ]
    assert diversity(x) == pytest.approx(1 - np.mean(cosines), abs=1e-9)


def test_a_single_sample_has_no_diversity_and_zeros_resemble_nobody():
    assert diversity(torch.ones(1, 3)) == 0.0
    assert diversity(torch.zeros(3, 2)) == 1.0
    assert diversity(torch.ones(4, 3)) == pytest.approx(0.0)


def test_features_are_what_enters_the_last_layer(make_client):
    client = make_client(size=20)
    module = client.model.module
    caught = evaluated(client, embeds=True).embeddings
    with torch.no_grad():
        expected = torch.relu(module.norm(module.body(client.features)))
        np.testing.assert_allclose(module.head(caught), module(client.features), atol=1e-6)
    torch.testing.assert_close(caught, expected)
    assert ContentDiversity().measure(client) == pytest.approx(diversity(expected))


def test_the_input_form_needs_no_model_and_is_the_same_every_time(make_client):
    signal = ContentDiversity(emb="input")
    assert not signal.uses_model
    assert signal.samples(50, 8) == 0
    assert ContentDiversity().samples(50, 8) == 50
    assert signal.measure(make_client(size=9)) == signal.measure(make_client(size=9))


def test_a_model_without_a_classification_layer_is_refused():
    federation = Population(np.array([3]), 2, spec_of(nn.Sequential(nn.Embedding(3, 2))), 5)
    assert "classification layer" in ContentDiversity().unavailable(federation)
    assert ContentDiversity(emb="input").unavailable(federation) is None


@pytest.mark.parametrize("turn", [1, -1])
def test_loss_and_content_diversity_share_one_pass_over_the_samples(make_client, turn):
    client = make_client(size=20)
    client.embeds = True
    seen = []
    hook = client.model.module.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    measured = {type(s).__name__: float(s.measure(client)[0]) for s in (Loss(), ContentDiversity())[::turn]}
    hook.remove()
    assert sum(seen) == 20
    alone = make_client(size=20)
    assert measured["Loss"] == mean_loss(alone.model.module, alone.features, alone.labels)
    assert measured["ContentDiversity"] == ContentDiversity().measure(alone)[0]


@pytest.mark.parametrize(
    ("signals", "passes"),
    [
        ((Loss(),), 1),
        ((ContentDiversity(),), 1),
        ((Loss(), ContentDiversity()), 1),
        ((Loss(), ContentDiversity(emb="input")), 1),
    ],
)
def test_the_ledger_counts_the_shared_pass_once(signals, passes):
    sizes = np.array([30, 50])
    population = Population(sizes, 2, spec_of(nn.Sequential(nn.Linear(3, 2))), 5)
    ledger = Ledger()
    ledger.open_round()
    everybody = np.arange(2)
    Bookkeeper(ledger, population, LocalTraining()).asked(everybody, everybody, signals)
    assert ledger.current.probe_samples == passes * sizes.sum()
