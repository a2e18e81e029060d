"""Data that clients bring themselves: the experiment only says what it looks like."""

from __future__ import annotations

import numpy as np

from muster.core.errors import ConfigError
from muster.data.federated import Dataset, FederatedData, Index, Normalisation, Samples

#: What `[data] source = …` says when every client has its own.
OWN = "own"


def own_dataset(
    shape: tuple[int, ...],
    classes: int,
    *,
    attribute_values: int | None = None,
    tokens: bool = False,
    mean: tuple[float, ...] = (0.0,),
    std: tuple[float, ...] = (1.0,),
    scale: float = 1.0,
) -> Dataset:
    """A data set without samples: the shape of one, the number of classes, and how features are normalised."""
    if not shape or min(shape) < 1:
        raise ConfigError(
            f"bad value for 'data.shape': {list(shape)}", expected="the shape of one sample, e.g. [1, 28, 28]"
        )
    if classes < 2:
        raise ConfigError(f"bad value for 'data.classes': {classes}", expected="at least 2")
    features = np.empty((0, *shape), dtype=np.int64 if tokens else np.float32)
    nothing = Samples(features, np.empty(0, dtype=np.int64))
    normalisation = Normalisation(mean, std, scale)
    return Dataset(OWN, nothing, nothing, classes, normalisation, attribute_values, tokens=tokens)


def without_clients(dataset: Dataset) -> FederatedData:
    """A federation whose clients are not known yet."""
    return FederatedData(dataset, Index.from_lists([]))
