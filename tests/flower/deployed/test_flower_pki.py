"""Keys and certificates: trusted by those who should, secret from everybody else."""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
import ssl
import threading
from typing import Any

import pytest

pytest.importorskip("flwr")
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from muster.core.errors import OutputError
from muster.flower.deploy.pki import make_authority, make_node_key, make_server_certificate

pytestmark = pytest.mark.flower


def handshake(server_certificate, trusted, name) -> str:
    """Connect over TLS; the common name that the client saw."""
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(server_certificate.certificate, server_certificate.key)
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            with serving.wrap_socket(theirs, server_side=True) as secured:
                secured.recv(1)
        except OSError:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with ssl.create_default_context(cafile=trusted).wrap_socket(ours, server_hostname=name) as secured:
            rows: Any = secured.getpeercert()["subject"]
            subject = dict(row[0] for row in rows)
            secured.send(b"x")
    finally:
        ours.close()
        thread.join(10)
    return subject["commonName"]


def test_the_server_is_trusted_under_its_names_and_addresses(tmp_path):
    authority = make_authority(tmp_path)
    server = make_server_certificate(tmp_path, authority, ["fed.example.org", "localhost", "127.0.0.1", "::1"])
    for name in ("fed.example.org", "localhost", "127.0.0.1", "::1"):
        assert handshake(server, authority.certificate, name) == "fed.example.org"
    with pytest.raises(ssl.SSLCertVerificationError, match=r"other\.example\.org"):
        handshake(server, authority.certificate, "other.example.org")


def test_another_authority_is_not_trusted(tmp_path):
    authority, other = make_authority(tmp_path / "ours"), make_authority(tmp_path / "theirs")
    server = make_server_certificate(tmp_path, authority, ["localhost"])
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server, other.certificate, "localhost")


def test_a_server_certificate_cannot_sign_others(tmp_path):
    authority = make_authority(tmp_path)
    server = make_server_certificate(tmp_path, authority, ["localhost"])
    certificate = x509.load_pem_x509_certificate(server.certificate.read_bytes())
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert names.get_values_for_type(x509.IPAddress) == []


def test_certificates_end(tmp_path):
    authority = make_authority(tmp_path, days=10)
    server = make_server_certificate(tmp_path, authority, ["127.0.0.1"], days=3)
    certificate = x509.load_pem_x509_certificate(server.certificate.read_bytes())
    lasts = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(days=2) < lasts <= datetime.timedelta(days=3)
    assert certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(
        x509.IPAddress
    ) == [ipaddress.ip_address("127.0.0.1")]


def test_node_keys_are_pairs_in_the_form_that_flower_reads(tmp_path):
    made = make_node_key(tmp_path, "node0")
    private = load_ssh_private_key(made.private.read_bytes(), None)
    public = load_ssh_public_key(made.public.read_bytes())
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    assert private.public_key().public_numbers() == public.public_numbers()


def test_only_the_owner_reads_private_keys_whatever_the_umask_says(tmp_path):
    before = os.umask(0)
    try:
        authority = make_authority(tmp_path)
        secrets = [authority.key, make_server_certificate(tmp_path, authority, ["localhost"]).key]
        secrets.append(make_node_key(tmp_path, "node0").private)
    finally:
        os.umask(before)
    assert [oct(path.stat().st_mode & 0o777) for path in secrets] == ["0o600"] * 3


def test_keys_are_never_overwritten(tmp_path):
    content = make_node_key(tmp_path, "node0").private.read_bytes()
    with pytest.raises(OutputError, match="never overwritten"):
        make_node_key(tmp_path, "node0")
    assert (tmp_path / "node0").read_bytes() == content
