"""Your own data: arrays, tables, folders and data sets of other libraries as data of a federation.

Every function returns a `FederatedData` if samples say which client they belong to, and otherwise a `Dataset` that
an experiment's partition divides. All of it is checked here, before anything trains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from muster.core.arrays import Ints
from muster.core.errors import ConfigError, DataError, nearest
from muster.data.checks import IGNORED, check_dataset, check_features, check_targets
from muster.data.federated import TASKS, Dataset, FederatedData, Index, Normalisation, Samples, Task
from muster.data.sources._build import held_out

if TYPE_CHECKING:
    import pandas as pd

#: The value of `[data] source` when every client has its own data.
OWN = "own"
#: Features and targets.
Pair: TypeAlias = tuple[Any, Any]


def from_arrays(
    features: npt.ArrayLike,
    labels: npt.ArrayLike | None = None,
    *,
    clients: npt.ArrayLike | None = None,
    test: Pair | None = None,
    test_clients: npt.ArrayLike | None = None,
    test_share: float = 0.2,
    task: Task = "classification",
    classes: int | None = None,
    class_names: Sequence[str] = (),
    attributes: npt.ArrayLike | None = None,
    test_attributes: npt.ArrayLike | None = None,
    tokens: bool = False,
    scale: float | None = None,
    name: str = "own data",
) -> Dataset | FederatedData:
    """Arrays, lists or tensors as data: samples first, one label per sample.

    `clients` names the client of each sample (numbers or names). `test` is a pair of features and labels; without
    it, `test_share` of every client's samples, or of every class's, is held out for testing, the same in every
    run. Labels are classes as integers from 0 or as words, unless `task` says that they are numbers
    ("regression"), rows of 0 and 1 ("multi-label"), pictures of classes ("segmentation") or, left out, the
    features themselves shifted by one position ("next-token"). `attributes` is a group of every sample. `tokens`:
    features are ids of words. `scale`: what features are multiplied by; by default bytes (uint8) are scaled to 0 …
    1.

    >>> import numpy as np
    >>> features, labels = np.random.default_rng(0).normal(size=(60, 4)), np.arange(60) % 3
    >>> data = from_arrays(features, labels, clients=["a", "b", "c", "d"] * 15)
    >>> data.clients, data.classes, data.sizes.tolist(), len(data.dataset.test)
    (4, 3, [12, 12, 12, 12], 12)
    """
    if task not in TASKS:
        raise ConfigError(f"unknown task '{task}'", expected=nearest(str(task), TASKS))
    if test is not None and (not isinstance(test, Sequence) or len(test) != 2):
        raise ConfigError("the test data are not a pair", expected="test=(features, labels)")
    parts = [_given(features, labels, task, "training")]
    if test is not None:
        parts.append(_given(test[0], test[1], task, "test"))
    targets, classes, names = _numbered(
        [labels for _, labels in parts], task, classes, tuple(map(str, class_names))
    )
    owners, owner_names = _whose([clients, test_clients if test is not None else None], parts)
    groups, group_names = _grouped([attributes, test_attributes if test is not None else None], parts)
    splits = [Samples(parts[k][0], targets[k], groups[k], owners[k]) for k in range(len(parts))]
    if test is None:
        splits = _split(splits[0], test_share, task)
    dataset = Dataset(
        name=name,
        train=splits[0],
        test=splits[1],
        classes=classes,
        normalisation=Normalisation(scale=_scale(splits[0].features, scale)),
        attribute_values=len(group_names) or None,
        class_names=names,
        attribute_names=group_names,
        owner_names=owner_names,
        tokens=tokens or task == "next-token",
        task=task,
    )
    check_dataset(dataset)
    return dataset if clients is None else with_natural_clients(dataset)


def from_torch(dataset: Any, *, test: Any = None, clients: Any = None, **options: Any) -> Dataset | FederatedData:
    """A PyTorch data set of (features, label) pairs; a list or dict of them has one client each.

    `test` is a data set, or a list or dict like the first; the other options are those of `from_arrays`.

    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> hospitals = {name: TensorDataset(torch.randn(20, 3), torch.arange(20) % 2) for name in ("north", "south")}
    >>> from_torch(hospitals).dataset.owner_names
    ('north', 'south')
    """
    if clients is None and isinstance(dataset, Mapping | list | tuple):
        features, labels, clients = _of_clients(dataset, "training")
        if isinstance(test, Mapping | list | tuple):
            tested, true, options["test_clients"] = _of_clients(test, "test")
            test = (tested, true)
        elif test is not None:
            test = _stacked(test, "test")
    else:
        features, labels = _stacked(dataset, "training")
        test = None if test is None else _stacked(test, "test")
    return from_arrays(features, labels, clients=clients, test=test, **options)


def from_huggingface(
    dataset: Any,
    *,
    features: str | Sequence[str] | None = None,
    label: str = "label",
    client: str | None = None,
    attribute: str | None = None,
    test: Any = None,
    **options: Any,
) -> Dataset | FederatedData:
    """A data set of the library `datasets`, or a dict with its splits "train" and "test".

    `features` is the column of pictures, of lists or of numbers, or several columns of numbers; left out, it is
    the only column that is not otherwise named. Names of classes are kept. The other options are those
    of `from_arrays`.
    """
    if isinstance(dataset, Mapping):
        if "train" not in dataset:
            raise DataError(f"the data set has the splits {', '.join(map(str, dataset))}", expected="one 'train'")
        dataset, test = dataset["train"], dataset.get("test") if test is None else test
    known = list(dataset.column_names)
    named = [name for name in (label, client, attribute) if name is not None]
    columns = [features] if isinstance(features, str) else list(features or ())
    columns = columns or [name for name in known if name not in named]
    for name in (*named, *columns):
        if name not in known:
            raise DataError(f"the data set has no column '{name}'", expected=nearest(name, known))
    if features is None and len(columns) != 1:
        raise DataError(
            f"the data set has the columns {', '.join(columns)} besides the label",
            fix="say which of them are the features: features='image', or a list of columns",
        )
    kind = getattr(dataset, "features", {}).get(label)
    options.setdefault("class_names", tuple(getattr(kind, "names", None) or ()))
    options.setdefault("name", getattr(getattr(dataset, "info", None), "dataset_name", None) or "own data")

    def column(part: Any, name: str | None) -> Any:
        return None if name is None else np.asarray(list(part[name]))

    def of(part: Any) -> Pair:
        return _columns([part[name] for name in columns], columns), column(part, label)

    if test is not None:
        options |= {
            "test": of(test),
            "test_clients": column(test, client),
            "test_attributes": column(test, attribute),
        }
    return from_arrays(
        *of(dataset), clients=column(dataset, client), attributes=column(dataset, attribute), **options
    )


def from_pandas(
    table: pd.DataFrame,
    *,
    label: str | Sequence[str],
    client: str | None = None,
    features: Sequence[str] | None = None,
    attribute: str | None = None,
    test: pd.DataFrame | None = None,
    **options: Any,
) -> Dataset | FederatedData:
    """A table with one row per sample: one or more columns of labels, one with the client, and features.

    Without `features`, all other columns are features. The other options are those of `from_arrays`.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"age": range(40), "dose": range(40), "ill": [0, 1] * 20, "clinic": ["a", "b"] * 20})
    >>> data = from_pandas(table, label="ill", client="clinic")
    >>> data.dataset.sample_shape, data.dataset.owner_names
    ((2,), ('a', 'b'))
    """
    labels = [label] if isinstance(label, str) else list(label)
    named = [*labels, *(name for name in (client, attribute) if name is not None)]
    columns = [name for name in table.columns if name not in named] if features is None else list(features)
    if not columns:
        raise DataError("the table has no column of features", fix="name some: features=[...]")

    def column(part: pd.DataFrame, name: str | None) -> Any:
        return None if name is None else part[name].to_numpy()

    def of(part: pd.DataFrame, split: str) -> Pair:
        for name in (*named, *columns):
            if name not in part.columns:
                raise DataError(
                    f"the {split} table has no column '{name}'",
                    expected=nearest(str(name), map(str, part.columns)),
                )
        for name in (*columns, *labels):
            _check_column(part[name].to_numpy(), str(name), split, numbers=name in columns)
        true = column(part, labels[0]) if isinstance(label, str) else part[labels].to_numpy()
        return part[columns].to_numpy(dtype=np.float32), true

    pair = of(table, "training")
    if test is not None:
        options |= {"test": of(test, "test")}
        options |= {"test_clients": column(test, client), "test_attributes": column(test, attribute)}
    return from_arrays(*pair, clients=column(table, client), attributes=column(table, attribute), **options)


def from_folder(
    path: Path | str,
    *,
    size: int | None = None,
    colours: Literal["grey", "rgb"] = "rgb",
    test_share: float = 0.2,
) -> FederatedData:
    """Pictures or arrays in folders CLIENT/CLASS/files; a folder has one client for each CLIENT.

    Where the folder consists of `train` and `test`, each of them holds such folders; otherwise `test_share` of
    every client's files is held out for testing. `size`: pictures are scaled to squares of this many pixels;
    without it all must have the same size. Files that end in .npy hold one sample each.
    """
    from muster.data.sources.folder import folder

    return with_natural_clients(folder(path=str(path), size=size, colours=colours, test_share=test_share))


def with_natural_clients(dataset: Dataset) -> FederatedData:
    """The data of the clients that samples name."""
    train, test = dataset.train, dataset.test
    if train.owners is None:
        raise DataError(f"the samples of '{dataset.name}' do not name their clients")
    clients = len(dataset.owner_names) or int(train.owners.max(initial=-1)) + 1
    missing = np.flatnonzero(np.bincount(train.owners, minlength=clients) == 0)
    if len(missing):
        named = dataset.owner_names[missing[0]] if dataset.owner_names else str(missing[0])
        raise DataError(
            f"{len(missing)} of {clients} clients have no training samples (first: '{named}')",
            expected="at least one sample per client",
            fix="leave clients without training samples out of the test data too",
        )
    index = None if test.owners is None else Index.from_owners(test.owners, clients)
    return FederatedData(dataset, Index.from_owners(train.owners, clients), index)


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


# --- from what was given to arrays -----------------------------------------------------------------------------


def _given(features: Any, labels: Any, task: Task, split: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Features and labels of a split as arrays of equal length."""
    found = _array(features, f"{split} features")
    if found.ndim and not len(found):
        raise DataError(f"there are no {split} samples", expected="one or more", fix="look at what was read")
    check_features(found, f"{split} features")
    if found.dtype == np.float64:
        with np.errstate(over="ignore"):
            found = found.astype(np.float32)
        check_features(found, f"{split} features, in single precision,")
    if labels is None:
        # The next tokens are in the texts themselves.
        if task != "next-token":
            raise DataError(f"there are no {split} labels", expected="one for each sample")
        if found.shape[1] < 2:
            raise DataError(f"the texts have {found.shape[1]} tokens", expected="two or more")
        return np.ascontiguousarray(found[:, :-1]), np.ascontiguousarray(found[:, 1:])
    targets = _array(labels, f"{split} labels")
    if len(targets) != len(found):
        raise DataError(
            f"there are {len(found):,} {split} samples and {len(targets):,} labels", expected="one for each sample"
        )
    if task in ("segmentation", "next-token"):
        check_targets(targets, task, None, split, found)
    return found, targets


def _array(values: Any, what: str) -> npt.NDArray[Any]:
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DataError(f"the {what} are not an array: {error}", expected="samples of the same shape") from error
    if array.dtype == object and array.ndim == 1 and all(isinstance(value, str) for value in array):
        return array.astype(str)
    return array


def _numbered(
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
    if task == "classification" and parts[0].dtype.kind in "US":
        names = names or tuple(sorted({str(word) for part in parts for word in part.ravel()}))
        parts = [_places(part, names, split) for part, split in zip(parts, splits, strict=False)]
    for part, split in zip(parts, splits, strict=False):
        check_targets(part, task, None, split)
    if classes is None:
        classes = len(names) or _counted(parts, task)
    return parts, classes, names


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


def _whose(columns: list[Any], parts: list[Pair]) -> tuple[list[Ints | None], tuple[str, ...]]:
    """The number of every sample's client in each split, and the clients' names; clients in sorted order."""
    if columns[0] is None:
        if columns[1] is not None:
            raise DataError("test_clients without clients", fix="name the clients of the training samples, too")
        return [None] * len(parts), ()
    return _places_in_order(columns, parts, "clients")


def _grouped(columns: list[Any], parts: list[Pair]) -> tuple[list[Ints | None], tuple[str, ...]]:
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
        values = _array(column, what)
        if values.ndim != 1 or len(values) != len(features):
            raise DataError(
                f"there are {len(features):,} {split} samples, and the {what} have the shape {values.shape}",
                expected="one for each sample",
            )
        missing = np.flatnonzero([value is None or value != value for value in values.tolist()])  # noqa: PLR0124
        if len(missing):
            raise DataError(f"{split} sample {missing[0]} has no entry among the {what}")
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


def _split(samples: Samples, share: float, task: Task) -> list[Samples]:
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


def _scale(features: npt.NDArray[Any], scale: float | None) -> float:
    if scale is not None:
        return scale
    return 1 / 255 if features.dtype == np.uint8 else 1.0


def _of_clients(datasets: Any, split: str) -> tuple[Any, Any, Any]:
    """The samples of several data sets together, and the client of each."""
    named = dict(datasets) if isinstance(datasets, Mapping) else dict(enumerate(datasets))
    if not named:
        raise DataError(f"there are no clients with {split} data")
    parts = []
    for name, dataset in named.items():
        if len(dataset) == 0:
            raise DataError(f"client '{name}' has no {split} samples", fix="leave it out")
        parts.append(_stacked(dataset, f"client '{name}', {split}"))
    shapes = {np.shape(features)[1:] for features, _ in parts}
    if len(shapes) > 1:
        raise DataError(f"clients have samples of the shapes {sorted(shapes)}", expected="one shape")
    owners = np.repeat(np.array(list(named)), [len(labels) for _, labels in parts])
    return (
        np.concatenate([features for features, _ in parts]),
        np.concatenate([labels for _, labels in parts]),
        owners,
    )


def _stacked(dataset: Any, what: str) -> Pair:
    """The samples of a PyTorch data set as arrays."""
    if not hasattr(dataset, "__len__"):
        raise DataError(f"{what}: the data set has no length", expected="one that can be indexed")
    tensors = getattr(dataset, "tensors", None)
    if tensors is not None and len(tensors) == 2:
        return _array(tensors[0], f"{what} features"), _array(tensors[1], f"{what} labels")
    features: list[npt.NDArray[Any]] = []
    labels: list[npt.NDArray[Any]] = []
    for number in range(len(dataset)):
        item = dataset[number]
        if not isinstance(item, tuple | list) or len(item) != 2:
            raise DataError(f"{what}: item {number} is a {type(item).__name__}", expected="(features, label)")
        sample = _array(item[0], f"{what} features")
        if features and sample.shape != features[0].shape:
            raise DataError(
                f"{what}: sample {number} has the shape {sample.shape}",
                expected=f"{features[0].shape}, as sample 0",
                fix="give the data set a transform that makes all samples alike",
            )
        features.append(sample)
        labels.append(_array(item[1], f"{what} labels"))
    if not features:
        raise DataError(f"{what}: the data set is empty")
    return np.stack(features), np.stack(labels)


def _columns(values: list[Any], names: list[str]) -> npt.NDArray[Any]:
    """Columns as features: pictures and lists by themselves, numbers side by side."""
    arrays = []
    for column, name in zip(values, names, strict=True):
        items = list(column)
        pictures = bool(items) and hasattr(items[0], "convert")
        array = _array(np.stack([np.asarray(item) for item in items]) if pictures else items, f"column '{name}'")
        if pictures:
            array = array[:, None] if array.ndim == 3 else np.moveaxis(array, -1, 1)
        arrays.append(array[:, None] if array.ndim == 1 else array)
    if len(arrays) > 1 and any(array.ndim != 2 for array in arrays):
        raise DataError(
            f"the columns {', '.join(names)} cannot be put side by side", expected="columns of numbers"
        )
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays, axis=1)


def _check_column(values: npt.NDArray[Any], name: str, split: str, *, numbers: bool) -> None:
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
