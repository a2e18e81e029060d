"""Shakespeare: who says what, windows that never cross speakers or splits, LEAF's files."""

from __future__ import annotations

import json

import numpy as np
import pytest

from muster.config.experiment import from_dict
from muster.core.errors import ConfigError, DataError
from muster.data.sources import sources
from muster.data.sources._leaf_plays import speaker_of
from muster.data.sources._plays import is_play, speeches
from muster.data.sources.shakespeare import VOCABULARY, encode, windows
from muster.experiment.components import build_data

PLAY = """THE PLAY

Persons represented.

ADAM, a gardener.
Somebody else.

ACT I.

SCENE I. A garden.

[Enter ADAM
and EVE.]

ADAM.
What have you got there?
It looks good.

EVE.
[Aside.]
He noticed.

[She hides it.]

An apple. [Laughs.] Nothing else.

Snake.
Psst.

SCENE II.

Adam.
Come here.

ADAM.
Well.

Snake.
Eat!

FIRST ANGEL
Out.

THE END
"""


def decoded(ids) -> str:
    return "".join(VOCABULARY[i] for i in ids)


def test_speeches():
    assert speeches(PLAY) == {
        "ADAM": ["What have you got there?\nIt looks good.", "Come here.", "Well."],
        "EVE": ["He noticed.\nAn apple. Nothing else."],
        "SNAKE": ["Psst.", "Eat!"],
        "FIRST ANGEL": ["Out."],
    }


def test_short_sentences_are_not_speakers():
    text = "ACT I\n\nHAM.\nOne.\n\n[Exit.]\n\nSaddle my horse.\nQuick.\n\nHAM.\nTwo.\n"
    assert speeches(text) == {"HAM": ["One.\nSaddle my horse.\nQuick.", "Two."]}


def test_a_verse_may_begin_like_a_heading():
    text = "ACT I\n\nQUINCE.\nWrite me a\nprologue; and let it seem\nact of kindness.\n\nSCENE II\n\nOTHER.\nNo.\n"
    assert speeches(text) == {
        "QUINCE": ["Write me a\nprologue; and let it seem\nact of kindness."],
        "OTHER": ["No."],
    }


def test_poems_are_not_plays():
    assert is_play(PLAY)
    assert not is_play("SONNETS\n\nI.\n\nFrom fairest creatures we desire increase\n")


def test_windows_and_labels():
    ids = np.arange(100, dtype=np.uint8)
    features, labels = windows(ids)
    assert features.shape == (20, 80)
    assert (features[7] == np.arange(7, 87)).all()
    assert labels.tolist() == list(range(80, 100))
    assert windows(ids, stride=6)[1].tolist() == [80, 86, 92, 98]
    assert windows(ids, stride=1, max_windows=4)[1].tolist() == [80, 85, 90, 95]
    assert windows(ids[:80])[0].shape == (0, 80)


def test_encoding_is_one_to_one_and_knows_strangers():
    assert len(VOCABULARY) == 80
    assert decoded(encode(VOCABULARY)) == VOCABULARY
    assert decoded(encode("a_é€b")) == "a   b"


def make_play(folder, name: str, **said: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{speaker}.\n{text}\n\n" for speaker, text in said.items())
    (folder / f"{name}_gut.txt").write_text(f"TITLE\n\nACT I\n\n{lines}")


@pytest.fixture
def plays(isolated):
    rng = np.random.default_rng(0)
    words = ["thou", "art", "a", "villain", "my", "lord", "King"]

    def text(count: int) -> str:
        return " ".join(rng.choice(words, count))

    folder = isolated / "shakespeare"
    said = {"ADAM": text(200), "EVE": text(400)}
    make_play(folder, "old_play", **said, NOBODY="Too short.")
    make_play(folder, "new_play", ADAM=text(300))
    (folder / "poem_gut.txt").write_text("I\n\nShall I compare thee\nto a summer's day\n")
    return said


@pytest.mark.usefixtures("plays")
def test_clients_are_plays_and_speakers(plays):
    data = sources.build("shakespeare", {"stride": 1})
    assert data.owner_names == ("new play: ADAM", "old play: ADAM", "old play: EVE")
    assert data.tokens
    assert (data.classes, data.sample_shape, data.train.features.dtype) == (80, (80,), np.uint8)
    text = plays["EVE"]
    border = len(text) - int(0.1 * len(text))
    for part, spoken in ((data.train, text[:border]), (data.test, text[border:])):
        mine = np.flatnonzero(part.owners == 2)
        assert len(mine) == len(spoken) - 80
        whole = decoded(part.features[mine[0]]) + decoded(part.labels[mine])
        assert whole == spoken


@pytest.mark.usefixtures("plays")
def test_merged_plays_and_limits():
    data = sources.build("shakespeare", {"merge_plays": True, "max_windows": 20, "stride": 3})
    assert data.owner_names == ("ADAM", "EVE")
    assert np.bincount(data.train.owners).tolist() == [20, 20]


@pytest.mark.parametrize("options", [{"stride": 0}, {"max_windows": 0}, {"test_fraction": 1.0}])
@pytest.mark.usefixtures("plays")
def test_bad_options(options):
    with pytest.raises(ConfigError):
        sources.build("shakespeare", options)


def leaf(path, **users) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"users": list(users), "num_samples": [len(y) for _, y in users.values()]}
    content["user_data"] = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    path.write_text(json.dumps(content))


def slices(text: str) -> tuple[list[str], list[str]]:
    return [text[i : i + 80] for i in range(len(text) - 80)], list(text[80:])


def test_leaf_files_keep_their_split(isolated):
    text = "So foul and fair a day I have not seen. " * 5
    leaf(isolated / "shakespeare/train/a.json", MACBETH=slices(text), BANQUO=slices(text[1:]))
    leaf(isolated / "shakespeare/test/a.json", MACBETH=slices(text[5:95]), STRANGER=slices(text[:90]))
    data = sources.build("shakespeare", {"stride": 1})
    assert data.owner_names == ("MACBETH", "BANQUO")
    assert np.bincount(data.train.owners).tolist() == [120, 119]
    assert data.test.owners.tolist() == [0] * 10
    assert decoded(data.test.features[0]) == text[5:85]
    assert decoded(data.test.labels) == text[85:95]


@pytest.mark.parametrize("form", ["leaf", "parquet"])
def test_overlapping_windows_are_split_without_overlap(isolated, form, write_parquet):
    # Every character says its position in the text, so that overlap would show.
    text = "".join(VOCABULARY[2 + i // 70] + VOCABULARY[2 + i % 70] for i in range(1000))
    x, y = slices(text)
    if form == "leaf":
        leaf(isolated / "shakespeare/all_data/a.json", TIME=(x, y))
    else:
        write_parquet(isolated / "shakespeare/data/train-0.parquet", character_id=["TIME"] * len(x), x=x, y=y)
    data = sources.build("shakespeare", {"stride": 1})
    assert data.owner_names == ("TIME",)
    assert len(data.test) == 192
    last_trained = text.index(decoded(data.train.features[-1])) + 80
    first_tested = text.index(decoded(data.test.features[0]))
    assert last_trained < first_tested


MACBETH, HAMLET = "THE_TRAGEDY_OF_MACBETH", "THE_TRAGEDY_OF_HAMLET__PRINCE_OF_DENMARK"
LINES = "".join(VOCABULARY[2 + i // 70] + VOCABULARY[2 + i % 70] for i in range(1000))


def write_speakers(folder, form, write_parquet, **texts: str) -> None:
    """The same speakers in one of the published layouts."""
    if form == "leaf":
        leaf(folder / "shakespeare/all_data/all_data.json", **{name: slices(text) for name, text in texts.items()})
        return
    rows = [(name, x, y) for name, text in texts.items() for x, y in zip(*slices(text), strict=True)]
    ids, x, y = zip(*rows, strict=True)
    write_parquet(folder / "shakespeare/data/train-0.parquet", character_id=list(ids), x=list(x), y=list(y))


@pytest.mark.parametrize("form", ["leaf", "parquet"])
def test_plays_are_merged_in_published_layouts(isolated, form, write_parquet):
    messengers = {f"{MACBETH}_MESSENGER": LINES[:600], f"{HAMLET}_MESSENGER": LINES[600:1400]}
    texts = messengers | {f"{HAMLET}_HORATIO": LINES}
    write_speakers(isolated, form, write_parquet, **texts)
    data = sources.build("shakespeare", {"merge_plays": True, "stride": 1})
    assert data.owner_names == ("MESSENGER", "HORATIO")
    spoken = [decoded(x) + VOCABULARY[y] for x, y in zip(data.train.features, data.train.labels, strict=True)]
    mine = [window for window, owner in zip(spoken, data.train.owners, strict=True) if owner == 0]
    # Every play is cut by itself: its end is held out, and no window reaches from one play into the next.
    held_out = [int(0.1 * (len(text) - 80)) for text in texts.values()]
    trained = [len(text) - 80 - out - 80 for text, out in zip(texts.values(), held_out, strict=True)]
    assert np.bincount(data.train.owners).tolist() == [trained[0] + trained[1], trained[2]]
    assert np.bincount(data.test.owners).tolist() == [held_out[0] + held_out[1], held_out[2]]
    assert all(any(window in text for text in messengers.values()) for window in mine)


def test_a_merged_speaker_has_one_limit(isolated, write_parquet):
    texts = {f"{MACBETH}_MESSENGER": LINES[:1000], f"{HAMLET}_MESSENGER": LINES[1000:1300]}
    write_speakers(isolated, "parquet", write_parquet, **texts)
    data = sources.build("shakespeare", {"merge_plays": True, "stride": 1, "max_windows": 10})
    assert (len(data.train), len(data.test)) == (10, 10)
    first = [decoded(x) in texts[f"{MACBETH}_MESSENGER"] for x in data.train.features]
    assert sum(first) == 9  # 748 windows are the first play's and 118 the second's: evenly spread over both


@pytest.mark.parametrize("form", ["leaf", "parquet"])
@pytest.mark.parametrize("workload", ["probing-shakespeare-iid", "probing-shakespeare-nc1"])
def test_the_workloads_take_published_layouts(isolated, form, workload, write_parquet):
    names = ("LORD", "MESSENGER", "SERVANT")
    texts = {f"{play}_{name}": LINES[:400] for play in (MACBETH, HAMLET) for name in names}
    write_speakers(isolated, form, write_parquet, **texts)
    data = build_data(from_dict({"workload": workload, "partition": {"clients": 3}}))
    assert data.clients == 3
    assert data.dataset.owner_names == names


@pytest.mark.parametrize(
    ("name", "speaker"),
    [
        ("TWELFTH_NIGHT__OR__WHAT_YOU_WILL_SIR_TOBY", "SIR TOBY"),
        ("TWELFTH_NIGHT_OR_WHAT_YOU_WILL_SIR_TOBY", "SIR TOBY"),
        ("LOVE_S_LABOUR_S_LOST_KING", "KING"),
        ("KING_RICHARD_THE_SECOND_KING_RICHARD", "KING RICHARD"),
    ],
)
def test_speakers_without_the_play(name, speaker):
    assert speaker_of(name) == speaker


@pytest.mark.parametrize("name", ["A", "THE_TRAGEDY_OF_MACBETH", "THE_TRAGEDY_OF_MACBETHS_WIFE"])
def test_a_name_without_a_play_is_refused(isolated, name):
    leaf(isolated / "shakespeare/all_data/a.json", **{name: slices("x" * 90)})
    with pytest.raises(DataError, match=name):
        sources.build("shakespeare", {"merge_plays": True})


def test_leaf_files_must_fit(isolated):
    leaf(isolated / "shakespeare/all_data/a.json", A=(["short"], ["x"]))
    with pytest.raises(DataError, match="80 characters"):
        sources.build("shakespeare", {})


def test_nothing_said(isolated):
    make_play(isolated / "shakespeare", "play", ADAM="Hm.")
    with pytest.raises(DataError, match="no speaker"):
        sources.build("shakespeare", {})
