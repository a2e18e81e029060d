"""Digests tell all messages apart that differ, survive the wire, and a signature fits one order and one answer."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from hypothesis import given, settings
from hypothesis import strategies as st

from muster.core.errors import ConfigError
from muster.flower import wire
from muster.flower.deploy.pki import make_node_key
from muster.flower.signing import Asked, digest, new_challenge, node_key, record_digest, sign, signer_of
from muster.flower.wire import WireError

scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**62), 2**62),
    st.floats(allow_nan=False),
    st.text(st.characters(codec="utf-8"), max_size=5),
    st.binary(max_size=5),
)
lists = st.one_of(
    *(st.lists(s, min_size=1, max_size=3) for s in (st.booleans(), st.integers(0, 9), st.binary(max_size=2)))
)
fields = st.dictionaries(st.text("abc", min_size=1, max_size=2), st.one_of(scalars, lists), max_size=4)


def message(values, vector=(1.0, 2.0)) -> RecordDict:
    arrays = ArrayRecord({"model": Array(np.array(vector, dtype=np.float32))})
    return RecordDict({wire.RECORD: ConfigRecord(dict(values)), wire.ARRAYS: arrays})


def over_the_wire(content: RecordDict) -> RecordDict:
    return recorddict_from_proto(recorddict_to_proto(content))


@settings(max_examples=100, deadline=None)
@given(fields)
def test_a_digest_is_the_same_on_both_sides_of_the_wire(values):
    content = message(values)
    assert digest(over_the_wire(content)) == digest(content)
    reversed_ = message(dict(reversed(values.items())))
    assert digest(reversed_) == digest(content)
    known = {wire.ARRAYS: record_digest(content[wire.ARRAYS])}
    assert digest(content, known) == digest(content)


def same(a: object, b: object) -> bool:
    """Equal in type too: True is not 1, and 1 is not 1.0; -0.0 is not 0.0."""
    return repr(a) == repr(b)


@settings(max_examples=200, deadline=None)
@given(fields, fields)
def test_messages_that_differ_have_different_digests(one, other):
    assert (digest(message(one)) == digest(message(other))) == same(sorted(one.items()), sorted(other.items()))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": True}),
        ({"a": 1}, {"a": 1.0}),
        ({"a": "1"}, {"a": b"1"}),
        ({"a": [1, 2], "b": [3]}, {"a": [1], "b": [2, 3]}),
        ({"a": "x", "b": ""}, {"a": "", "b": "x"}),
        ({"ab": "c"}, {"a": "bc"}),
        ({"a": [b"ab"]}, {"a": [b"a", b"b"]}),
        ({"a": []}, {}),
    ],
)
def test_what_looks_alike_is_told_apart(one, other):
    assert digest(message(one)) != digest(message(other))


def test_vectors_names_of_records_and_their_kinds_count():
    plain = message({"a": 1})
    renamed = RecordDict({"other": plain[wire.RECORD], wire.ARRAYS: plain[wire.ARRAYS]})
    measured = RecordDict({wire.RECORD: MetricRecord({"a": 1}), wire.ARRAYS: plain[wire.ARRAYS]})
    without = RecordDict({wire.RECORD: plain[wire.RECORD]})
    array = plain.array_records[wire.ARRAYS]["model"]
    described = ArrayRecord({"model": Array("float32", (1, 2), array.stype, array.data)})
    lying = RecordDict({wire.RECORD: plain[wire.RECORD], wire.ARRAYS: described})
    listed = message({"a": [1]})  # a list of one number is not the number
    all_of_them = [plain, message({"a": 1}, (1.0, 3.0)), renamed, measured, without, lying, listed]
    assert len({digest(content) for content in all_of_them}) == len(all_of_them)


@pytest.fixture(params=[ec.SECP256R1, ec.SECP384R1, ec.SECP521R1])
def key(request):
    return ec.generate_private_key(request.param())


def signed(key, order: RecordDict, answer: RecordDict, type: str = wire.TRAIN) -> RecordDict:
    sign(key, Asked(type, digest=digest(order)), answer)
    return over_the_wire(answer)


def test_the_signer_is_found_among_the_keys(key):
    others = [ec.generate_private_key(ec.SECP256R1()).public_key() for _ in range(2)]
    order, answer = message({"challenge": "1"}), message({"client": 3}, (5.0, 6.0))
    answer = signed(key, order, answer)
    asked = Asked(wire.TRAIN, digest=digest(order))
    assert signer_of([*others, key.public_key()], asked, answer) == key.public_key()
    with pytest.raises(WireError, match="not that of a key that is allowed"):
        signer_of(others, asked, answer)


def test_a_signature_fits_one_order_and_one_answer():
    key = ec.generate_private_key(ec.SECP256R1())
    order, answer = message({"challenge": "1"}), message({"client": 3, "samples": 10}, (5.0, 6.0))
    answer = signed(key, order, answer)
    asked = Asked(wire.TRAIN, digest=digest(order))
    keys = [key.public_key()]
    signer_of(keys, asked, answer)
    wrong_orders = [
        Asked(wire.EVALUATE, digest=asked.digest),
        Asked(wire.TRAIN, digest=digest(message({"challenge": "2"}))),
        Asked(wire.TRAIN, digest=digest(message({"challenge": "1"}, (1.0, 2.5)))),
        Asked(wire.TRAIN),
    ]
    for wrong in wrong_orders:
        with pytest.raises(WireError, match="of another order or answer"):
            signer_of(keys, wrong, answer)
    for change in ({"client": 4}, {"samples": 11}, {"more": 1}):
        changed = copy.deepcopy(answer)
        changed.config_records[wire.RECORD].update(change)
        with pytest.raises(WireError, match="of another order or answer"):
            signer_of(keys, asked, changed)
    moved = copy.deepcopy(answer)
    moved[wire.ARRAYS] = ArrayRecord({"model": Array(np.array([5.0, 6.5], dtype=np.float32))})
    with pytest.raises(WireError, match="of another order or answer"):
        signer_of(keys, asked, moved)


def test_answers_without_a_signature_are_said_to_be_so():
    asked = Asked(wire.TRAIN)
    for content in (RecordDict(), message({"client": 3})):
        with pytest.raises(WireError, match="not signed"):
            signer_of([], asked, content)
    with pytest.raises(WireError, match="'signature' is 7"):
        signer_of([], asked, message({"signature": 7}))
    with pytest.raises(WireError, match="not that of a key"):
        signer_of([ec.generate_private_key(ec.SECP256R1()).public_key()], asked, message({"signature": b"\0" * 8}))


def test_challenges_do_not_come_twice():
    assert len({new_challenge() for _ in range(1000)}) == 1000


def test_keys_are_read_or_it_is_said_why_not(tmp_path):
    pair = make_node_key(tmp_path, "clinic")
    assert node_key(pair.private).curve.name == "secp256r1"
    with pytest.raises(ConfigError, match="cannot read the node's key"):
        node_key(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="cannot read the node's key"):
        node_key(pair.public)
    from cryptography.hazmat.primitives.asymmetric import ed25519

    other = tmp_path / "ed25519"
    made = ed25519.Ed25519PrivateKey.generate()
    other.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    with pytest.raises(ConfigError, match="a key of another kind"):
        node_key(other)


def test_half_a_character_is_digested_like_any_other_text():
    """Names of records and fields come as JSON, which can hold a lone surrogate."""
    half, other = "\ud800", "\ud801"
    digests = set()
    for text in (half, other):
        named = message({"a": 1})
        named[text] = ConfigRecord({"a": 1})
        digests |= {digest(named), digest(message({text: 1})), digest(message({"a": text}))}
    assert len(digests) == 6
