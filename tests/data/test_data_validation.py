"""The validation split: nobody trains on it, it follows the seed of the partition, and plateaus follow it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import muster
from muster.config.experiment import from_dict
from muster.core.errors import ConfigError
from muster.core.parameters import FlatModel
from muster.data import Dataset, Samples
from muster.data.validation import held_back
from muster.experiment.components import build_data
from muster.models.base import build_model

DIGITS: dict[str, dict[str, Any]] = {"data": {"source": "digits"}, "partition": {"scheme": "iid", "clients": 5}}


def divided(validation, **changes):
    values = {key: dict(value) for key, value in DIGITS.items()}
    values["data"]["validation"] = validation
    for key, value in changes.items():
        values[key] = values.get(key, {}) | value if isinstance(value, dict) else value
    return build_data(from_dict(values))


@pytest.mark.parametrize("validation", [0.1, 143])
@pytest.mark.parametrize("scheme", ["iid", "dirichlet", "classes-per-client", "sampled-shards"])
def test_nobody_has_what_is_kept_back(validation, scheme):
    options = {"alpha": 0.5} if scheme == "dirichlet" else {}
    data = divided(validation, partition={"scheme": scheme, **options})
    total = len(data.dataset.train)
    kept = 143 if validation == 143 else round(0.1 * total)
    assert len(data.validation) == len(np.unique(data.validation)) == kept
    assert not np.intersect1d(data.train_index.samples, data.validation).size
    assert len(np.unique(np.concatenate([data.train_index.samples, data.validation]))) == total
    assert not data.unassigned().any()


def test_clients_have_the_classes_that_the_scheme_gives_them():
    """Positions of what is left are put back into those of the whole split."""
    data = divided(0.2, partition={"scheme": "classes-per-client", "classes": 2, "clients": 20})
    assert ((data.label_histograms > 0).sum(axis=1) == 2).all()


def test_it_follows_the_seed_of_the_partition():
    first, again, other = (
        divided(0.1, seed=seed, partition={"seed": own}).validation for seed, own in ((0, 3), (1, 3), (0, 4))
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_share_is_drawn_evenly():
    counts = sum(np.isin(np.arange(40), held_back(40, 0.25, np.random.default_rng(s))) for s in range(2000))
    assert np.abs(counts / 2000 - 0.25).max() < 0.05


@pytest.mark.parametrize("value", [0, 0.0, 1.0, 1.5, -3, 10**6, True, "a tenth", 1e-9])
def test_nonsense_is_refused(value):
    with pytest.raises(ConfigError, match=r"data\.validation"):
        divided(value)


def misleading() -> Dataset:
    """Training samples say the opposite of the test samples, so the test loss rises while validation falls."""
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(400, 4)).astype(np.float32), rng.integers(0, 2, 400)
    features[:, 0] += 4 * labels
    train = Samples(features[:300], labels[:300])
    return Dataset("misleading", train, Samples(features[300:], 1 - labels[300:]), classes=2)


def test_a_plateau_follows_validation_not_test(tiny, monkeypatch):
    from muster.data.sources.base import sources

    monkeypatch.setitem(sources._entries, "misleading", misleading)
    changes = {
        "partition": {"scheme": "iid", "clients": 5},
        "training": {"lr": 0.02, "schedule": "plateau", "patience": 0, "decay": 0.1, "epochs": 1},
        "rounds": 6,
    }
    blind = muster.run(tiny(data={"source": "misleading"}, **changes), workers=0)
    sighted = muster.run(tiny(data={"source": "misleading", "validation": 0.2}, **changes), workers=0)
    test, validation = ([row[name] for row in sighted.metrics] for name in ("loss", "validation_loss"))
    assert test == sorted(test)
    assert validation == sorted(validation, reverse=True)
    # The rate of the one that looks at the test set is cut in every round, so it hardly moves.
    assert sighted.metrics[-1]["loss"] > blind.metrics[-1]["loss"] + 0.05


@pytest.mark.parametrize("engine", ["processes", "vectorised"])
def test_the_loss_is_that_of_the_samples_kept_back(tiny, engine):
    """Against the model's own losses on these samples; the same with any number of workers."""
    experiment = tiny(data={"source": "digits", "validation": 0.3}, engine={"kind": engine})
    runs = [muster.run(experiment, workers=workers) for workers in (0, 2)]
    assert runs[0].metrics == runs[1].metrics
    data = build_data(experiment)
    model = FlatModel(build_model("mlp", data.dataset.sample_shape, data.classes, {"hidden": [16]}))
    model.load(torch.from_numpy(runs[0].parameters))
    features, labels = data.tensors(data.dataset.train, data.validation)
    with torch.no_grad():
        logits = model.module.eval()(features)
    loss = torch.nn.functional.cross_entropy(logits, labels).item()
    assert runs[0].final("validation_loss") == pytest.approx(loss, rel=1e-5)
    assert runs[0].final("validation_accuracy") == (logits.argmax(1) == labels).double().mean().item()


def test_centralised_training_leaves_it_alone(tiny):
    experiment = tiny(data={"source": "digits", "validation": 0.3}, training={"mode": "centralised"})
    result = muster.run(experiment, workers=0)
    assert result.ledger.total().samples == 3 * (1437 - round(0.3 * 1437))
    assert np.isfinite(result.final("validation_loss"))
