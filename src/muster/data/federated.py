"""A data set divided among clients: arrays plus an index in compressed rows. No object per client."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import torch

from muster.core.arrays import Bools, Ints
from muster.core.errors import ConfigError, DataError

_COUNTED_AT_ONCE = 65_536
#: Numbers that stay in a core's cache while they are worked on.
_NORMALISED_AT_ONCE = 262_144

#: What a sample's target is: a class, any number of labels, numbers, a class for every pixel, the next tokens.
Task: TypeAlias = Literal["classification", "multi-label", "regression", "segmentation", "next-token"]
TASKS: tuple[str, ...] = get_args(Task)


@dataclass(frozen=True)
class Normalisation:
    """x ↦ (x · scale − mean) / std, per channel (the first axis of a sample) or for all values alike."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    scale: float = 1.0

    def apply(self, features: torch.Tensor) -> torch.Tensor:
        if self == Normalisation():
            return features.float()
        shape = (1, -1) + (1,) * (features.dim() - 2) if len(self.mean) > 1 else (1,) * features.dim()
        mean = torch.tensor(self.mean).view(shape)
        std = torch.tensor(self.std).view(shape)
        # One new tensor, changed in place block by block: memory traffic is most of the cost.
        result = torch.empty_like(features, dtype=torch.float32)
        rows = max(1, _NORMALISED_AT_ONCE // max(1, math.prod(features.shape[1:])))
        for part, source in zip(torch.split(result, rows), torch.split(features, rows), strict=True):
            part.copy_(source).mul_(self.scale).sub_(mean).div_(std)
        return result


@dataclass(frozen=True, repr=False)
class Samples:
    """Features and labels of one split. Features may be memory-mapped and of any dtype (uint8 images, tokens)."""

    features: npt.NDArray[np.generic]
    #: One class per sample; for other tasks what they have as targets, samples first.
    labels: npt.NDArray[Any]
    #: A group attribute of every sample (for example the background), where the data has one.
    attributes: Ints | None = None
    #: The natural client of every sample (writer, speaker), 0-based, where the data has one.
    owners: Ints | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", _as_labels(self.labels))
        beside = {"labels": self.labels, "attributes": self.attributes, "owners": self.owners}
        for name, values in beside.items():
            if values is not None and len(values) != len(self.features):
                raise DataError(
                    f"{len(self.features):,} samples have {len(values):,} {name}", expected="one for each sample"
                )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        """Short, like those below: arrays would fill many screens."""
        return f"Samples({len(self):,} of shape {self.features.shape[1:]})"


@dataclass(frozen=True)
class LeadingPicture:
    """The picture that samples begin with, where they are vectors of a picture and something else."""

    #: Channels, height, width.
    shape: tuple[int, int, int]
    #: How its pixels, from 0 to 1, became the numbers of the samples.
    normalisation: Normalisation


@dataclass(frozen=True, repr=False)
class Dataset:
    """A whole data set with its usual split, before it is divided among clients."""

    name: str
    train: Samples
    test: Samples
    classes: int
    normalisation: Normalisation = Normalisation()
    #: Number of values of the attribute.
    attribute_values: int | None = None
    class_names: tuple[str, ...] = ()
    attribute_names: tuple[str, ...] = ()
    owner_names: tuple[str, ...] = ()
    #: Features are token ids: kept as integers, not normalised.
    tokens: bool = False
    #: Tells apart which tokens the ids stand for; "": unknown.
    vocabulary: str = ""
    #: The picture at the beginning of samples that are vectors.
    picture: LeadingPicture | None = None
    #: Where the data came from, for reports.
    origin: str = ""
    #: What a sample's target is. Where it is not a class, `classes` is the number of outputs that a model has.
    task: Task = "classification"

    def __deepcopy__(self, memo: dict[int, Any]) -> Dataset:
        # Nothing of it is ever changed, and it may be large.
        return self

    def __repr__(self) -> str:
        return f"Dataset({self._facts()})"

    def _facts(self) -> str:
        learnt = f"{self.classes} classes" if self.task == "classification" else self.task
        shape = " × ".join(map(str, self.sample_shape))
        return f"'{self.name}': {len(self.train):,} + {len(self.test):,} test samples of {shape}, {learnt}"

    def normalised(self, mean_and_std: Sequence[float]) -> Dataset:
        """The same data with another normalisation: one mean and spread for all, on the scale 0 to 1."""
        given = tuple(mean_and_std) if isinstance(mean_and_std, Sequence) else (mean_and_std,)
        numbers = [x for x in given if isinstance(x, int | float) and math.isfinite(x)]
        if len(given) != 2 or numbers != list(given) or numbers[1] <= 0:
            raise ConfigError(
                f"bad value for 'data.normalise': {mean_and_std!r}",
                expected="a mean and a positive standard deviation, such as [0.5, 0.5]",
            )
        if self.tokens:
            raise ConfigError(
                f"data.normalise: the data set '{self.name}' consists of token ids", fix="leave it out"
            )
        if self.picture is not None or self.vocabulary:
            raise ConfigError(
                f"data.normalise: samples of '{self.name}' are more than pixels, and those are normalised already",
                fix="leave it out",
            )
        mean, std = (float(number) for number in numbers)
        return replace(self, normalisation=Normalisation((mean,), (std,), self.normalisation.scale))

    @property
    def sample_shape(self) -> tuple[int, ...]:
        return tuple(self.train.features.shape[1:])

    @cached_property
    def check_sum(self) -> int:
        """A hash of all features and targets, which identifies data that were passed as an object."""
        return check_sum(*(part for split in (self.train, self.test) for part in (split.features, split.labels)))


@dataclass(frozen=True, repr=False)
class Index:
    """Which samples belong to which client: client k has `samples[starts[k] : starts[k + 1]]`."""

    starts: Ints
    samples: npt.NDArray[np.integer]

    def __repr__(self) -> str:
        return f"Index({self.clients:,} clients, {len(self.samples):,} samples)"

    @property
    def clients(self) -> int:
        return len(self.starts) - 1

    @cached_property
    def sizes(self) -> Ints:
        return np.diff(self.starts)

    def __getitem__(self, client: int) -> npt.NDArray[np.integer]:
        return self.samples[self.starts[client] : self.starts[client + 1]]

    def of_many(self, clients: Ints) -> tuple[npt.NDArray[np.integer], Ints]:
        """The samples of several clients, client by client, and for each which of `clients` has it."""
        sizes = self.sizes[clients]
        owners = np.repeat(np.arange(len(clients)), sizes)
        # Entry i of the answer is entry i − (where its client begins there) + (where it begins here).
        shifts = self.starts[clients] - (np.cumsum(sizes) - sizes)
        return self.samples[np.arange(len(owners)) + shifts[owners]], owners

    @cached_property
    def owners(self) -> Ints:
        """The client of every entry of `samples`."""
        return np.repeat(np.arange(self.clients), self.sizes)

    @classmethod
    def from_lists(cls, lists: Sequence[npt.ArrayLike]) -> Index:
        rows = [np.asarray(row, dtype=np.int64) for row in lists]
        starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])]).astype(np.int64)
        return cls(starts, np.concatenate(rows) if rows else np.empty(0, dtype=np.int64))

    @classmethod
    def from_owners(cls, owners: Ints, clients: int) -> Index:
        """From the client of every sample (−1: none), in O(samples); samples ascend within a client."""
        order = np.argsort(owners, kind="stable")
        order = order[np.searchsorted(owners[order], 0) :]
        counts = np.bincount(owners[owners >= 0], minlength=clients)
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        small = len(owners) < np.iinfo(np.int32).max
        return cls(starts, order.astype(np.int32 if small else np.int64))


@dataclass(frozen=True, repr=False)
class FederatedData:
    """A data set and which client has which samples. `test_index`: of the test split; None: clients have none."""

    dataset: Dataset
    train_index: Index
    test_index: Index | None = None
    #: Positions in the training split that no client trains on, for choosing settings; None: there are none.
    validation: Ints | None = None

    def __post_init__(self) -> None:
        empty = np.flatnonzero(self.train_index.sizes == 0)
        if len(empty):
            raise DataError(
                f"{len(empty)} of {self.clients} clients have no training samples (first: client {empty[0]})",
                expected="at least one sample per client",
                fix="use fewer clients, a larger alpha, or a minimum size",
            )

    def __deepcopy__(self, memo: dict[int, Any]) -> FederatedData:
        return self

    def __repr__(self) -> str:
        return f"FederatedData({self.clients:,} clients, {self.dataset._facts()})"

    @property
    def clients(self) -> int:
        return self.train_index.clients

    @property
    def sizes(self) -> Ints:
        return self.train_index.sizes

    @property
    def classes(self) -> int:
        return self.dataset.classes

    def client(self, client: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A client's training features (normalised, float32 or tokens) and labels."""
        return self.tensors(self.dataset.train, self.train_index[client])

    def client_attributes(self, client: int) -> Ints | None:
        """The attributes of a client's training samples, where the data has them."""
        attributes = self.dataset.train.attributes
        return None if attributes is None else attributes[self.train_index[client]]

    def tensors(self, samples: Samples, positions: npt.NDArray[np.integer]) -> tuple[torch.Tensor, torch.Tensor]:
        """Some samples of a split as tensors that a model takes."""
        features = torch.from_numpy(np.ascontiguousarray(samples.features[positions]))
        labels = torch.from_numpy(np.ascontiguousarray(samples.labels[positions]))
        if not labels.is_floating_point():
            labels = labels.long()
        if self.dataset.tokens:
            return features.long(), labels
        return self.dataset.normalisation.apply(features), labels

    def counts(self, clients: Ints, by_attribute: bool = False) -> Ints:
        """How many training samples of each class these clients have: clients × classes (× attribute values)."""
        if self.dataset.task != "classification":
            raise DataError(
                f"the samples of '{self.dataset.name}' have no classes to count: the task is {self.dataset.task}"
            )
        train, values = self.dataset.train, self.dataset.attribute_values if by_attribute else 1
        if values is None or (by_attribute and train.attributes is None):
            raise DataError(f"the data set '{self.dataset.name}' has no attributes to count by")
        cells = self.classes * values
        table = np.empty((len(clients), cells), dtype=np.int64)
        # In blocks, so that a million clients need little more memory than their answer.
        for start in range(0, len(clients), _COUNTED_AT_ONCE):
            block = clients[start : start + _COUNTED_AT_ONCE]
            positions, owners = self.train_index.of_many(block)
            found = train.labels[positions]
            if by_attribute and train.attributes is not None:
                found = found * values + train.attributes[positions]
            flat = np.bincount(owners * cells + found, minlength=len(block) * cells)
            table[start : start + len(block)] = flat.reshape(len(block), cells)
        return table.reshape(len(clients), self.classes, values) if by_attribute else table

    @cached_property
    def label_histograms(self) -> Ints:
        """clients × classes: what an oracle knows; servers do not see it unless a signal discloses it."""
        return self.counts(np.arange(self.clients))

    @cached_property
    def group_counts(self) -> Ints | None:
        """clients × classes × attribute values, where the data has attributes."""
        if self.dataset.train.attributes is None or self.dataset.attribute_values is None:
            return None
        return self.counts(np.arange(self.clients), by_attribute=True)

    def unassigned(self) -> Bools:
        """Training samples that no client has, and that are not held out for validation either."""
        free = np.ones(len(self.dataset.train), dtype=np.bool_)
        free[self.train_index.samples] = False
        if self.validation is not None:
            free[self.validation] = False
        return free


def check_sum(*arrays: np.ndarray[Any, Any]) -> int:
    """Of the arrays' bytes, in blocks: memory-mapped ones need not fit into memory."""
    check = 0
    for array in map(np.atleast_1d, arrays):
        rows = max(1, _COUNTED_AT_ONCE * 64 // max(1, array.itemsize * math.prod(array.shape[1:])))
        for start in range(0, len(array), rows):
            block = np.ascontiguousarray(array[start : start + rows])
            check = zlib.crc32(block.view(np.uint8).data if block.size else b"", check)
    return check


def _as_labels(labels: Any) -> npt.NDArray[Any]:
    """As an array; classes as int64, whatever they came as: smaller types overflow in sums over classes."""
    array = np.asarray(labels)
    return array.astype(np.int64, copy=False) if array.ndim == 1 and array.dtype.kind in "biu" else array
