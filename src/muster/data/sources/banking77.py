"""Banking77 (Casanueva et al. 2020): what a bank's customers want, in 77 intents."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from muster.core.errors import DataError
from muster.data.cache import Arrays, NewArray
from muster.data.federated import Dataset, Normalisation
from muster.data.locate import DataFiles, FileLayout
from muster.data.sources._build import labelled
from muster.data.sources._parquet import class_names, column, find_parquet, integers, of_split
from muster.data.sources._table import read_table
from muster.data.sources._text import encode_texts, vocabulary_option
from muster.data.sources.base import sources
from muster.data.wordpiece import MINILM, Vocabulary


def _find_csv(folder: Path) -> Sequence[Path]:
    files = [folder / "train.csv", folder / "test.csv"]
    if not all(file.is_file() for file in files):
        return ()
    names = folder / "categories.json"
    return [*files, names] if names.is_file() else files


def _read_csv(
    files: Sequence[Path],
    new: NewArray,
    encoder: str,
    width: int,
    length: int,
    *,
    vocabulary: Vocabulary | None = None,
) -> Arrays:
    texts: dict[str, list[str]] = {}
    intents: dict[str, list[str]] = {}
    for split, file in zip(("train", "test"), files, strict=False):
        rows = read_table(file, ("text", "category"), filled=("category",))
        texts[split], intents[split] = [row["text"] for row in rows], [row["category"] for row in rows]
    names = _categories(files[2]) if len(files) > 2 else sorted(set(intents["train"]))
    numbers = {name: number for number, name in enumerate(names)}
    unknown = sorted(set(intents["train"] + intents["test"]) - set(numbers))
    if unknown:
        raise DataError(f"{files[0].parent}: the intent '{unknown[0]}' is not in the list of categories")
    labels = {split: np.array([numbers[name] for name in intents[split]], dtype=np.int64) for split in texts}
    return _arrays(texts, labels, names, encoder, width=width, length=length, vocabulary=vocabulary)


def _categories(file: Path) -> list[str]:
    try:
        names = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{file} is damaged: {error}", fix="fetch it again") from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{file} holds something else than intents", expected="a list of names, as JSON")
    return names


def _read_parquet(
    files: Sequence[Path],
    new: NewArray,
    encoder: str,
    width: int,
    length: int,
    *,
    vocabulary: Vocabulary | None = None,
) -> Arrays:
    chosen = {split: of_split(files, split) for split in ("train", "test")}
    texts = {split: [str(text) for text in column(part, "text").to_pylist()] for split, part in chosen.items()}
    labels = {split: integers(part, "label") for split, part in chosen.items()}
    names = class_names(files[0], "label") or [str(number) for number in range(77)]
    return _arrays(texts, labels, names, encoder, width=width, length=length, vocabulary=vocabulary)


def _arrays(
    texts: dict[str, list[str]],
    labels: dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]],
    names: list[str],
    encoder: str,
    *,
    width: int,
    length: int,
    vocabulary: Vocabulary | None,
) -> Arrays:
    encoded = encode_texts(texts["train"], texts["test"], encoder, width, length, vocabulary=vocabulary)
    return {
        "train_features": encoded.train,
        "test_features": encoded.test,
        "train_labels": labels["train"],
        "test_labels": labels["test"],
        "class_names": np.array(names),
        "tokens": np.array([encoded.tokens]),
        "vocabulary": np.array([encoded.vocabulary]),
    }


BANKING77 = DataFiles(
    "banking77",
    needs="train.csv and test.csv with the columns text and category (and categories.json), or Parquet files with "
    "the columns text and label",
    layouts={"csv": FileLayout(_find_csv, _read_csv), "parquet": FileLayout(find_parquet, _read_parquet)},
    hub="PolyAI/banking77@refs/convert/parquet",
    home="https://github.com/PolyAI-LDN/task-specific-datasets",
)


@sources.register("banking77")
def banking77(
    encoder: str = "minilm",
    width: int = 1024,
    length: int = 32,
    vocabulary: str = MINILM,
    data_dir: str | None = None,
) -> Dataset:
    """Banking77: 10,003 + 3,080 questions of a bank's customers in 77 intents, as text features.

    `encoder` is `minilm` (sentence embeddings of all-MiniLM-L6-v2, 384 numbers; needs the extra `text`), the name
    or folder of another sentence-transformers model, `tfidf` or `hashing` (`width` numbers), `words` (ids of the
    first `length` words, from the `width` most frequent ones, for models with their own embeddings), or
    `wordpiece` (ids of the first `length` word pieces, for the model `bert`; `vocabulary` is that BERT's folder).
    """
    pieces = vocabulary_option(encoder, vocabulary)
    arrays, folder = BANKING77.arrays(data_dir, encoder=encoder, width=width, length=length, **pieces)
    # Arrays that an earlier version cached do not say where ids come from.
    known = str(arrays["vocabulary"][0]) if "vocabulary" in arrays else ""
    tokens = bool(arrays["tokens"][0])
    return labelled("banking77", arrays, folder, Normalisation(), tokens=tokens, vocabulary=known)
