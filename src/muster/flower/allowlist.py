"""The allow-list: which clients there are, and whose signature speaks for each.

A text file with one line per client and key: the identity from the node's configuration, then the public key as in
the node's `.pub` file. A client with two lines may use either key, which is how keys are changed. The file is
read again when it changes: deleting a line takes effect with the next round.
"""

from __future__ import annotations

import re
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.app import RecordDict

from muster.core.errors import ConfigError, OutputError
from muster.flower.signing import Asked, key_name, signer_of
from muster.flower.wire import WireError

#: How public keys begin that Flower takes: ECDSA on a curve of NIST.
_KIND = "ecdsa-sha2-"
#: As nodes write their identities: "partition-id=00" would be a line for no client.
_LINE = re.compile(rf"(partition-id=(?:0|[1-9][0-9]*)|name=\S(?:.*?\S)??)[ \t]+({_KIND}.*)")
_FORM = "a line for each client: its identity and its public key, 'partition-id=0 ecdsa-sha2-nistp256 AAAA…'"

Keys = dict[str, list[ec.EllipticCurvePublicKey]]


class AllowList:
    """The clients that may take part, as the file says at this moment."""

    def __init__(self, path: Path, *, shared_keys: bool = False) -> None:
        self.path, self._shared = path, shared_keys
        self._text = _read(path)
        self._keys = parse(self._text, str(path), shared_keys=shared_keys)
        #: What was wrong with the file when it was last looked at: said once.
        self._trouble = ""

    def __len__(self) -> int:
        return len(self._keys)

    def names(self, identity: str) -> set[str]:
        """Of the keys that may speak for a client."""
        return {key_name(key) for key in self._keys.get(identity, ())}

    def check(self, identity: str, asked: Asked, answer: RecordDict) -> str:
        """Refuse an answer that this identity's client has not signed; returns the name of the key that signed."""
        if identity not in self._keys:
            raise WireError(f"'{identity}' is not in the allow-list")
        return key_name(signer_of(self._keys[identity], asked, answer))

    def refresh(self) -> str | None:
        """Read the file again if it has changed; what happened, in words, if something did.

        A run does not end over a file that is just being written: until it can be read, what it said before holds.
        """
        try:
            text = _read(self.path)
            if text == self._text:
                self._trouble = ""
                return None
            keys = parse(text, str(self.path), shared_keys=self._shared)
        except ConfigError as error:
            told, self._trouble = self._trouble, error.problem
            return None if told == error.problem else f"the allow-list as it was still holds: {error.problem}"
        self._text, self._keys, self._trouble = text, keys, ""
        return f"the allow-list has changed: {len(keys)} clients may take part"


def parse(text: str, source: str, *, shared_keys: bool = False) -> Keys:
    """Identity → public keys; ConfigError for lines that say nothing clear."""
    keys: Keys = {}
    owners: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        identity, key = _parsed(line, f"{source}, line {number}")
        owner = owners.setdefault(key_name(key), identity)
        if owner != identity and not shared_keys:
            raise ConfigError(
                f"{source}, line {number}: '{identity}' has the key of '{owner}'",
                expected="a key of its own for every client, so that no one can speak for two",
                fix="make another key, or set flower.shared_keys = true",
            )
        keys.setdefault(identity, []).append(key)
    if not keys:
        raise ConfigError(f"the allow-list {source} names no client", expected=_FORM)
    return keys


def add_client(path: Path, identity: str, public_key: Path) -> None:
    """Let the owner of a key speak for a client, in addition to any keys that the client already has."""
    line = f"{identity} {public_key.read_text(encoding='utf-8').strip()}"
    _parsed(line, str(public_key))
    try:
        # What was written by hand may end in the middle of a line.
        before = path.read_bytes() if path.exists() else b""
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n" if before.endswith(b"\n") or not before else f"\n{line}\n")
    except OSError as error:
        raise OutputError(f"cannot write the allow-list {path}: {error.strerror}") from error


def _parsed(line: str, where: str) -> tuple[str, ec.EllipticCurvePublicKey]:
    # Names may hold spaces, so the key says where the identity ends.
    found = _LINE.fullmatch(line.strip())
    if found is None or len(line.splitlines()) != 1:
        raise ConfigError(f"{where} cannot be understood: {line.strip()[:60]!r}", expected=_FORM)
    identity = found[1]
    try:
        key = load_ssh_public_key(found[2].encode())
    except (ValueError, UnsupportedAlgorithm, NotImplementedError) as error:  # the last one: a compressed point
        raise ConfigError(f"{where}: the key of '{identity}' cannot be read: {error}", expected=_FORM) from error
    assert isinstance(key, ec.EllipticCurvePublicKey)  # by its kind
    return identity, key


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")  # editors of Windows begin a file with a mark
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the allow-list {path}: {getattr(error, 'strerror', None) or 'it is not text'}",
            expected=_FORM,
            fix="`muster deploy keys` writes one beside the keys; a server app needs its path from the root",
        ) from error
