"""Whether a backdoor works: how many marked pictures the model classifies as the attackers' class."""

from __future__ import annotations

import numpy as np
import torch

from muster.config.experiment import Experiment, build_filters
from muster.core.arrays import Vector
from muster.core.errors import ConfigError
from muster.core.parameters import FlatModel
from muster.engine.device import single_threaded
from muster.experiment.parts import build_ingredients
from muster.updates.attacks.backdoor import Backdoor

_BATCH = 500


@torch.no_grad()
def success_rate(experiment: Experiment, parameters: Vector) -> float:
    """The share of marked test pictures of all other classes that the model takes for the backdoor's target."""
    attack = next((step for step in build_filters(experiment.filters) if isinstance(step, Backdoor)), None)
    if attack is None:
        raise ConfigError("the experiment has no backdoor", fix="add a filter with method = 'backdoor'")
    ingredients = build_ingredients(experiment)
    data = ingredients.data
    model = FlatModel(ingredients.module)
    model.load(torch.from_numpy(parameters))
    model.module.eval()
    features, _ = attack.triggered(data)
    hits = 0
    with single_threaded():
        for start in range(0, len(features), _BATCH):
            part = torch.from_numpy(np.ascontiguousarray(features[start : start + _BATCH]))
            predicted = model.module(data.dataset.normalisation.apply(part)).argmax(dim=1)
            hits += int((predicted == attack.target).sum())
    return hits / len(features)
