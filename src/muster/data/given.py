"""Turns what the user passed into arrays: features, targets, clients and groups, checked and numbered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from muster.core.arrays import Ints
from muster.core.errors import ConfigError, DataError, nearest
from muster.data.checks import IGNORED, check_features, check_targets
from muster.data.federated import Samples, Task
from muster.data.sources._build import held_out

#: Features and targets.
Pair: TypeAlias = tuple[Any, Any]


def samples_of(features: Any, labels: Any, task: Task, split: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Features and labels of a split as arrays of equal length."""
    found = array_of(features, f"{split} features")
    if found.ndim and not len(found):
        raise DataError(f"there are no {split} samples", expected="one or more", fix="look at what was read")
    check_features(found, f"{split} features")
    if found.dtype == np.float64:
        with np.errstate(over="ignore"):
            found = found.astype(np.float32)
        check_features(found, f"{split} features (in single precision)")
    if labels is None:
        # The next tokens are in the texts themselves.
        if task != "next-token":
            raise DataError(f"there are no {split} labels", expected="one for each sample")
        if found.shape[1] < 2:
            raise DataError(f"the texts have {found.shape[1]} tokens", expected="two or more")
        return np.ascontiguousarray(found[:, :-1]), np.ascontiguousarray(found[:, 1:])
    targets = array_of(labels, f"{split} labels")
    if len(targets) != len(found):
        raise DataError(
            f"there are {len(found):,} {split} samples and {len(targets):,} labels", expected="one for each sample"
        )
    if task in ("segmentation", "next-token"):
        check_targets(targets, task, None, split, found)
    return found, targets


def array_of(values: Any, what: str) -> npt.NDArray[Any]:
    """An array, list or tensor as an array of NumPy."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    if np.ma.is_masked(values):
        raise DataError(f"the {what} have masked values", fix="fill them in (.filled(…)) or leave the samples out")
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DataError(f"the {what} are not an array: {error}", expected="samples of the same shape") from error
    if array.dtype == object and array.ndim == 1:
        kinds = {type(value) for value in array.tolist()}
        if kinds == {str}:
            return array.astype(str)
        if kinds == {int}:
            try:
                return array.astype(np.int64)
            except OverflowError as error:
                raise DataError(
                    f"the {what} have whole numbers of more than 64 bits",
                    fix="pass them as text, or number them anew",
                ) from error
    return array


def numbered_targets(
    parts: list[npt.NDArray[Any]], task: Task, classes: int | None, names: tuple[str, ...]
) -> tuple[list[npt.NDArray[Any]], int, tuple[str, ...]]:
    """Targets in the form that the task has, how many outputs a model needs for them, and the names of classes."""
    splits = ("training", "test")
    if task == "regression":
        for part, split in zip(parts, splits, strict=False):
            check_targets(part, task, None, split)
        width = int(np.prod(parts[0].shape[1:], dtype=np.int64))
        return [part.astype(np.float32) for part in parts], width if classes is None else classes, names
    if task == "multi-label":
        width = parts[0].shape[1] if parts[0].ndim == 2 else len(names)
        for part, split in zip(parts, splits, strict=False):
            check_targets(part, task, width, split)
        return [part.astype(np.float32) for part in parts], width, names
    if task == "classification":
        for part, split in zip(parts, splits, strict=False):
            _check_of_one_type(part, split)
    if task == "classification" and parts[0].dtype.kind in "US":
        names = names or tuple(sorted({str(word) for part in parts for word in part.ravel()}))
        parts = [_places(part, names, split) for part, split in zip(parts, splits, strict=False)]
    for part, split in zip(parts, splits, strict=False):
        check_targets(part, task, None, split)
    if classes is None:
        classes = len(names) or _counted(parts, task)
    if task == "classification":  # while samples have the numbers that the user knows them by
        for part, split in zip(parts, splits, strict=False):
            check_targets(part, task, classes, split)
    return parts, classes, names


def _check_of_one_type(labels: npt.NDArray[Any], split: str) -> None:
    if labels.dtype != object or labels.ndim != 1:
        return
    types = [type(label) for label in labels.tolist()]
    usual = max(set(types), key=types.count)
    odd = next((number for number, kind in enumerate(types) if kind is not usual), 0)
    raise DataError(
        f"the {split} label of sample {odd} is {labels[odd]!r}",
        expected="classes of one type: integers from 0, or words",
        fix="leave samples without a label out, and make all labels words: labels.astype(str)",
    )


def _places(words: npt.NDArray[Any], names: tuple[str, ...], split: str) -> Ints:
    """The numbers of words among names."""
    numbers = {name: number for number, name in enumerate(names)}
    unknown = sorted({str(word) for word in words.ravel()} - set(numbers))
    if unknown:
        raise DataError(f"a {split} label is '{unknown[0]}'", expected=nearest(unknown[0], names))
    return np.array([numbers[str(word)] for word in words.ravel()], dtype=np.int64).reshape(words.shape)


def _counted(parts: list[npt.NDArray[Any]], task: Task) -> int:
    """How many classes there are, by the largest label."""
    counted = [part[part != IGNORED[task]] if task in IGNORED else part for part in parts]
    lowest = min((int(part.min()) for part in counted if part.size), default=0)
    highest = max((int(part.max()) for part in counted if part.size), default=0)
    if lowest == 1 and task == "classification":
        raise DataError(
            f"the labels go from 1 to {highest}, and 0 does not occur",
            expected="classes that count from 0",
            fix=f"labels - 1; or classes={highest + 1}, if there is a class 0 without samples",
        )
    if task == "classification" and highest >= max(2, sum(map(len, parts))):
        raise DataError(
            f"the largest label is {highest:,}, with {sum(map(len, parts)):,} samples",
            expected="classes as consecutive integers from 0",
            fix="numpy.unique(labels, return_inverse=True)[1] numbers them; or say how many there are: classes=…",
        )
    return max(2 if task == "classification" else 1, highest + 1)


def numbered_clients(columns: list[Any], parts: list[Pair]) -> tuple[list[Ints | None], tuple[str, ...]]:
    """The number of every sample's client in each split, and the clients' names; clients in sorted order."""
    if columns[0] is None:
        if columns[1] is not None:
            raise DataError("test_clients without clients", fix="name the clients of the training samples, too")
        return [None] * len(parts), ()
    return _places_in_order(columns, parts, "clients")


def numbered_groups(columns: list[Any], parts: list[Pair]) -> tuple[list[Ints | None], tuple[str, ...]]:
    """The number of every sample's group in each split, and the groups' names."""
    if columns[0] is None:
        return [None] * len(parts), ()
    if len(parts) == 2 and columns[1] is None:
        raise DataError("attributes without test_attributes", fix="give those of the test samples, too")
    return _places_in_order(columns, parts, "attributes")


def _places_in_order(
    columns: list[Any], parts: list[Pair], what: str
) -> tuple[list[Ints | None], tuple[str, ...]]:
    arrays: list[npt.NDArray[Any] | None] = []
    for column, (features, _), split in zip(columns, parts, ("training", "test"), strict=False):
        if column is None:
            arrays.append(None)
            continue
        values = array_of(column, what)
        if values.ndim != 1 or len(values) != len(features):
            raise DataError(
                f"there are {len(features):,} {split} samples, and the {what} have the shape {values.shape}",
                expected="one for each sample",
            )
        missing = np.flatnonzero([value is None or value != value for value in values.tolist()])  # noqa: PLR0124
        if len(missing):
            raise DataError(
                f"{split} sample {missing[0]} has no entry among the {what}"
                + (f", nor have {len(missing) - 1:,} others" if len(missing) > 1 else ""),
                expected="one for each sample",
                fix=f"leave these samples out, or say what their {what} are",
            )
        arrays.append(values)
    try:
        known = np.unique(np.concatenate([array for array in arrays if array is not None]))
    except TypeError as error:
        raise DataError(
            f"the {what} are of several types ({error})",
            expected="numbers, or words",
            fix="make all of them words",
        ) from error
    found: list[Ints | None] = [
        None if array is None else np.searchsorted(known, array).astype(np.int64) for array in arrays
    ]
    return found, tuple(str(value) for value in known.tolist())


def held_out_split(samples: Samples, share: float, task: Task) -> list[Samples]:
    """Training and test samples: a share of every client's, or else of every class's."""
    if not 0 < share < 1:
        raise ConfigError(f"test_share is {share}", expected="a share between 0 and 1, or test=(features, labels)")
    groups = samples.owners
    if groups is None:
        groups = samples.labels if task == "classification" else np.zeros(len(samples), dtype=np.int64)
    kept = held_out(groups, share)
    if not kept.any():
        raise DataError(
            f"a share of {share:g} of every client's samples leaves nothing to test on",
            fix="raise test_share, or bring test data: test=(features, labels)",
        )
    return [_rows(samples, np.flatnonzero(chosen)) for chosen in (~kept, kept)]


def _rows(samples: Samples, rows: Ints) -> Samples:
    return Samples(
        samples.features[rows],
        samples.labels[rows],
        None if samples.attributes is None else samples.attributes[rows],
        None if samples.owners is None else samples.owners[rows],
    )


def scale_of(features: npt.NDArray[Any], scale: float | None) -> float:
    """What features are multiplied by: bytes become numbers from 0 to 1 unless something else is said."""
    if scale is not None:
        return scale
    return 1 / 255 if features.dtype == np.uint8 else 1.0


def samples_of_clients(datasets: Any, split: str) -> tuple[Any, Any, Any]:
    """The samples of several data sets together, and the client of each."""
    named = dict(datasets) if isinstance(datasets, Mapping) else dict(enumerate(datasets))
    if not named:
        raise DataError(f"there are no clients with {split} data")
    parts = []
    for name, dataset in named.items():
        if len(dataset) == 0:
            raise DataError(f"client '{name}' has no {split} samples", fix="leave it out")
        parts.append(stacked(dataset, f"client '{name}', {split}"))
    shapes = {np.shape(features)[1:] for features, _ in parts}
    if len(shapes) > 1:
        raise DataError(f"clients have samples of the shapes {sorted(shapes)}", expected="one shape")
    owners = np.repeat(np.array(list(named)), [len(labels) for _, labels in parts])
    return (
        np.concatenate([features for features, _ in parts]),
        np.concatenate([labels for _, labels in parts]),
        owners,
    )


def stacked(dataset: Any, what: str) -> Pair:
    """The samples of a PyTorch data set as arrays."""
    if not hasattr(dataset, "__len__"):
        raise DataError(f"{what}: the data set has no length", expected="one that can be indexed")
    tensors = getattr(dataset, "tensors", None)
    if tensors is not None and len(tensors) == 2:
        return array_of(tensors[0], f"{what} features"), array_of(tensors[1], f"{what} labels")
    features: list[npt.NDArray[Any]] = []
    labels: list[npt.NDArray[Any]] = []
    if not hasattr(dataset, "__getitem__"):
        inside = hasattr(dataset, "dataset")  # as in a DataLoader
        raise DataError(
            f"{what}: a {type(dataset).__name__} cannot be indexed",
            expected="a data set of (features, label) pairs",
            fix="pass the data set that it reads: loader.dataset" if inside else "",
        )
    for number in range(len(dataset)):
        try:
            item = dataset[number]
        except Exception as error:
            raise DataError(
                f"{what}: item {number} cannot be read ({type(error).__name__}: {error})",
                fix="leave it out (torch.utils.data.Subset), or repair it",
            ) from error
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(
                f"{what}: item {number} is a {type(item).__name__}",
                expected="(features, label)",
                fix="wrap the data set in one that returns such pairs, or use from_arrays",
            )
        sample = array_of(item[0], f"{what} features")
        if features and sample.shape != features[0].shape:
            raise DataError(
                f"{what}: sample {number} has the shape {sample.shape}",
                expected=f"{features[0].shape}, as sample 0",
                fix="give the data set a transform that makes all samples alike",
            )
        features.append(sample)
        labels.append(array_of(item[1], f"{what} labels"))
    if not features:
        raise DataError(f"{what}: the data set is empty")
    return np.stack(features), np.stack(labels)


def side_by_side(values: list[Any], names: list[str]) -> npt.NDArray[Any]:
    """Columns as features: pictures and lists by themselves, numbers side by side."""
    arrays = []
    for column, name in zip(values, names, strict=True):
        items = list(column)
        pictures = bool(items) and hasattr(items[0], "convert")
        array = array_of([np.asarray(item) for item in items] if pictures else items, f"column '{name}'")
        if pictures:
            array = array[:, None] if array.ndim == 3 else np.moveaxis(array, -1, 1)
        arrays.append(array[:, None] if array.ndim == 1 else array)
    if len(arrays) > 1 and any(array.ndim != 2 for array in arrays):
        raise DataError(
            f"the columns {', '.join(names)} cannot be put side by side", expected="columns of numbers"
        )
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=1)


def check_column(values: npt.NDArray[Any], name: str, split: str, *, numbers: bool) -> None:
    """Refuse a column with gaps, or one of features that has no numbers."""
    gaps = np.flatnonzero([value is None or value != value for value in values.tolist()])  # noqa: PLR0124
    if len(gaps):
        raise DataError(
            f"the column '{name}' of the {split} table: {len(gaps):,} of {len(values):,} rows have no value "
            f"(first: row {gaps[0]})",
            fix="fill them in or leave them out: table.fillna(…), table.dropna()",
        )
    if numbers and values.dtype.kind not in "biuf":
        raise DataError(
            f"the column '{name}' has values of type {type(values[0]).__name__}, such as {values[0]!r}",
            expected="numbers as features",
            fix="pandas.get_dummies makes numbers of categories; or name the features: features=[...]",
        )
