"""Signed answers: which client gave an answer, and to which order, is proven rather than claimed.

A node signs two digests with its private key: of the whole order as it got it (experiment, round, exchange,
client, model, and a number that the server drew for this one message), and of the whole answer. The server
compares with what it sent. So an answer counts for one client and one order; whoever carries messages can lose
them, but neither change them nor use them again.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_ssh_private_key
from flwr.app import Array, RecordDict

from muster.core.errors import ConfigError
from muster.flower.wire import RECORD, WireError, take

#: The field of an answer's record that the signature is in; everything else in the answer is signed.
SIGNATURE = "signature"
#: The entry of a node's configuration that says where its private key is.
IDENTITY_KEY = "identity-key"
#: Flower signs times with the same key: what begins like this is never one.
_PURPOSE = b"muster: answer to an order, version 1\n"
_METHOD = ec.ECDSA(hashes.SHA256())
_HOW_TO_MAKE_KEYS = "make one with `muster deploy keys`, or with ssh-keygen -t ecdsa -b 256"


@dataclass(frozen=True)
class Asked:
    """What the answer to one message must fit."""

    type: str
    #: Drawn for this message alone; the answer repeats it.
    challenge: str = ""
    #: Of everything that was sent; empty where signatures are not checked.
    digest: bytes = b""


def new_challenge() -> str:
    """A number that no one can foresee. It is not derived from the seed because it must not come twice; no result
    depends on it."""
    return secrets.token_hex(16)


# --- digests -------------------------------------------------------------------------------------------------


def digest(content: RecordDict, known: Mapping[str, bytes] | None = None) -> bytes:
    """Of all records of a message, but for its signature. `known`: digests of records that were made before."""
    known, whole = known or {}, hashlib.sha256()
    for name in sorted(content):
        record = content[name]
        _put(whole, b"r", _bytes(name))
        _put(whole, type(record).__name__.encode(), known.get(name) or record_digest(record))
    return whole.digest()


def record_digest(record: Any) -> bytes:
    """Of one record: the same on both sides of the wire, whatever order its entries come in."""
    whole = hashlib.sha256()
    for name in sorted(record):
        if name == SIGNATURE:
            continue
        _put(whole, b"n", _bytes(name))
        value = record[name]
        if isinstance(value, Array):
            described = f"{value.dtype} {tuple(value.shape)} {value.stype}"
            _put(whole, b"a", _bytes(described))
            _put(whole, b"d", value.data)
        else:
            _put_value(whole, value)
    return whole.digest()


def _put_value(whole: Any, value: Any) -> None:
    if isinstance(value, list):
        _put(whole, b"l", str(len(value)).encode())
        for item in value:
            _put_value(whole, item)
        return
    if isinstance(value, float):
        encoded = struct.pack(">d", value)
    else:
        encoded = value if isinstance(value, bytes) else _bytes(str(value))
    _put(whole, type(value).__name__.encode(), encoded)


def _bytes(text: str) -> bytes:
    """Names come as JSON, which can hold half a character: that is a text like any other here."""
    return text.encode(errors="surrogatepass")


def _put(whole: Any, kind: bytes, content: bytes) -> None:
    """Kind and length before the content: no two messages are the same sequence of bytes."""
    whole.update(b"%s %d:" % (kind, len(content)))
    whole.update(content)


# --- keys ----------------------------------------------------------------------------------------------------


def node_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A node's private key, from a file in OpenSSH's form."""
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"cannot read the node's key {path}: {error}", fix=_HOW_TO_MAKE_KEYS) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(f"{path} holds a key of another kind", expected="ECDSA", fix=_HOW_TO_MAKE_KEYS)
    return key


def key_name(key: ec.EllipticCurvePublicKey) -> str:
    """Tells keys apart."""
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


# --- signatures ----------------------------------------------------------------------------------------------


def sign(key: ec.EllipticCurvePrivateKey, asked: Asked, answer: RecordDict) -> None:
    """Put the node's signature into its answer."""
    statement = _statement(asked, digest(answer))
    answer.config_records[RECORD][SIGNATURE] = key.sign(statement, _METHOD)


def signer_of(
    keys: Iterable[ec.EllipticCurvePublicKey], asked: Asked, answer: RecordDict
) -> ec.EllipticCurvePublicKey:
    """The one of these keys that has signed this answer to what was asked; WireError where none has."""
    record = answer.config_records.get(RECORD)
    if record is None or SIGNATURE not in record:
        raise WireError(
            "it is not signed",
            expected=f"the signature of its key: `muster node` makes it, other nodes need {IDENTITY_KEY}",
        )
    signature, statement = take(record, SIGNATURE, bytes), _statement(asked, digest(answer))
    for key in keys:
        try:
            key.verify(signature, statement, _METHOD)
        except InvalidSignature:
            continue
        return key
    raise WireError("its signature is not that of a key that is allowed, or is of another order or answer")


def _statement(asked: Asked, answered: bytes) -> bytes:
    return _PURPOSE + asked.type.encode() + b"\n" + asked.digest + answered
