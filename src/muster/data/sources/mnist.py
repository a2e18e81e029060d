"""MNIST (LeCun, Cortes and Burges 1998): 28 × 28 grey pictures of handwritten digits."""

from __future__ import annotations

from muster.data.federated import Dataset, Normalisation
from muster.data.sources._idx import idx_dataset
from muster.data.sources.base import sources


@sources.register("mnist")
def mnist(data_dir: str | None = None) -> Dataset:
    """MNIST: 60,000 + 10,000 grey 28 × 28 pictures of handwritten digits."""
    normalisation = Normalisation(mean=(0.1307,), std=(0.3081,), scale=1 / 255)
    return idx_dataset("mnist", data_dir, normalisation, tuple("0123456789"))
