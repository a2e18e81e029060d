"""Keys and certificates of a federation: an authority, the SuperLink's certificate, one key per node.

Private keys are readable by their owner only, and are never overwritten.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from muster.core.errors import ConfigError, OutputError

#: The file beside the keys that says which of them speaks for which client.
ALLOW_LIST = "allowed-clients"
#: Clocks of two hosts differ: a certificate is valid from a little before it was made.
_CLOCK_SKEW = datetime.timedelta(minutes=5)
#: Days for which a certificate may be valid, and characters of its owner's name.
_MAX_DAYS, _LONGEST_HOST = 36_500, 64


@dataclass(frozen=True)
class Authority:
    """The certificate that everyone trusts, and the key that signs with it."""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class ServerCertificate:
    """What a SuperLink presents to those that connect."""

    certificate: Path
    key: Path


@dataclass(frozen=True)
class NodeKey:
    """What a node proves its identity with: the private key stays on it, the public key is registered."""

    private: Path
    public: Path


def make_authority(folder: Path, name: str = "muster federation", days: int = 365) -> Authority:
    """A new authority in `folder`: ca.crt for everyone, ca.key for whoever signs."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = _key_usage(key_cert_sign=True, crl_sign=True)
    certificate = (
        _validity(x509.CertificateBuilder(), days)
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    made = Authority(folder / "ca.crt", folder / "ca.key")
    _write_secret(made.key, _pem(key))
    _write(made.certificate, certificate.public_bytes(Encoding.PEM))
    return made


def make_server_certificate(
    folder: Path, authority: Authority, hosts: Sequence[str], days: int = 90
) -> ServerCertificate:
    """A certificate for a SuperLink that is reached under `hosts` (names or addresses)."""
    alternatives = [_alternative(host) for host in hosts]
    issuer, signer = _read_authority(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        _validity(x509.CertificateBuilder(), days)
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    made = ServerCertificate(folder / "server.pem", folder / "server.key")
    _write_secret(made.key, _pem(key))
    _write(made.certificate, certificate.public_bytes(Encoding.PEM))
    return made


def _read_authority(authority: Authority) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """An authority's certificate and key, if they are whole and belong together."""
    try:
        path = authority.certificate
        issuer = x509.load_pem_x509_certificate(path.read_bytes())
        path = authority.key
        signer = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        why = getattr(error, "strerror", None) or "it is damaged, or locked with a password"
        raise ConfigError(
            f"cannot read {path}: {why}",
            fix="put the authority's ca.crt and ca.key there; a certificate cannot be signed without them",
        ) from error
    if not isinstance(signer, ec.EllipticCurvePrivateKey) or issuer.public_key() != signer.public_key():
        raise ConfigError(
            f"{authority.key} is not the key of {authority.certificate}", fix="put the two of one authority there"
        )
    return issuer, signer


def make_node_key(folder: Path, name: str) -> NodeKey:
    """A node's key pair in OpenSSH's form, which Flower asks for: `name` and `name.pub`."""
    key = ec.generate_private_key(ec.SECP256R1())
    made = NodeKey(folder / name, folder / f"{name}.pub")
    _write_secret(made.private, key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    _write(made.public, key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n")
    return made


def _validity(builder: x509.CertificateBuilder, days: int) -> x509.CertificateBuilder:
    if not 0 < days <= _MAX_DAYS:
        raise ConfigError(f"a certificate cannot be valid for {days} days", expected=f"1 to {_MAX_DAYS}")
    now = datetime.datetime.now(datetime.UTC)
    return (
        builder.serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _key_usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        if not (host.isascii() and host.isprintable() and 0 < len(host) <= _LONGEST_HOST):
            raise ConfigError(
                f"a certificate cannot have the host {host[:100]!r}",
                expected=f"an address, or a name of at most {_LONGEST_HOST} ASCII characters",
                fix="write a name with other letters in its form for DNS (xn--…)",
            ) from None
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write_secret(path: Path, content: bytes) -> None:
    """Write a file that is never readable by anyone else, not even for a moment."""
    _create(path, content, 0o600)


def _write(path: Path, content: bytes) -> None:
    _create(path, content, 0o644)


def _create(path: Path, content: bytes, mode: int) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as error:
        raise OutputError(
            f"cannot write {path}: {error.strerror}", fix="choose an empty folder; keys are never overwritten"
        ) from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
