"""Whether data can be trained on: all of it is looked at before anything trains, and messages say where."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from muster.core.errors import DataError
from muster.data.federated import TASKS, Dataset, FederatedData, Index

#: Bytes of features that are checked at a time.
_BLOCK = 64 * 1024**2
#: Targets of pixels and positions that do not count.
IGNORED = {"segmentation": 255, "next-token": -100}


def check_data(data: Dataset | FederatedData) -> None:
    """Refuse data that were passed as an object and cannot be trained on."""
    dataset = data.dataset if isinstance(data, FederatedData) else data
    check_dataset(dataset)
    if isinstance(data, FederatedData):
        _check_index(data.train_index, len(dataset.train), "training")
        if data.test_index is not None:
            _check_index(data.test_index, len(dataset.test), "test")


def check_dataset(dataset: Dataset) -> None:
    """Features without NaN, of one kind in both splits; targets that the task can have."""
    if dataset.task not in TASKS:
        raise DataError(f"unknown task '{dataset.task}'", expected=", ".join(TASKS))
    train, test = dataset.train, dataset.test
    if not len(train):
        raise DataError(f"the data set '{dataset.name}' has no training samples")
    for samples, split in ((train, "training"), (test, "test")):
        check_features(samples.features, f"{split} features")
        if samples.features.shape[1:] != train.features.shape[1:]:
            raise DataError(
                f"a test sample has the shape {samples.features.shape[1:]}",
                expected=f"{train.features.shape[1:]}, as in training",
            )
        check_targets(samples.labels, dataset.task, dataset.classes, split, samples.features)
        if samples.attributes is not None:
            if dataset.attribute_values is None:
                raise DataError("samples have attributes, but attribute_values does not say how many there are")
            _check_range(samples.attributes, dataset.attribute_values, f"{split} attributes")
    if dataset.tokens and not np.issubdtype(train.features.dtype, np.integer):
        raise DataError(f"the tokens are of type {train.features.dtype}", expected="integers")


def check_picture(dataset: Dataset, shape: tuple[int, ...]) -> None:
    """Refuse samples that begin with a picture of another shape than the model takes from them."""
    if dataset.picture is not None and dataset.picture.shape != shape:
        channels, height, width = dataset.picture.shape
        raise DataError(
            f"samples of '{dataset.name}' begin with a picture of {channels} × {height} × {width} numbers, "
            f"the model takes the first {' × '.join(map(str, shape))} for it",
            fix=f"set model.image_shape = [{channels}, {height}, {width}], or another data.image_size",
        )


def check_tokens(dataset: Dataset, vocabulary: str, count: int) -> None:
    """Refuse samples that are not token ids of a model's vocabulary, which has `count` tokens."""
    if dataset.vocabulary and dataset.vocabulary != vocabulary:
        raise DataError(
            f"the token ids of '{dataset.name}' stand for the tokens of another vocabulary than the model's",
            fix="set data.encoder = 'wordpiece', and data.vocabulary to the folder of the model's BERT",
        )
    if not dataset.vocabulary and not dataset.tokens:
        raise DataError(
            f"the samples of '{dataset.name}' are numbers, but the model takes token ids",
            fix="set data.encoder = 'wordpiece', and data.vocabulary to the folder of the model's BERT",
        )
    if not dataset.vocabulary:  # the user's own ids
        for samples in (dataset.train, dataset.test):
            _check_range(samples.features, count, "token ids")


def check_features(features: npt.NDArray[Any], what: str) -> None:
    """Refuse features that are not finite numbers."""
    if features.dtype.kind not in "biuf":
        raise DataError(
            f"the {what} are of type {features.dtype}",
            expected="numbers",
            fix="turn words and categories into numbers first, and give all samples the same shape",
        )
    if features.ndim < 2:
        raise DataError(
            f"the {what} have the shape {features.shape}",
            expected="samples first, then the shape of a sample: (1000, 20) or (1000, 3, 32, 32)",
            fix="features[:, None] makes a column of single numbers",
        )
    if features.dtype.kind == "f":
        _check_finite(features, what)


def _check_finite(values: npt.NDArray[Any], what: str) -> None:
    wrong, first = 0, None
    for start, block in _blocks(values):
        finite = np.isfinite(block)
        if finite.all():
            continue
        bad = ~finite.reshape(len(block), -1)
        rows = np.flatnonzero(bad.any(axis=1))
        if first is None:
            at = int(np.argmax(bad[rows[0]]))
            position = ", ".join(str(int(axis)) for axis in np.unravel_index(at, block.shape[1:] or (1,)))
            first = (start + int(rows[0]), position, float(block.reshape(len(block), -1)[rows[0], at]))
        wrong += len(rows)
    if first is not None:
        sample, position, value = first
        raise DataError(
            f"the {what}: {wrong:,} of {len(values):,} samples have values that are not finite numbers "
            f"(first: {value} in sample {sample}, position {position})",
            fix="fill these values in or leave the samples out (numpy.nan_to_num, pandas' fillna and dropna)",
        )


def _blocks(values: npt.NDArray[Any]) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """In parts: memory-mapped arrays need not fit into memory."""
    rows = max(1, _BLOCK // max(1, values.itemsize * math.prod(values.shape[1:])))
    for start in range(0, len(values), rows):
        yield start, values[start : start + rows]


def check_targets(
    labels: npt.NDArray[Any], task: str, classes: int | None, split: str, features: npt.NDArray[Any] | None = None
) -> None:
    """Refuse targets that a task cannot have; `classes` is what they may range over (None: not known yet)."""
    what = f"{split} labels"
    if task == "regression":
        if labels.dtype.kind not in "biuf":
            raise DataError(f"the {what} are of type {labels.dtype}", expected="numbers, for a regression")
        _check_finite(labels, what)
        return
    if task == "multi-label":
        if labels.ndim != 2 or labels.shape[1] != classes:
            raise DataError(
                f"the {what} have the shape {labels.shape}",
                expected=f"samples × {classes} labels, each 0 or 1",
            )
        _check_finite(labels.astype(np.float64), what)
        other = np.flatnonzero(((labels != 0) & (labels != 1)).any(axis=1))
        if len(other):
            raise DataError(f"the {what}: sample {other[0]} has {labels[other[0]].tolist()}", expected="0 and 1")
        return
    _check_class_type(labels, what)
    if task == "classification":
        _check_one_class(labels, what)
        _check_range(labels, classes, what)
        return
    size = None if features is None else features.shape[1:]
    if task == "segmentation":
        if labels.ndim != 3 or (size is not None and labels.shape[1:] != size[-2:]):
            raise DataError(
                f"the {what} have the shape {labels.shape}, the features {None if size is None else size} each",
                expected="samples × height × width, as pictures have them",
            )
    elif labels.ndim != 2 or (size is not None and labels.shape[1:] != size):
        raise DataError(
            f"the {what} have the shape {labels.shape}, the features {None if size is None else size} each",
            expected="samples × positions: the next token of each position",
        )
    _check_range(labels[labels != IGNORED[task]], classes, what)


def _check_class_type(labels: npt.NDArray[Any], what: str) -> None:
    if labels.dtype.kind in "biu":
        return
    fix = "labels.astype(int), if they are classes; task='regression', if they are numbers to predict"
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        _check_finite(labels, what)
    if labels.dtype.kind == "f" and _is_one_hot(labels):
        _check_one_class(labels, what)
    if labels.dtype.kind != "f":
        fix = "muster.data.from_arrays numbers the classes of words"
    raise DataError(f"the {what} are of type {labels.dtype}", expected="classes as integers from 0", fix=fix)


def _is_one_hot(labels: npt.NDArray[Any]) -> bool:
    return labels.ndim == 2 and bool(((labels == 0) | (labels == 1)).all() and (labels.sum(axis=1) == 1).all())


def _check_one_class(labels: npt.NDArray[Any], what: str) -> None:
    if labels.ndim == 1:
        return
    if labels.ndim == 2 and labels.shape[1] == 1:
        raise DataError(f"the {what} have the shape {labels.shape}", expected="one axis", fix="labels[:, 0]")
    if _is_one_hot(labels):
        raise DataError(
            f"the {what} are one-hot (shape {labels.shape})",
            expected="the number of the class",
            fix="labels.argmax(axis=1)",
        )
    raise DataError(
        f"the {what} have the shape {labels.shape}",
        expected="one class per sample",
        fix="task='multi-label', 'segmentation' or 'next-token', if samples have more than one",
    )


def _check_range(values: npt.NDArray[Any], classes: int | None, what: str) -> None:
    count = np.inf if classes is None else classes
    if not values.size or (values.min() >= 0 and values.max() < count):
        return
    lowest, highest = int(values.min()), int(values.max())
    expected = "0 or more" if classes is None else f"0 to {classes - 1}"
    fix = ""
    if lowest == 1 and highest == count:
        fix = "count from 0: subtract 1"
    elif lowest < 0:
        fix = "leave samples without a label out"
    flat = values.reshape(-1)
    where = int(np.flatnonzero((flat < 0) | (flat >= count))[0])
    at = f" (first: {int(flat[where])} in sample {where})" if values.ndim == 1 else ""
    raise DataError(f"the {what} go from {lowest} to {highest}{at}", expected=expected, fix=fix)


def _check_index(index: Index, samples: int, split: str) -> None:
    found = index.samples
    if len(found) and not (found.min() >= 0 and found.max() < samples):
        wrong = int(found[(found < 0) | (found >= samples)][0])
        client = int(np.searchsorted(index.starts, int(np.flatnonzero(found == wrong)[0]), side="right")) - 1
        raise DataError(
            f"client {client} has the {split} sample {wrong}", expected=f"positions from 0 to {samples - 1}"
        )
