"""The option `data.normalise`: another mean and spread in the place of the source's own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import muster
from muster.core.errors import ConfigError
from muster.data.federated import Normalisation
from muster.data.sources.base import sources
from muster.experiment.components import build_data


def test_pixels_go_from_minus_one_to_one():
    plain = build_data(muster.Experiment()).dataset
    data = build_data(muster.Experiment(data={"source": "digits", "normalise": [0.5, 0.5]})).dataset
    raw = torch.from_numpy(np.asarray(data.train.features)).float() * data.normalisation.scale
    shown = data.normalisation.apply(torch.from_numpy(np.asarray(data.train.features)))
    torch.testing.assert_close(shown, (raw - 0.5) / 0.5)
    assert (shown.min().item(), shown.max().item()) == (-1.0, 1.0)
    assert data.normalisation != plain.normalisation
    np.testing.assert_array_equal(data.train.features, plain.train.features)


def test_it_is_part_of_the_experiment():
    plain, other = muster.Experiment(), muster.Experiment(data={"source": "digits", "normalise": [0.5, 0.5]})
    assert plain.fingerprint != other.fingerprint


@pytest.mark.parametrize(
    "value", [0.5, [0.5], [0.5, 0.0], [0.5, -1.0], ["a", 1.0], [0.5, float("nan")], [1, 2, 3]]
)
def test_bad_values_are_refused(value):
    with pytest.raises(ConfigError, match=r"data\.normalise"):
        build_data(muster.Experiment(data={"source": "digits", "normalise": value}))


def test_token_ids_have_no_mean():
    dataset = replace(sources.build("digits", {}), tokens=True)
    with pytest.raises(ConfigError, match="token ids"):
        dataset.normalised([0.5, 0.5])


@pytest.mark.parametrize("mean", [(0.3,), (0.3, 0.5, 0.7)])
def test_block_by_block_is_the_same_as_all_at_once(mean):
    pictures = torch.randint(0, 256, (300, 3, 20, 20), dtype=torch.uint8, generator=torch.manual_seed(0))
    step = Normalisation(mean, tuple(0.2 + number for number in mean), 1 / 255)
    shape = (1, -1, 1, 1)
    whole = (
        pictures.float().mul(1 / 255).sub(torch.tensor(mean).view(shape)).div(torch.tensor(step.std).view(shape))
    )
    assert torch.equal(step.apply(pictures), whole)
    assert step.apply(pictures[:0]).shape == (0, 3, 20, 20)
