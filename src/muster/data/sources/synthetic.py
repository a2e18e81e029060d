"""Generated vectors: Gaussian classes, and synthetic(α, β) of the FedProx paper (Li et al. 2020)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from muster.core.arrays import Floats, Ints
from muster.core.errors import ConfigError
from muster.data.federated import Dataset, Samples
from muster.data.sources._build import held_out
from muster.data.sources.base import sources


@sources.register("synthetic")
def synthetic(
    kind: Literal["gaussian", "fedprox"] = "gaussian",
    *,
    classes: int = 10,
    features: int = 60,
    samples: int = 10_000,
    test_samples: int = 2_000,
    separation: float = 3.0,
    alpha: float = 1.0,
    beta: float = 1.0,
    clients: int = 30,
    iid: bool = False,
    test_fraction: float = 0.1,
    seed: int = 0,
    data_dir: str | None = None,
) -> Dataset:
    """Generated vectors: Gaussian classes, or the FedProx paper's synthetic(alpha, beta).

    `gaussian` makes `samples` + `test_samples` vectors around one centre per class; centres are `separation`
    standard deviations apart on average. `fedprox` makes `clients` natural clients, each with its own linear model
    and its own distribution of features, and ignores `samples` and `separation`. `data_dir` is not used.
    """
    if classes < 2 or features < 1:
        raise ConfigError(
            f"'data.classes' is {classes} and 'data.features' is {features}", expected="at least 2 and 1"
        )
    rng = np.random.default_rng(seed)
    if kind == "gaussian":
        train, test = gaussian_classes(rng, classes, features, (samples, test_samples), separation)
        owner_names: tuple[str, ...] = ()
    else:
        x, y, owners = fedprox_federation(rng, alpha, beta, clients, features=features, classes=classes, iid=iid)
        chosen = held_out(owners, test_fraction)
        train, test = (Samples(x[part], y[part], owners=owners[part]) for part in (~chosen, chosen))
        owner_names = tuple(f"device {k}" for k in range(clients))
    return Dataset(
        name="synthetic",
        train=train,
        test=test,
        classes=classes,
        class_names=tuple(str(c) for c in range(classes)),
        owner_names=owner_names,
        origin=f"generated ({kind}, seed {seed})",
    )


def gaussian_classes(
    rng: np.random.Generator, classes: int, features: int, sizes: tuple[int, int], separation: float
) -> tuple[Samples, Samples]:
    """Two splits of unit Gaussians around centres whose root mean square distance is `separation`."""
    if min(sizes) < classes or separation < 0:
        raise ConfigError(
            f"{sizes[0]} training and {sizes[1]} test samples with separation {separation}",
            expected=f"at least {classes} samples (one per class) and a separation of 0 or more",
        )
    # Two independent centres with variance σ² a coordinate are √(2 · features) · σ apart.
    centres = rng.normal(scale=separation / np.sqrt(2 * features), size=(classes, features))
    splits = []
    for size in sizes:
        labels = rng.permutation(np.arange(size, dtype=np.int64) % classes)
        points = centres[labels] + rng.normal(size=(size, features))
        splits.append(Samples(points.astype(np.float32), labels))
    return splits[0], splits[1]


def fedprox_federation(
    rng: np.random.Generator,
    alpha: float,
    beta: float,
    clients: int,
    *,
    features: int = 60,
    classes: int = 10,
    iid: bool = False,
) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.float32]], Ints, Ints]:
    """Features, labels and owners of synthetic(α, β): y = argmax(W_k x + b_k), x ~ N(v_k, Σ), Σ_jj = j^−1.2.

    α is the variance of the clients' model means u_k (W_k and b_k have entries from N(u_k, 1)), β that of their
    feature means B_k (v_k has entries from N(B_k, 1)). `iid` gives every client one model and v_k = 0. Sizes are
    50 + ⌊log-normal(4, 2)⌋.
    """
    if clients < 1 or alpha < 0 or beta < 0:
        raise ConfigError(
            f"'data.clients' is {clients}, alpha {alpha}, beta {beta}", expected="at least 1 client; variances ≥ 0"
        )
    sizes = 50 + rng.lognormal(4.0, 2.0, size=clients).astype(np.int64)
    deviations = np.arange(1, features + 1) ** -0.6
    shared = _linear_model(rng, 0.0, classes, features)
    xs, ys = [], []
    for size in sizes:
        weights, bias = shared if iid else _linear_model(rng, rng.normal(0.0, np.sqrt(alpha)), classes, features)
        centre = 0.0 if iid else rng.normal(rng.normal(0.0, np.sqrt(beta)), 1.0, size=features)
        x = centre + deviations * rng.normal(size=(size, features))
        xs.append(x.astype(np.float32))
        ys.append(np.argmax(x @ weights.T + bias, axis=1))
    return np.concatenate(xs), np.concatenate(ys).astype(np.int64), np.repeat(np.arange(clients), sizes)


def _linear_model(rng: np.random.Generator, mean: float, classes: int, features: int) -> tuple[Floats, Floats]:
    return rng.normal(mean, 1.0, size=(classes, features)), rng.normal(mean, 1.0, size=classes)
