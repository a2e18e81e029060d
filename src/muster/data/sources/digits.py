"""The digits that scikit-learn carries (Alpaydin and Kaynak 1998): small, real, and always there."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from muster.core.arrays import Ints
from muster.core.errors import ConfigError
from muster.data.federated import Dataset, Normalisation, Samples
from muster.data.sources.base import sources


@cache
def pictures() -> tuple[npt.NDArray[np.uint8], Ints]:
    """All pictures and their labels. Scikit-learn has them as text, which takes a while to read."""
    bunch = load_digits()
    return bunch.images.astype(np.uint8)[:, None], bunch.target.astype(np.int64)


@sources.register("digits")
def digits(test_fraction: float = 0.2, data_dir: str | None = None) -> Dataset:
    """Scikit-learn's digits: 1,797 grey 8 × 8 pictures; needs no download.

    The data has no official split, so one is made: stratified by class, the same on every machine. `data_dir` is
    accepted as everywhere but not used, because the pictures come with scikit-learn.
    """
    if not 0.0 < test_fraction < 1.0:
        raise ConfigError(f"bad value for 'data.test_fraction': {test_fraction}", expected="between 0 and 1")
    images, labels = pictures()
    chosen = train_test_split(np.arange(len(labels)), test_size=test_fraction, stratify=labels, random_state=0)
    train, test = (np.sort(part) for part in chosen)
    return Dataset(
        name="digits",
        train=Samples(images[train], labels[train]),
        test=Samples(images[test], labels[test]),
        classes=10,
        normalisation=Normalisation(mean=(0.3053,), std=(0.3761,), scale=1 / 16),
        class_names=tuple("0123456789"),
        origin="scikit-learn",
    )
