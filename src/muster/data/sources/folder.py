"""Your own folder: CLIENT/CLASS/files, pictures or arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from muster.core.errors import ConfigError, DataError, nearest
from muster.data.federated import Dataset, Normalisation, Samples
from muster.data.sources._build import held_out
from muster.data.sources._pictures import SUFFIXES, fill_pictures, picture
from muster.data.sources.base import sources

_ARRAY = ".npy"
Colours: TypeAlias = Literal["grey", "rgb"]


@sources.register("folder")
def folder(
    path: str | None = None,
    size: int | None = None,
    colours: Colours = "rgb",
    test_share: float = 0.2,
    data_dir: str | None = None,
) -> Dataset:
    """Your own pictures or arrays, in folders CLIENT/CLASS/files.

    Where the folder consists of `train` and `test`, each of them holds such folders; otherwise `test_share` of
    every client's files is held out for testing. `size` scales pictures to squares; files that end in .npy hold
    one sample. A relative path begins in `data_dir`, or else in the current folder.
    """
    if path is None:
        raise DataError(
            "no folder is named: data.path is missing",
            expected="the path of a folder with CLIENT/CLASS/files",
        )
    root = Path(data_dir or "") / path
    if not root.is_dir():
        raise DataError(
            f"there is no folder {root}", expected="a folder with CLIENT/CLASS/files", fix="check data.path"
        )
    if not 0 < test_share < 1:
        raise ConfigError(f"bad value for 'data.test_share': {test_share}", expected="a share between 0 and 1")
    if colours not in (allowed := get_args(Colours)):
        raise ConfigError(f"bad value for 'data.colours': {colours!r}", expected=nearest(str(colours), allowed))
    if size is not None and size < 1:
        raise ConfigError(f"bad value for 'data.size': {size}", expected="the pixels of an edge: 1 or more")
    parts = [root / "train", root / "test"]
    divided = all(part.is_dir() for part in parts) and len(_folders(root)) == 2
    found = [_files(part) for part in (parts if divided else [root])]
    clients = sorted({client for files in found for client, _, _ in files})
    classes = sorted({label for files in found for _, label, _ in files})
    if len(classes) < 2:
        raise DataError(f"{root} has the class {classes[0]} only", expected="two or more: CLIENT/CLASS/files")
    arrays = [[(clients.index(c), classes.index(k), file) for c, k, file in files] for files in found]
    if not divided:
        kept = held_out(np.array([client for client, _, _ in arrays[0]]), test_share)
        if not kept.any():
            raise DataError(
                f"{root}: a share of {test_share:g} of every client's files leaves nothing to test on",
                fix="raise data.test_share, or make the folders train and test",
            )
        whole = arrays[0]
        arrays = [[whole[at] for at in np.flatnonzero(chosen).tolist()] for chosen in (~kept, kept)]
    shape, kind = _shape(arrays[0][0][2], size, colours)
    train, test = (_samples(files, shape, kind, size) for files in arrays)
    return Dataset(
        name=root.name,
        train=train,
        test=test,
        classes=len(classes),
        normalisation=Normalisation(scale=1 / 255 if kind == np.dtype(np.uint8) else 1.0),
        class_names=tuple(classes),
        owner_names=tuple(clients),
        origin=str(root),
    )


def _folders(root: Path) -> list[Path]:
    return sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _files(root: Path) -> list[tuple[str, str, Path]]:
    """(client, class, file) of everything in CLIENT/CLASS, in the order of names."""
    clients = _folders(root)
    if not clients:
        raise DataError(f"{root} has no folders", expected="a folder for each client: CLIENT/CLASS/files")
    found = []
    for client in clients:
        files = [
            (client.name, label.name, file)
            for label in _folders(client)
            for file in sorted(label.iterdir())
            if file.suffix.lower() in SUFFIXES or file.suffix == _ARRAY
        ]
        if not files:
            raise DataError(
                f"the client {client} has no samples",
                expected=f"folders CLASS with pictures ({', '.join(sorted(SUFFIXES))}) or arrays ({_ARRAY})",
                fix="put its files into folders named after their classes, or remove the folder",
            )
        found += files
    return found


def _shape(first: Path, size: int | None, colours: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """The shape and type of a sample, after the first file."""
    if first.suffix == _ARRAY:
        sample = _loaded(first)
        return sample.shape, np.dtype(np.uint8 if sample.dtype == np.uint8 else np.float32)
    pixels = picture(first, "L" if colours == "grey" else "RGB", size)
    return pixels.shape, pixels.dtype


def _samples(
    files: list[tuple[int, int, Path]], shape: tuple[int, ...], kind: np.dtype[Any], size: int | None
) -> Samples:
    features = np.empty((len(files), *shape), dtype=kind)
    paths = [file for _, _, file in files]
    if all(file.suffix == _ARRAY for file in paths):
        for row, file in enumerate(paths):
            sample = _loaded(file)
            if sample.shape != shape:
                raise DataError(f"{file} has the shape {sample.shape}", expected=f"{shape}, like the others")
            if (sample.dtype == np.uint8) != (kind == np.uint8):  # only bytes are scaled by 1/255
                raise DataError(
                    f"{file} holds numbers of the type {sample.dtype}",
                    expected="bytes (uint8) in all files, or in none",
                )
            features[row] = sample
    elif any(file.suffix == _ARRAY for file in paths):
        mixed = next(file for file in paths if file.suffix == _ARRAY)
        raise DataError(f"{mixed} is an array among pictures", expected="pictures only, or arrays only")
    else:
        _check_sizes(paths, shape, size)
        fill_pictures(features, paths, margin=None if size is None else 1.0)
    _check_numbers(features, paths)
    labels = np.array([label for _, label, _ in files], dtype=np.int64)
    return Samples(features, labels, owners=np.array([client for client, _, _ in files], dtype=np.int64))


def _check_sizes(paths: list[Path], shape: tuple[int, ...], size: int | None) -> None:
    from PIL import Image

    if size is not None:
        return
    for path in paths:
        try:
            with Image.open(path) as image:
                width, height = image.size
        except Exception as problem:  # decoders raise what they like for damaged files
            raise DataError(f"cannot decode {path}: {problem}", fix="remove or repair the file") from problem
        if (height, width) != shape[1:]:
            raise DataError(
                f"{path} is {width} × {height} pixels",
                expected=f"{shape[2]} × {shape[1]}, like the others",
                fix="set a size that all pictures are scaled to: data.size = 64",
            )


def _check_numbers(features: npt.NDArray[Any], paths: list[Path]) -> None:
    if features.dtype.kind != "f":
        return
    wrong = np.flatnonzero(~np.isfinite(features.reshape(len(features), -1)).all(axis=1))
    if len(wrong):
        raise DataError(f"{paths[int(wrong[0])]} has values that are not finite numbers")


def _loaded(file: Path) -> npt.NDArray[Any]:
    try:
        sample: npt.NDArray[Any] = np.load(file, allow_pickle=False)
    except Exception as problem:  # NumPy reads the header as Python text: it may hold anything
        raise DataError(f"cannot read {file}: {problem}", expected="one sample as a NumPy array") from problem
    if sample.dtype.kind not in "biuf":
        raise DataError(f"{file} is of type {sample.dtype}", expected="numbers")
    return sample
