"""Word pieces: ids as BERT's own tokeniser gives them, and vocabularies that are none."""

import json

import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="needs the extra `text`")

from fixtures.bert import PIECES
from muster.core.errors import ConfigError, DataError
from muster.data.wordpiece import Vocabulary, bert_folder

TEXTS = [
    "Where is my card?",
    "",
    "Lost CARDS, stolen money!",
    "Café top-up\tthe  accounts",
    "unknown ##s",
    "where " * 30,
]


def ids(*words):
    return [PIECES.index(word) for word in words]


def test_worked_examples(tiny_bert):
    found = Vocabulary.of(tiny_bert).ids(["Where is my cards?", ""], 9)
    assert found.dtype == np.int32
    assert found[0].tolist() == ids("[CLS]", "where", "is", "my", "card", "##s", "?", "[SEP]", "[PAD]")
    assert found[1].tolist() == ids("[CLS]", "[SEP]", *7 * ["[PAD]"])


def test_long_texts_are_cut_and_keep_their_end_mark(tiny_bert):
    found = Vocabulary.of(tiny_bert).ids(["where is my card"], 4)
    assert found[0].tolist() == ids("[CLS]", "where", "is", "[SEP]")
    with pytest.raises(ConfigError, match="at least 3"):
        Vocabulary.of(tiny_bert).ids(["where"], 2)


@pytest.mark.parametrize("length", [3, 7, 24])
def test_ids_are_those_of_the_library(tiny_bert, length):
    transformers = pytest.importorskip("transformers")
    theirs = transformers.BertTokenizer.from_pretrained(tiny_bert, local_files_only=True)
    expected = theirs(TEXTS, truncation=True, padding="max_length", max_length=length)["input_ids"]
    assert Vocabulary.of(tiny_bert).ids(TEXTS, length).tolist() == expected


def test_no_texts_are_no_rows(tiny_bert):
    assert Vocabulary.of(tiny_bert).ids([], 5).shape == (0, 5)


def test_whether_capitals_count_is_said_or_follows_from_the_vocabulary(tiny_bert):
    settings = tiny_bert / "tokenizer_config.json"
    small = Vocabulary.of(tiny_bert)
    settings.write_text(json.dumps({"do_lower_case": False}))
    cased = Vocabulary.of(tiny_bert)
    assert cased.ids(["Where"], 3)[0, 1] == PIECES.index("[UNK]")
    assert small.digest != cased.digest
    settings.unlink()
    assert Vocabulary.of(tiny_bert) == small
    (tiny_bert / "vocab.txt").write_text("\n".join((*PIECES, "Where")))
    assert not Vocabulary.of(tiny_bert).lower_case


def test_the_order_of_word_pieces_tells_vocabularies_apart(tiny_bert):
    before = Vocabulary.of(tiny_bert)
    (tiny_bert / "vocab.txt").write_text("\n".join((*PIECES[:6], *PIECES[:5:-1])))
    assert Vocabulary.of(tiny_bert).digest != before.digest


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("where\nis", r"has no \[PAD\]"),
        ("\n".join((*PIECES, "where")), "twice"),
        (None, "cannot read the vocabulary"),
    ],
)
def test_files_that_are_no_vocabulary(tiny_bert, content, message):
    file = tiny_bert / "vocab.txt"
    file.unlink() if content is None else file.write_text(content)
    with pytest.raises(DataError, match=message):
        Vocabulary.of(tiny_bert)


def test_a_folder_that_is_not_there_says_what_is_expected():
    with pytest.raises(ConfigError, match=r"data\.vocabulary: there is no folder[\s\S]*minilm"):
        bert_folder("/nowhere", "data.vocabulary")


def test_only_line_feeds_end_a_word_piece(tmp_path):
    """Vocabularies hold other separators of lines as word pieces of their own."""
    pieces = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a\x85b", "\u2028", "card")
    (tmp_path / "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    assert Vocabulary.of(tmp_path).tokens == pieces
