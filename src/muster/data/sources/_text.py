"""From texts to features: sentence embeddings of a pretrained model, bags of words, ids of words or of pieces."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from muster.core.errors import ConfigError, DataError
from muster.data.wordpiece import MINILM_PACKAGE, Vocabulary, bert_folder

MINILM_NAME = "sentence-transformers/all-MiniLM-L6-v2"
_WORD = re.compile(r"[a-z0-9']+")
PADDING, UNKNOWN = 0, 1
#: The encoder that gives ids of word pieces.
WORD_PIECES = "wordpiece"


class Encoded(NamedTuple):
    """Features of the two splits; `tokens` says that they are ids, not numbers."""

    train: npt.NDArray[Any]
    test: npt.NDArray[Any]
    tokens: bool = False
    #: Tells apart which tokens the ids stand for.
    vocabulary: str = ""


def vocabulary_option(encoder: str, vocabulary: str) -> dict[str, Vocabulary]:
    """What a reader of texts needs, and its cache must know, about word pieces; nothing for other encoders."""
    if encoder != WORD_PIECES:
        return {}
    return {"vocabulary": Vocabulary.of(bert_folder(vocabulary, "data.vocabulary"))}


def encode_texts(
    train: list[str],
    test: list[str],
    encoder: str,
    width: int,
    length: int = 32,
    *,
    vocabulary: Vocabulary | None = None,
) -> Encoded:
    """Texts as features.

    `minilm` embeds sentences with all-MiniLM-L6-v2, any other name or path with that sentence-transformers model;
    `tfidf` counts the `width` most frequent words and word pairs of the training texts; `hashing` counts all of
    them in `width` buckets, which needs no look at the texts; `words` gives the ids of the first `length`
    words of a text, for models that train their own embeddings; `wordpiece` the ids of `length` word pieces, for
    a BERT that has this vocabulary.
    """
    if width < 1 or length < 1:
        raise ConfigError(f"'data.width' is {width} and 'data.length' is {length}", expected="at least 1")
    if encoder == "tfidf":
        return _tfidf(train, test, width)
    if encoder == "hashing":
        return _hashing(train, test, width)
    if encoder == "words":
        return _word_ids(train, test, width, length)
    if vocabulary is not None:
        ids = (vocabulary.ids(train, length), vocabulary.ids(test, length))
        return Encoded(*ids, tokens=True, vocabulary=vocabulary.digest)
    model = sentence_model(encoder)
    embed = [np.asarray(model.encode(texts, batch_size=128, show_progress_bar=False)) for texts in (train, test)]
    return Encoded(embed[0].astype(np.float32), embed[1].astype(np.float32))


def _tfidf(train: list[str], test: list[str], width: int) -> Encoded:
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectoriser = TfidfVectorizer(max_features=width, ngram_range=(1, 2), sublinear_tf=True, dtype=np.float32)
    try:
        counted = (vectoriser.fit_transform(train).toarray(), vectoriser.transform(test).toarray())
    except ValueError as problem:
        raise DataError(
            "the encoder 'tfidf' finds no words in the training texts",
            expected="words of two letters or more",
            fix="look at the texts, or choose another data.encoder",
        ) from problem
    # A small corpus has fewer words; models are made for the width that was asked for.
    lacking = ((0, 0), (0, width - counted[0].shape[1]))
    return Encoded(np.pad(counted[0], lacking), np.pad(counted[1], lacking))


def _hashing(train: list[str], test: list[str], width: int) -> Encoded:
    from sklearn.feature_extraction.text import HashingVectorizer

    vectoriser = HashingVectorizer(n_features=width, ngram_range=(1, 2), dtype=np.float32)
    return Encoded(vectoriser.transform(train).toarray(), vectoriser.transform(test).toarray())


def _word_ids(train: list[str], test: list[str], width: int, length: int) -> Encoded:
    """Ids by frequency in the training texts, from 2 on; 1 is any other word, 0 fills up short texts."""
    split = [[_WORD.findall(text.lower()) for text in texts] for texts in (train, test)]
    counts = Counter(word for words in split[0] for word in words)
    # Ties are broken by the word itself, so that ids do not depend on the order of the texts.
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[:width]
    ids = {word: number for number, word in enumerate(ranked, start=2)}
    matrices = []
    for texts in split:
        matrix = np.full((len(texts), length), PADDING, dtype=np.int32)
        for row, words in zip(matrix, texts, strict=True):
            kept = words[:length]
            row[: len(kept)] = [ids.get(word, UNKNOWN) for word in kept]
        matrices.append(matrix)
    known = hashlib.blake2b("\n".join(ranked).encode(), digest_size=8).hexdigest()
    return Encoded(matrices[0], matrices[1], tokens=True, vocabulary=known)


def sentence_model(encoder: str) -> Any:
    """A sentence-transformers model on the CPU, from a package, a folder or the hub."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as absent:
        raise DataError(
            f"the text encoder '{encoder}' needs the package sentence-transformers, which is not installed",
            fix="install the extra `text` (pip install 'muster-fl[text]'), or set encoder to 'tfidf' or 'hashing'",
        ) from absent
    where = _model_location(encoder)
    try:
        # Embeddings are part of the data: the same device everywhere keeps them the same.
        return SentenceTransformer(where, device="cpu")
    except Exception as problem:
        raise DataError(
            f"cannot load the text encoder '{where}': {type(problem).__name__}: {problem}",
            fix=f"give a folder with a sentence-transformers model, or install {MINILM_PACKAGE.replace('_', '-')}",
        ) from problem


def _model_location(encoder: str) -> str:
    if encoder != "minilm":
        return str(Path(encoder).expanduser()) if Path(encoder).expanduser().is_dir() else encoder
    package = importlib.util.find_spec(MINILM_PACKAGE)
    if package is None or package.origin is None:
        return MINILM_NAME
    return str(Path(package.origin).parent / "model")
