"""Coloured MNIST (after Arjovsky et al. 2019): is the digit five or more? Its colour may mislead."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from muster.core.arrays import Ints
from muster.data.cache import Arrays, NewArray, cached
from muster.data.federated import Dataset, Normalisation
from muster.data.sources._build import labelled
from muster.data.sources.base import sources
from muster.data.sources.mnist import MNIST

#: How the colours are drawn; part of the cache's key.
_COLOURS = "seed 42 for each split, class by class"


@sources.register("cmnist")
def cmnist(data_dir: str | None = None) -> Dataset:
    """Coloured MNIST: digits below five or not, drawn in red or green; made from MNIST's files.

    The colour (the attribute) is a fair coin for every picture, independent of the class: imbalance and spurious
    correlation come from the partition alone, as in FedDiverse (Németh et al. 2025).
    """
    found = MNIST.find(data_dir)
    if found is None:
        raise MNIST.missing(data_dir)
    grey, folder = MNIST.arrays(data_dir)

    def decode(new: NewArray) -> Arrays:
        arrays: Arrays = {}
        for split in ("train", "test"):
            images, digits = grey[f"{split}_features"], grey[f"{split}_labels"]
            labels = (digits >= 5).astype(np.int64)
            colours = coin_flips(labels)
            arrays[f"{split}_features"] = coloured(images, colours)
            arrays[f"{split}_labels"], arrays[f"{split}_attributes"] = labels, colours
        return arrays

    normalisation = Normalisation(mean=(0.1307,), std=(0.3081,), scale=1 / 255)
    return labelled(
        "cmnist",
        cached("cmnist", found.files, decode, colours=_COLOURS),
        folder,
        normalisation,
        ("below five", "five or more"),
        attribute_names=("red", "green"),
    )


def coin_flips(labels: Ints) -> Ints:
    """The colour of every picture of a split, as the authors' code draws it.

    A legacy generator that is seeded again for each split tosses a coin for the pictures of the first class, then
    for those of the second.
    """
    flips = np.random.RandomState(42)
    colours = np.zeros(len(labels), dtype=np.int64)
    for label in (0, 1):
        chosen = labels == label
        colours[chosen] = flips.binomial(1, 0.5, int(chosen.sum()))
    return colours


def coloured(images: npt.NDArray[np.uint8], colours: Ints) -> npt.NDArray[np.uint8]:
    """Grey pictures (n, 1, h, w) in colour (n, 3, h, w): all ink in the channel `colours`, the others black."""
    pictures = np.zeros((len(images), 3, *images.shape[2:]), dtype=np.uint8)
    pictures[np.arange(len(images)), colours] = images[:, 0]
    return pictures
