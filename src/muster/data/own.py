"""Your own data: arrays, tables, folders and data sets of other libraries as data of a federation.

Every function returns a `FederatedData` if samples say which client they belong to, and otherwise a `Dataset` that
an experiment's partition divides. All of it is checked here, before anything trains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from muster.core.errors import ConfigError, DataError, nearest
from muster.data.checks import check_dataset
from muster.data.federated import TASKS, Dataset, FederatedData, Index, Normalisation, Samples, Task
from muster.data.given import (
    Pair,
    check_column,
    held_out_split,
    numbered_clients,
    numbered_groups,
    numbered_targets,
    samples_of,
    samples_of_clients,
    scale_of,
    side_by_side,
    stacked,
)

if TYPE_CHECKING:
    import pandas as pd

#: The value of `[data] source` when every client has its own data.
OWN = "own"


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
    parts = [samples_of(features, labels, task, "training")]
    if test is not None:
        parts.append(samples_of(test[0], test[1], task, "test"))
    targets, classes, names = numbered_targets(
        [labels for _, labels in parts], task, classes, tuple(map(str, class_names))
    )
    owners, owner_names = numbered_clients([clients, test_clients if test is not None else None], parts)
    groups, group_names = numbered_groups([attributes, test_attributes if test is not None else None], parts)
    splits = [Samples(parts[k][0], targets[k], groups[k], owners[k]) for k in range(len(parts))]
    if test is None:
        splits = held_out_split(splits[0], test_share, task)
    dataset = Dataset(
        name=name,
        train=splits[0],
        test=splits[1],
        classes=classes,
        normalisation=Normalisation(scale=scale_of(splits[0].features, scale)),
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
        features, labels, clients = samples_of_clients(dataset, "training")
        if isinstance(test, Mapping | list | tuple):
            tested, true, options["test_clients"] = samples_of_clients(test, "test")
            test = (tested, true)
        elif test is not None:
            test = stacked(test, "test")
    else:
        features, labels = stacked(dataset, "training")
        test = None if test is None else stacked(test, "test")
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
    if not hasattr(dataset, "column_names"):
        raise DataError(
            f"the data set is of type {type(dataset).__name__}",
            expected="a data set of the library `datasets`",
            fix="load it first: datasets.load_dataset(…)",
        )
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
        return side_by_side([part[name] for name in columns], columns), column(part, label)

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
    features: str | Sequence[str] | None = None,
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
    for part in (table, test):
        _check_table(part)
    labels = [label] if isinstance(label, str) else list(label)
    named = [*labels, *(name for name in (client, attribute) if name is not None)]
    columns = [features] if isinstance(features, str) else list(features or ())
    if features is None:
        columns = [name for name in table.columns if name not in named]
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
            check_column(part[name].to_numpy(), str(name), split, numbers=name in columns)
        true = column(part, labels[0]) if isinstance(label, str) else part[labels].to_numpy()
        return part[columns].to_numpy(dtype=np.float32), true

    pair = of(table, "training")
    if test is not None:
        options |= {"test": of(test, "test")}
        options |= {"test_clients": column(test, client), "test_attributes": column(test, attribute)}
    return from_arrays(*pair, clients=column(table, client), attributes=column(table, attribute), **options)


def _check_table(table: Any) -> None:
    if table is None:
        return
    if not hasattr(table, "columns"):
        raise DataError(
            f"the table is of type {type(table).__name__}",
            expected="a pandas.DataFrame",
            fix="read a file with pandas.read_csv or pandas.read_parquet first",
        )
    names = [str(name) for name in table.columns]
    if twice := next((name for name in names if names.count(name) > 1), ""):
        raise DataError(f"the table has two columns '{twice}'", fix="rename or drop one of them")


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
