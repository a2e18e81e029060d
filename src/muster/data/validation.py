"""A validation split: training samples that are kept back, to follow the loss without looking at the test set."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from muster.core.arrays import Ints
from muster.core.errors import ConfigError
from muster.data.federated import Dataset, Index, Samples
from muster.data.partition.base import Partition, Scheme


def held_back(samples: int, validation: float, rng: np.random.Generator) -> Ints:
    """Positions to keep back, ascending: a share of the training samples, or a whole number of them."""
    count = 0
    if isinstance(validation, int | float) and not isinstance(validation, bool):
        count = validation if isinstance(validation, int) else round(validation * samples)
    if not 0 < count < samples:
        raise ConfigError(
            f"bad value for 'data.validation': {validation!r}",
            expected=f"a share between 0 and 1, or a number of samples below {samples}, the training samples",
        )
    return np.sort(rng.choice(samples, size=count, replace=False))


def divide_rest(scheme: Scheme, dataset: Dataset, validation: Ints, rng: np.random.Generator) -> Partition:
    """Divide what is not kept back, as if the data set had nothing else; positions are those in all of it."""
    rest = np.setdiff1d(np.arange(len(dataset.train)), validation, assume_unique=True)
    partition = scheme.divide(replace(dataset, train=_rows(dataset.train, rest)), rng)
    train = partition.train
    return replace(partition, train=Index(train.starts, rest[train.samples]))


def _rows(samples: Samples, rows: Ints) -> Samples:
    return Samples(
        samples.features[rows],
        samples.labels[rows],
        None if samples.attributes is None else samples.attributes[rows],
        None if samples.owners is None else samples.owners[rows],
    )
