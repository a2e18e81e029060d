"""Importing this imports everything that a run may need: once, in the process that all runs are forked from.

Without it every run of a sweep would spend seconds on imports.
"""

from __future__ import annotations

import gc

import sklearn.cluster
import sklearn.datasets
import torch
from torch import nn

from muster.aggregation.base import aggregators
from muster.data.partition.base import schemes
from muster.data.sources.base import sources
from muster.data.sources.digits import pictures
from muster.experiment.runner import run
from muster.models.base import models
from muster.pacing import pacings
from muster.results.store.environment import code_version, environment
from muster.selection.base import selectors
from muster.signals.base import signals
from muster.tracking.base import trackers
from muster.training.augmentation import operations
from muster.training.base import algorithms
from muster.training.objectives.base import objectives
from muster.updates.filters import filters
from muster.world.availability import availabilities
from muster.world.devices import device_models

for registry in (
    aggregators,
    algorithms,
    availabilities,
    device_models,
    filters,
    models,
    objectives,
    operations,
    pacings,
    schemes,
    selectors,
    signals,
    sources,
    trackers,
):
    registry.names()

# What every run notes about itself: asking for the commit starts a process.
code_version(), environment()

# Of the data sets, the one that is read from text.
pictures()

# PyTorch imports its compiler with the first optimiser.
torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)

# What is here now stays: a run that looked through it for garbage would copy it page by page.
gc.collect()
gc.freeze()

__all__ = ["run", "sklearn"]
