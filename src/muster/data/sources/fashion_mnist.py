"""Fashion-MNIST (Xiao, Rasul and Vollgraf 2017): 28 × 28 grey pictures of ten kinds of clothing."""

from __future__ import annotations

from muster.data.federated import Dataset, Normalisation
from muster.data.sources._idx import idx_dataset
from muster.data.sources.base import sources

CLASS_NAMES = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)


@sources.register("fashion-mnist")
def fashion_mnist(data_dir: str | None = None) -> Dataset:
    """Fashion-MNIST: 60,000 + 10,000 grey 28 × 28 pictures of ten kinds of clothing."""
    normalisation = Normalisation(mean=(0.2860,), std=(0.3530,), scale=1 / 255)
    return idx_dataset("fashion-mnist", data_dir, normalisation, CLASS_NAMES)
